"""The names of runs in the cloud: given by their sender, or by Kubeflow Pipelines."""

from __future__ import annotations

import re
import secrets
from datetime import datetime, timezone

#: The form of `new_run_name`; a run on this machine has no four digits at its end.
NAMED_HERE = re.compile(r"[a-z][-a-z0-9]*-\d{8}-\d{6}-[0-9a-f]{4}")
#: The id that Kubeflow Pipelines gives a run.
OF_KUBEFLOW = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def new_run_name(pipeline: str, longest: int = 80) -> str:
    """A name that no other run has: the pipeline's, the time (UTC) and four random digits.

    Args:
        pipeline: its name, of any characters.
        longest: most characters to keep of it.
    """
    stem = re.sub(r"[^a-z0-9]+", "-", pipeline.lower()).strip("-") or "run"
    stem = stem if stem[0].isalpha() else f"run-{stem}"
    return f"{stem[:longest]}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
