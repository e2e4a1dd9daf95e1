"""The custom jobs that the steps of a run have launched, found while they run.

A step that is a CustomJob runs as a small container that creates the job and waits for it. What the container knows of
the job is told with its outputs, after its end. Until then the job is found by the label that Vertex AI Pipelines puts
on a run and on every custom job that comes of it:
https://cloud.google.com/vertex-ai/docs/pipelines/gcpc-label-propagation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.connection import (
    REQUEST_SECONDS,
    job_service,
    location_of,
    service_errors,
    tried_again,
)
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import step_components
from gpu_pipelines.targets.vertex.run_state import RunState

_LABEL = "vertex-ai-pipelines-run-billing-id"


class LaunchedJobs:
    """Looks for the jobs of steps that run, until it has found each.

    Args:
        settings: project and region.
    """

    def __init__(self, settings: ProjectSettings) -> None:
        self._settings = settings
        self._jobs: dict[str, str] = {}
        self._may_look = True

    def added_to(self, run: RunState, job: Any) -> RunState:
        """A run with the jobs that its steps have launched.

        Args:
            run: how far it is.
            job: the same as the service's `PipelineJob`.
        """
        running = {step.name for step in run.steps if step.state == "running"} - self._jobs.keys()
        step_by_name = {name: step for name, step in _launchers(job.pipeline_spec).items() if step in running}
        if step_by_name and self._may_look and (label := job.labels.get(_LABEL)):
            self._look(label, step_by_name)
        return replace(run, steps=tuple(self._with_job(step) for step in run.steps))

    def _with_job(self, step: Any) -> Any:
        launched = self._jobs.get(step.name)
        return replace(step, jobs=(*step.jobs, launched)) if launched and launched not in step.jobs else step

    def _look(self, label: str, step_by_name: Mapping[str, str]) -> None:
        request = {"parent": location_of(self._settings), "filter": f'labels.{_LABEL}="{label}"'}
        try:
            with service_errors("Looking for the jobs of the run"):
                listed = job_service(self._settings).list_custom_jobs(
                    request=request, timeout=REQUEST_SECONDS, retry=tried_again()
                )
                for custom_job in listed:
                    if custom_job.display_name in step_by_name:
                        self._jobs.setdefault(step_by_name[custom_job.display_name], custom_job.name)
        except UserError:
            # The lines of these steps come at their end then.
            self._may_look = False


def _launchers(spec: Any) -> dict[str, str]:
    """The tasks that launch a custom job, by the display name that they give it."""
    found = {}
    for name, component in step_components(spec).items():
        parameters = component.get("inputDefinitions", {}).get("parameters", {})
        if "worker_pool_specs" in parameters and "defaultValue" in parameters["display_name"]:
            found[str(parameters["display_name"]["defaultValue"])] = name
    return found
