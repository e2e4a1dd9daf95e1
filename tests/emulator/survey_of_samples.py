"""Sends every compiled pipeline of a folder to an emulator with Vertex AI's SDK, and tells what became of each.

`python tests/emulator/survey_of_samples.py KFP/test_data/sdk_compiled_pipelines/valid COMMIT` writes
docs/emulator-samples.md. It takes about half an hour: most steps install KFP first.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PAGE = Path(__file__).parents[2] / "docs/emulator-samples.md"
#: For pipelines whose parameters have no defaults. FILE is a name of a new file.
PARAMETERS: dict[str, dict[str, Any]] = {
    "arguments_parameters": {"param2": "two"},
    "container_io": {"text": "hello"},
    "container_with_artifact_output": {"num_epochs": 2},
    "container_with_concat_placeholder": {"text1": "a"},
    "containerized_python_component": {"message1": "a", "message2": "b"},
    "add_numbers": {"a": 1, "b": 2},
    "env-var": {"env_var": "HOME"},
    "concat_message": {"message1": "Hello ", "message2": "World!"},
    "dict_input": {"struct": {"a": 1}},
    "lightweight_python_functions_pipeline": {"message": "hello"},
    "lightweight_python_functions_with_outputs": {
        "first_message": "a",
        "first_number": 1,
        "second_message": "b",
        "second_number": 2,
    },
    "identity": {"value": "same"},
    "local_execution_pipeline_with_ignore_upstream_failure": {"marker_path": "FILE"},
    "local_execution_pipeline_with_retry": {"counter_path": "FILE"},
    "pipeline_with_condition_dynamic_task_output_custom_training_job": {
        "location": "us-central1",
        "project": "example-project",
    },
    "pipeline_with_dynamic_task_output_custom_training_job": {"location": "us-central1", "project": "example-project"},
    "pipeline_with_metadata_fields": {"string": "s"},
    "pipeline_with_parallelfor_parallelism": {"loop_parameter": ["x", "y"]},
    "pipeline_with_parallelfor_pipeline_param": {"loop_parameter": ["x", "y"], "prefix": "p"},
    "pipeline_with_various_io_types": {"input1": "i"},
    "preprocess": {"input_dict_parameter": {"a": 1}, "input_list_parameter": ["b"], "message": "m"},
    "pvc_mount": {"pvc_name": "p"},
    "sequential_v1": {"param1": "one", "param2": "two"},
    "sequential_v2": {"url": "gs://example-bucket/some.txt"},
    "take_nap_compiled": {"naptime_secs": 1},
    "take_nap_pipeline_root_compiled": {"naptime_secs": 1},
    "upload_download_compiled": {"bucket_name": "b", "mlpipeline_minio_artifact_secret": "s"},
}
#: Why those fail that do.
REASONS = {
    "component_with_task_final_status_GH-12033": "no step gives it the status that it prints",
    "fail_v2": "its authors make it fail",
    "local_execution_pipeline_with_ignore_upstream_failure": "its authors make it fail; the task after it runs",
    "long-running": "sleeps for ten minutes; cancelled after four",
    "modelcar": "imports an image, and images are not read here",
    "pipeline_as_exit_task": "its authors make it fail; the exit task runs",
    "pipeline_with_artifact_custom_path": "calls something that its version of KFP does not have",
    "pipeline_with_artifact_upload_download": "reads from Hugging Face, which cannot be reached here",
    "pipeline_with_concat_placeholder": "uses the shell of its image",
    "pipeline_with_exit_handler": "its authors make it fail; the exit task runs",
    "pipeline_with_google_artifact_type": "installs a package that no index has",
    "pipeline_with_input_status_state": "expects Kubeflow's state COMPLETE; here it is SUCCEEDED",
    "pipeline_with_multiple_exit_handlers": "its authors make it fail; the exit tasks run",
    "pipeline_with_placeholders": "expects names in Kubeflow's form",
    "pipeline_with_submit_request": "asks a host that cannot be reached here",
    "pipeline_with_task_final_status": "its authors make it fail; the exit task runs",
    "pipeline_with_task_final_status_yaml": "its authors make it fail; the exit task runs",
    "pipeline_with_task_using_ignore_upstream_failure": "its authors make it fail; the task after it runs",
    "embedded_artifact": "calls something that its version of KFP does not have",
    "ray_integration_compiled": "asks a Kubernetes cluster for Ray",
    "upload_download_compiled": "needs the credentials of an object store, MinIO",
    "xgboost_sample_pipeline": "installs packages for Python 3.7",
}
MEANT = "its authors make it fail"
_LONGEST_S = 240.0
_RAN = ("SUCCEEDED", "SKIPPED", "FAILED")
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class Outcome:
    """What became of a file.

    Attributes:
        file: its place in the folder.
        state: ran, refused, failed, or meant: failed as its authors mean it to.
        why: of one that did not run.
        tasks: how many were run.
        seconds: how long it took.
    """

    file: str
    state: str
    why: str = ""
    tasks: int = 0
    seconds: float = 0.0


def outcomes(emulator: VertexApi, folder: Path, names: list[str]) -> Iterator[Outcome]:
    """Sends the files one after the other; `names` are parts of their names, none for all of them."""
    for number, file in enumerate(sorted(folder.rglob("*.yaml"))):
        if not names or any(name in str(file) for name in names):
            yield _outcome(emulator, file, str(file.relative_to(folder)), f"survey-{number}")


def _outcome(emulator: VertexApi, file: Path, name: str, key: str) -> Outcome:
    from google.cloud import aiplatform

    begun, before = time.monotonic(), len(emulator.state.logs.messages())
    given = {
        parameter: str(Path(tempfile.mkdtemp()) / "file") if value == "FILE" else value
        for parameter, value in PARAMETERS.get(file.stem, {}).items()
    }
    try:
        job = aiplatform.PipelineJob(
            key, str(file), pipeline_root="gs://example-bucket/r", parameter_values=given, job_id=key
        )
        job.submit()
    except Exception as error:
        return Outcome(name, "refused", _refusal(str(error)))
    jobs = emulator.state.pipeline_jobs
    while (state := jobs.one(job.resource_name).state.name.removeprefix("PIPELINE_STATE_")) not in _ENDED:
        if time.monotonic() - begun > _LONGEST_S:
            job.cancel()
        time.sleep(0.1)
    held = jobs.one(job.resource_name)
    ran = [
        task for task in list(held.job_detail.task_details)[1:] if task.state.name in ("SUCCEEDED", "SKIPPED", "FAILED")
    ]
    seconds = time.monotonic() - begun
    if state == "SUCCEEDED":
        return Outcome(name, "ran", "", len(ran), seconds)
    said = emulator.state.logs.messages()[before:]
    last = next((line for line in reversed(said) if "Error" in line), held.error.message)
    why = REASONS.get(file.stem, last[:200])
    return Outcome(name, "meant" if why.startswith(MEANT) else "failed", why, len(ran), seconds)


def _refusal(text: str) -> str:
    if "expected a single document" in text:
        return "the SDK refuses a file with a part for Kubernetes"
    return re.sub(r"^(\d+ )?(The emulator does not run this pipeline: )?", "", text)[:300]


def page(found: list[Outcome], commit: str) -> str:
    """The page of the docs."""
    counts = {state: sum(each.state == state for each in found) for state in ("ran", "meant", "refused", "failed")}
    lines = [
        "# Pipelines of others on the emulator",
        "",
        "`python tests/emulator/survey_of_samples.py` writes this page. It sends every compiled pipeline of Kubeflow",
        "Pipelines' test data, unchanged, by Vertex AI's SDK to `gpu-pipelines emulator`. The files are those of",
        "`test_data/sdk_compiled_pipelines/valid` of [its repository](https://github.com/kubeflow/pipelines) at",
        f"{commit[:12]}.",
        "",
        f"{len(found)} files: {counts['ran']} ran, {counts['meant']} failed as their authors mean them to, "
        f"{counts['refused']} were",
        f"refused when they were submitted, and {counts['failed']} failed.",
        "",
    ]
    titles = {"refused": "Refused", "failed": "Failed", "meant": "Failed as their authors mean them to"}
    for state, title in titles.items():
        rows = [f"| `{each.file}` | {each.why.replace('|', '/')} |" for each in found if each.state == state]
        lines += [f"## {title}", "", "| file | why |", "|---|---|", *rows, ""]
    rows = [f"| `{each.file}` | {each.tasks} |" for each in found if each.state == "ran"]
    return "\n".join([*lines, "## Ran", "", "| file | tasks |", "|---|---|", *rows, ""])


def survey(folder: Path, names: list[str]) -> list[Outcome]:
    """Starts an emulator, with the data that one of the pipelines reads, and sends it the files."""
    from gpu_pipelines.emulator.start import running_emulator

    logging.disable()
    with running_emulator() as emulator:
        os.environ.update(emulator.environment())
        from google.cloud import aiplatform

        aiplatform.init(project="example-project", location="us-central1", staging_bucket="gs://example-bucket")
        emulator.storage.put("some.txt", b"some text")
        emulator.storage.add_bucket("ml-pipeline-playground")
        for name in ("shakespeare1.txt", "shakespeare2.txt"):
            (emulator.folder / "gcs/ml-pipeline-playground" / name).write_text("To be, or not to be\n")
        found = []
        for each in outcomes(emulator, folder, names):
            print(f"{each.file}: {each.state} {each.seconds:.1f} s {each.why}", file=sys.stderr, flush=True)
            found.append(each)
        return found


if __name__ == "__main__":
    PAGE.write_text(page(survey(Path(sys.argv[1]), sys.argv[3:]), sys.argv[2]))
