"""Pipeline jobs: create, get, list, cancel, delete; tests set the states of their tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from google.cloud import aiplatform_v1 as api
from google.protobuf import empty_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from gpu_pipelines.emulator.api_error import ApiError, as_warning
from gpu_pipelines.emulator.jobs.job_states import EMULATOR_ENDED, now
from gpu_pipelines.emulator.jobs.rules import check_name_and_labels, check_steps, raise_found
from gpu_pipelines.emulator.names import Names, Resources
from gpu_pipelines.emulator.operations import Operations
from gpu_pipelines.emulator.pipelines.format import deployment_of, parsed_spec
from gpu_pipelines.emulator.pipelines.payload import tasks_outside_of_loops
from gpu_pipelines.emulator.pipelines.run_metadata import PipelineMetadata
from gpu_pipelines.emulator.project.logs import Logs
from gpu_pipelines.emulator.state_folder import StateFolder
from gpu_pipelines.emulator.transcoding import as_json

STATES: Any = api.PipelineState
TASK_STATES: Any = api.PipelineTaskDetail.State
ENDED = (STATES.PIPELINE_STATE_SUCCEEDED, STATES.PIPELINE_STATE_FAILED, STATES.PIPELINE_STATE_CANCELLED)
_TASK_ENDED = (
    TASK_STATES.SUCCEEDED,
    TASK_STATES.CANCELLED,
    TASK_STATES.FAILED,
    TASK_STATES.SKIPPED,
    TASK_STATES.NOT_TRIGGERED,
)
#: Artifacts by the name of an input or output, in the form of the executor input.
Artifacts = Mapping[str, Sequence[Mapping[str, Any]]]
#: https://cloud.google.com/vertex-ai/docs/pipelines/gcpc-label-propagation.
RUN_LABEL = "vertex-ai-pipelines-run-billing-id"
_JOB_ID = re.compile(r"[a-z][-a-z0-9]{0,127}")


class PipelineJobs(Resources):
    """The pipeline jobs of all projects.

    Attributes:
        jobs: by name.
        check: called with the specification of a new job; raises ApiError to refuse it.
        start: called with the name of a new job, to run it.
        stop: called with the name of a cancelled job.
    """

    def __init__(
        self,
        names: Names,
        operations: Operations,
        logs: Logs,
        page_size: int,
        state: StateFolder,
        metadata: PipelineMetadata,
    ) -> None:
        super().__init__(names, api.ListPipelineJobsResponse, page_size, state)
        self.jobs = self.held
        self.check: Callable[[dict[str, Any]], None] = lambda spec: None
        self.start: Callable[[str], None] = lambda name: None
        self.stop: Callable[[str], None] = lambda name: None
        self._operations, self._logs, self._metadata = operations, logs, metadata
        self._specs: dict[str, Any] = {}

    def create(self, request: Any) -> Any:
        """CreatePipelineJob."""
        parent, given = self._names.number(request.parent), request.pipeline_job
        key = request.pipeline_job_id
        if key and not _JOB_ID.fullmatch(key):
            raise ApiError(400, f"Pipeline job id {key} does not match {_JOB_ID.pattern}.")
        check_pipeline_job(given)
        self.check(as_json(given).get("pipelineSpec") or {})
        name = self._names.new(parent, "pipelineJobs", key)
        with self._lock:
            if name in self.jobs:
                raise ApiError(409, f"Pipeline job {name} already exists.")
            job = api.PipelineJob(given)
            job.name, job.state = name, STATES.PIPELINE_STATE_PENDING
            job.create_time = job.update_time = now()
            self.keep(job)
        self.start(name)
        return self._copy(job)

    def get(self, request: Any) -> Any:
        """GetPipelineJob."""
        job = self.one(request.name)
        with self._lock:
            self._metadata.refresh(job)
        return self._copy(job)

    def cancel(self, request: Any) -> Any:
        """CancelPipelineJob."""
        job = self.one(request.name)
        if job.state in ENDED:
            raise ApiError(400, f"Cannot cancel a run in state {STATES(job.state).name}.", "FAILED_PRECONDITION")
        with self._lock:
            for task in job.job_detail.task_details:
                if task.state not in _TASK_ENDED:
                    self.set_task(job.name, task.task_name, "CANCELLED")
        self.end(job.name, "CANCELLED")
        self.stop(job.name)
        return empty_pb2.Empty()

    def delete(self, request: Any) -> Any:
        """DeletePipelineJob."""
        job = self.one(request.name)
        if job.state not in ENDED:
            raise ApiError(400, f"Cannot delete a run in state {STATES(job.state).name}.", "FAILED_PRECONDITION")
        self.forget(job.name)
        return self._operations.done(job.name)

    def list(self, request: Any) -> Any:
        """ListPipelineJobs; with a read mask, only its fields."""
        answer = super().list(request)
        if not request.read_mask.paths:
            return answer
        masked = []
        for job in answer.pipeline_jobs:
            masked.append(api.PipelineJob())
            with self._lock:
                request.read_mask.MergeMessage(api.PipelineJob.pb(job), api.PipelineJob.pb(masked[-1]))
        return api.ListPipelineJobsResponse(pipeline_jobs=masked, next_page_token=answer.next_page_token)

    def begin(self, name: str) -> None:
        """Starts a pipeline job, with all its tasks waiting; one that was cancelled before stays so."""
        job = self.one(name)
        with self._lock:
            if job.state in ENDED:
                return
            job.state = STATES.PIPELINE_STATE_RUNNING
            job.start_time = job.update_time = now()
            # The service's own label, on every resource of the run.
            job.labels.setdefault(RUN_LABEL, self._names.new(job.name, "runs").rpartition("/")[2])
            spec = as_json(job)["pipelineSpec"]
            self._add_task(job, spec["pipelineInfo"]["name"], TASK_STATES.RUNNING)
            for task in dict.fromkeys(tasks_outside_of_loops(spec, spec["root"])):
                self._add_task(job, task, TASK_STATES.PENDING)
            self._metadata.begin(job)
            self.keep(job)

    def set_task(self, name: str, task: str, state: str, error: str = "", custom_job: str = "") -> None:
        """Sets the state of a task of a pipeline job.

        Args:
            name: resource name of a running pipeline job.
            task: name of the task.
            state: name of a `PipelineTaskDetail.State`, such as RUNNING.
            error: the error message of a failed task.
            custom_job: resource name of the custom job that the task has created, if any.
        """
        job = self.one(name)
        with self._lock:
            detail = self._task(job, task)
            # A cancelled task stays cancelled, whatever it does until it has ended.
            detail.state = detail.state if detail.state == TASK_STATES.CANCELLED else TASK_STATES[state]
            job.update_time = now()
            if state != "PENDING" and "start_time" not in detail:
                detail.start_time = now()
            if detail.state in _TASK_ENDED:
                detail.end_time = now()
            if error:
                detail.error = {"code": 9, "message": error}
            if custom_job:
                region = custom_job.split("/")[3]
                uri = f"https://{region}-aiplatform.googleapis.com/v1/{custom_job}"
                resources = {"resources": [{"resourceType": "CustomJob", "resourceUri": uri}]}
                # google-cloud-aiplatform reads it there, in model_evaluation_job.py.
                _add_metadata(detail, {"output:gcp_resources": json.dumps(resources)})
            self.keep(job)

    def set_inputs(self, name: str, task: str, parameters: Mapping[str, Any], artifacts: Artifacts) -> None:
        """Sets the input parameters and artifacts of a task; artifacts are in the form of the executor input.

        They are written with the state of the task, which follows: a write of a job of 300 tasks takes a moment.
        """
        job = self.one(name)
        with self._lock:
            detail = self._task(job, task)
            _add_metadata(detail, {f"input:{key}": value for key, value in parameters.items()})
            for key, given in artifacts.items():
                detail.inputs[key] = _listed(given)

    def set_outputs(self, name: str, task: str, parameters: Mapping[str, Any], artifacts: Artifacts) -> None:
        """Sets the output parameters and artifacts of a task; without a task, those of the pipeline itself.

        They are written with the state that follows.
        """
        job = self.one(name)
        with self._lock:
            detail = self._task(job, task) if task else job.job_detail.task_details[0]
            _add_metadata(detail, {f"output:{key}": value for key, value in parameters.items()})
            for key, made in artifacts.items():
                detail.outputs[key] = _listed(made)

    def end(self, name: str, state: str, error: str = "") -> None:
        """Ends a pipeline job: SUCCEEDED, FAILED or CANCELLED, whichever comes first."""
        job = self.one(name)
        with self._lock:
            if job.state in ENDED:
                return
            # Clients that see the end of a job also find its outputs and its error.
            with as_warning():
                self._metadata.end(job, state)
            job.end_time = job.update_time = now()
            if error:
                job.error = {"code": 9, "message": error}
            if job.job_detail.task_details:
                job.job_detail.task_details[0].state = TASK_STATES[state]
            job.state = STATES[f"PIPELINE_STATE_{state}"]
            with as_warning():
                self.keep(job)

    def document(self, job: Any) -> dict[str, Any]:
        """The JSON of a job; that of its pipeline, which never changes, is made once while it runs."""
        plain = api.PipelineJob.pb(job)
        rest = type(plain)()
        rest.CopyFrom(plain)
        rest.ClearField("pipeline_spec")
        found = as_json(rest)
        if job.name not in self._specs:
            self._specs[job.name] = as_json(plain.pipeline_spec)
        spec = self._specs.pop(job.name) if job.state in ENDED else self._specs[job.name]
        return {**found, "pipelineSpec": spec} if spec else found

    def end_of_before(self) -> None:
        """Ends the jobs that were running when the previous emulator ended, and their tasks."""
        for job in list(self.held.values()):
            if job.state in ENDED:
                continue
            for task in job.job_detail.task_details:
                if task.state == TASK_STATES.RUNNING:
                    task.state, task.end_time = TASK_STATES.FAILED, now()
                    task.error = {"code": 9, "message": EMULATOR_ENDED}
            self.end(job.name, "FAILED", EMULATOR_ENDED)

    def say(self, name: str, task: str, lines: Iterable[str]) -> None:
        """Writes log lines of a task's container."""
        job = self.one(name)
        main = self._task(job, task).executor_detail.container_detail.main_job
        labels = {"job_id": main.rpartition("/")[2], "task_name": "workerpool0-0"}
        for line in lines:
            self._logs.write(self._names.project(job.name), "ml_job", labels, line)

    def _add_task(self, job: Any, name: str, state: Any) -> None:
        """The first task that is added is the pipeline's own, the parent of the others."""
        details = job.job_detail.task_details
        parent = details[0].task_id if details else 0
        detail: Any = api.PipelineTaskDetail(
            task_id=int(self._names.new(job.name, "tasks").rpartition("/")[2]),
            parent_task_id=parent,
            task_name=name,
            create_time=now(),
            state=state,
        )
        if parent:
            location = "/".join(job.name.split("/")[:4])
            detail.executor_detail = {"container_detail": {"main_job": self._names.new(location, "customJobs")}}
        details.append(detail)

    def _task(self, job: Any, name: str) -> Any:
        # The first is the pipeline's own, which may have the name of one of its tasks.
        for place, detail in enumerate(api.PipelineJob.pb(job).job_detail.task_details):
            if place and detail.task_name == name:
                return job.job_detail.task_details[place]
        # The iterations of a loop are known when it begins.
        self._add_task(job, name, TASK_STATES.PENDING)
        return job.job_detail.task_details[-1]


def _add_metadata(detail: Any, values: Mapping[str, Any]) -> None:
    """Extends the metadata of a task's execution, where Vertex AI has the values of its parameters."""
    if values:
        held = as_json(detail.execution).get("metadata", {})
        detail.execution = api.Execution(metadata={**held, **values})


def _listed(artifacts: Sequence[Mapping[str, Any]]) -> Any:
    return api.PipelineTaskDetail.ArtifactList(
        artifacts=[
            api.Artifact(
                uri=each.get("uri", ""),
                schema_title=each.get("type", {}).get("schemaTitle", ""),
                metadata=each.get("metadata") or {},
            )
            for each in artifacts
        ]
    )


def check_pipeline_job(job: Any) -> None:
    """Checks a pipeline job for creation, also by a schedule.

    Raises:
        ApiError: its specification cannot be parsed, or its parameters do not match the specification.
    """
    raise_found([found for found in check_name_and_labels(job) if job.display_name or found[0] != "display_name"])
    document = as_json(job)
    if not job.runtime_config.gcs_output_directory.startswith("gs://"):
        raise ApiError(400, "gcs_output_directory must be a Google Cloud Storage URI.")
    spec = parsed_spec(document.get("pipelineSpec") or {})
    raise_found(list(check_steps(deployment_of(document.get("pipelineSpec") or {}).executors)))
    parameters = spec.root.input_definitions.parameters
    given = document.get("runtimeConfig", {}).get("parameterValues", {})
    if unknown := sorted(set(given) - set(parameters)):
        raise ApiError(400, f"Parameter {unknown[0]} is not found in the pipeline's input definitions.")
    for name, definition in parameters.items():
        if name not in given and not definition.is_optional and not definition.HasField("default_value"):
            raise ApiError(400, f"Parameter {name} is required and has no value.")
        if name in given and not _fits(definition.parameter_type, given[name]):
            kind = pipeline_spec_pb2.ParameterType.ParameterTypeEnum.Name(definition.parameter_type)
            raise ApiError(400, f"Parameter {name} has a value {given[name]!r} that is no {kind}.")


def _fits(kind: int, value: Any) -> bool:
    kinds = pipeline_spec_pb2.ParameterType
    if kind == kinds.NUMBER_INTEGER:
        return isinstance(value, float) and value.is_integer()
    expected = {
        kinds.NUMBER_DOUBLE: float,
        kinds.STRING: str,
        kinds.BOOLEAN: bool,
        kinds.LIST: list,
        kinds.STRUCT: dict,
    }
    return isinstance(value, expected.get(kind, object))
