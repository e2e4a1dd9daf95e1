"""A rehearsal of a Vertex AI run on this machine: the same request, sent to an emulator that is started for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.emulator.extra import needed_by
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.step_environment import environment_with
from gpu_pipelines.targets.messages import Outcome
from gpu_pipelines.targets.runs.trial_record import RUNS

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi
    from gpu_pipelines.targets.messages import Submission, Watch

_EVERY = 0.5
_HTML = "system.HTML"


def settings_for(settings: ProjectSettings) -> ProjectSettings:
    """The settings of a project with the emulator's own in place of those for the cloud.

    Raises:
        UserError: the emulator is not installed.
    """
    with needed_by("--emulate"):
        from gpu_pipelines.emulator.services import BUCKET, PROJECT, REGION

    region = settings.region or REGION
    # This project's steps run from its code: the image needs only a name.
    image = settings.image or f"{region}-docker.pkg.dev/{PROJECT}/{STEPS_IMAGE}"
    return replace(settings, project=PROJECT, region=region, pipeline_root=f"gs://{BUCKET}/runs", image=image)


def run_emulated(target: Any, submission: Submission, watch: Watch) -> Outcome:
    """Runs a pipeline to its end on an emulator; its files stay in runs/JOB.

    Args:
        target: Vertex AI, as a `gpu_pipelines.targets.vertex.vertex.Vertex`.
        submission: the run.
        watch: shows the run.

    Raises:
        UserError: the emulator cannot be started, or refuses the request.
    """
    with needed_by("--emulate"):
        from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator
    folder = (RUNS / submission.content.job_id).absolute()
    settings = EmulatorSettings(state=folder / "emulator")
    with running_emulator(settings) as api, environment_with(api.environment()):
        done = target.submit(submission)
        watch.tell(f"{done.name} runs on an emulator at {api.url}; its files: {folder}")
        outcome = target.follow(done.name, watch, _EVERY)
        reports = [str(path) for path in _copy_reports(api, str(done.document["name"]), folder)]
    document: dict[str, Any] = {**outcome.document, "emulated": True, "folder": str(folder), "reports": reports}
    if outcome.state == "succeeded":
        return Outcome(outcome.state, [f"succeeded on the emulator: {folder}", *_told(reports)], document)
    lines = [line for line in outcome.lines if not (isinstance(line, str) and line.startswith("console: "))]
    return Outcome(outcome.state, [*lines, f"files of the run: {folder}", *_told(reports)], document)


def _told(reports: list[str]) -> list[str]:
    return [f"report: {path}" for path in reports]


def _copy_reports(api: VertexApi, name: str, folder: Path) -> Iterator[Path]:
    """Copies the pages of the steps to a folder beside the state; yields their new places."""
    for task in api.state.pipeline_jobs.one(name).job_detail.task_details:
        for output, held in task.outputs.items():
            for artifact in held.artifacts:
                page = api.folder / "gcs" / artifact.uri.removeprefix("gs://")
                if artifact.schema_title == _HTML and page.is_file():
                    copy = folder / f"{task.task_name}-{output}.html"
                    shutil.copyfile(page, copy)
                    yield copy
