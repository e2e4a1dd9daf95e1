"""What the Google Cloud CLI makes of configs, by its own code, for many of them in one process.

Run by the Python that gcloud brings: reads a JSON list of `[kind, text]` on stdin, the kind `custom` or `tuning`, and
writes a JSON list of what would be sent for each, or `{"refused": …}`.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

LIBRARIES = Path(sys.argv[1]) / "lib"
sys.path[:0] = [str(LIBRARIES), str(LIBRARIES / "third_party")]

from apitools.base.py import encoding  # noqa: E402
from googlecloudsdk.api_lib.util import apis, messages  # noqa: E402
from googlecloudsdk.command_lib.ai.custom_jobs import validation  # noqa: E402
from googlecloudsdk.command_lib.export import util  # noqa: E402
from googlecloudsdk.core import yaml  # noqa: E402

API = apis.GetMessagesModule("aiplatform", "v1")


class Flags:
    """The flags of a command that has a file alone."""

    worker_pool_spec = None


def sent(kind, text):
    """The job of a config, as `gcloud ai custom-jobs create` and `gcloud ai hp-tuning-jobs create` read it."""
    if kind == "custom":
        job = util.Import(API.GoogleCloudAiplatformV1CustomJobSpec, text)
        validation.ValidateCreateArgs(Flags, job, "GA")
    else:
        job = messages.DictToMessageWithErrorCheck(yaml.load(text), API.GoogleCloudAiplatformV1HyperparameterTuningJob)
    return json.loads(encoding.MessageToJson(job))


def main():
    warnings.simplefilter("ignore")
    found = []
    for kind, text in json.load(sys.stdin):
        try:
            found.append(sent(kind, text))
        except Exception as error:
            found.append({"refused": f"{type(error).__name__}: {error}"})
    json.dump(found, sys.stdout)


main()
