"""A run on Vertex AI in the form in which another run can continue it, read from the service's `PipelineJob`.

The service has the run as it was sent, and for each task the values of its parameters in the metadata of its execution
(`input:NAME`, `output:NAME`) and its artifacts; google-cloud-aiplatform reads them there, in `metadata/execution.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.google_cloud.connection import REQUEST_SECONDS, pipeline_service, service_errors, tried_again
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.runs.earlier import EarlierRun, Made, resumed_by
from gpu_pipelines.targets.vertex.runs.state import RUN_ENDS, STEP_STATES

_INPUT, _OUTPUT = "input:", "output:"


def earlier_run(name: str, settings: ProjectSettings) -> EarlierRun:
    """A run, with the known results of the runs that it continued.

    Args:
        name: its full name.
        settings: its project and region.

    Raises:
        UserError: there is no such run, or the service cannot be reached.
    """
    from google.protobuf import json_format

    with service_errors(f"Looking at the run {name.rpartition('/')[2]}"):
        job: Any = pipeline_service(settings).get_pipeline_job(name=name, timeout=REQUEST_SECONDS, retry=tried_again())
    document = json_format.MessageToDict(type(job).pb(job))
    spec = document.get("pipelineSpec", {})
    details = [each for each in job.job_detail.task_details if each.parent_task_id]
    states = {each.task_name: STEP_STATES.get(each.state.name, "waiting") for each in details}
    values = {each.task_name: _values(each) for each in details}
    state = job.state.name
    return EarlierRun(
        name=str(job.name),
        target="vertex",
        state=RUN_ENDS.get(state, state.removeprefix("PIPELINE_STATE_").lower()),
        spec=spec,
        parameters=document.get("runtimeConfig", {}).get("parameterValues", {}),
        states=states,
        made={each.task_name: _made(each, values[each.task_name]) for each in details},
        trainings={
            task: str(found[f"{_INPUT}checkpoint_uri"])
            for task, found in values.items()
            if found.get(f"{_INPUT}checkpoint_uri")
        },
        resumes=resumed_by(spec),
    )


def _values(detail: Any) -> dict[str, Any]:
    """The input and output parameters of a task, as the service has them."""
    from google.protobuf import json_format

    execution = type(detail).pb(detail).execution
    return dict(json_format.MessageToDict(execution).get("metadata", {}))


def _made(detail: Any, values: Mapping[str, Any]) -> Made:
    """The outputs of a task, without those that GCPC adds for a job."""
    from google.protobuf import json_format

    parameters = {key.removeprefix(_OUTPUT): value for key, value in values.items() if key.startswith(_OUTPUT)}
    held = json_format.MessageToDict(type(detail).pb(detail)).get("outputs", {})
    artifacts = {
        key: [{"uri": each.get("uri", ""), "metadata": each.get("metadata", {})} for each in listed["artifacts"]]
        for key, listed in held.items()
        if listed.get("artifacts")
    }
    return Made(parameters, artifacts)
