"""State and cost of a run or a job on Vertex AI."""

from __future__ import annotations

from typing import Any

from gpu_pipelines.accelerators.spent import spent_on
from gpu_pipelines.dag.placement import TRAINING_STEPS
from gpu_pipelines.google_cloud.connection import (
    REQUEST_SECONDS,
    job_service,
    pipeline_service,
    service_errors,
    tried_again,
)
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.runs.account import RunAccount, StepAccount
from gpu_pipelines.targets.vertex import console
from gpu_pipelines.targets.vertex.jobs.custom_jobs import REQUEST_LABEL, state_in_words
from gpu_pipelines.targets.vertex.runs.machine_times import (
    NOT_COUNTED,
    RUN_LABEL,
    planned_in,
    times_of_job,
    times_of_run,
)
from gpu_pipelines.targets.vertex.runs.state import state_of
from gpu_pipelines.tracking.tracked import run_of
from gpu_pipelines.tracking.tracker import TrackedRun


def account_of_run(name: str, settings: ProjectSettings) -> RunAccount:
    """A run of a pipeline.

    Args:
        name: its full name.
        settings: project and region, and the table of billing export.

    Raises:
        UserError: there is no such run, or the service cannot be reached.
    """
    short = name.rpartition("/")[2]
    with service_errors(f"Looking at {short}"):
        job = pipeline_service(settings).get_pipeline_job(name=name, timeout=REQUEST_SECONDS, retry=tried_again())
    run = state_of(job)
    times = times_of_run(run, job, settings)
    failed = next((step for step in run.steps if step.state == "failed"), None)
    values = job.runtime_config.parameter_values
    account = RunAccount(
        run=short,
        target="vertex",
        state=run.state,
        steps=[StepAccount(step.name, step.state, step.seconds) for step in run.steps],
        spent=spent_on(times, NOT_COUNTED, planned_in(_spec_of(job), settings.region, values)),
        began=job.start_time or None,
        ended=job.end_time if run.ended and job.end_time else None,
        error=run.error or (f"{failed.name} failed: {failed.error}" if failed else ""),
        page=console.run_page(name),
        tracking=str(values.get("tracking") or ""),
        tracked=_tracked(job),
    )
    return account.with_bill(RUN_LABEL, str(job.labels.get(RUN_LABEL) or ""), settings)


def account_of_job(name: str, settings: ProjectSettings) -> RunAccount:
    """A custom job without a pipeline; see `account_of_run`."""
    short = name.rpartition("/")[2]
    with service_errors(f"Looking at {short}"):
        job = job_service(settings).get_custom_job(name=name, timeout=REQUEST_SECONDS, retry=tried_again())
    account = RunAccount(
        run=short,
        target="vertex",
        state=state_in_words(job),
        steps=[],
        spent=spent_on(times_of_job(str(job.display_name), job, str(settings.region)), NOT_COUNTED),
        began=job.start_time or None,
        ended=job.end_time or None,
        error=str(job.error.message),
        page=console.custom_job_page(name),
    )
    return account.with_bill(REQUEST_LABEL, str(job.labels.get(REQUEST_LABEL) or ""), settings)


def _spec_of(job: Any) -> dict[str, Any]:
    """The pipeline of a job, as in the compiled file."""
    from google.protobuf import json_format

    spec: dict[str, Any] = json_format.MessageToDict(type(job).pb(job).pipeline_spec)
    return spec


def _tracked(job: Any) -> TrackedRun | None:
    """The id of a run in trackers: the checkpoints of its training; None if there are none."""
    for detail in job.job_detail.task_details:
        if detail.task_name.startswith(TRAINING_STEPS) and "checkpoints" in detail.outputs:
            for artifact in detail.outputs["checkpoints"].artifacts:
                return run_of(artifact, str(artifact.uri))
    return None
