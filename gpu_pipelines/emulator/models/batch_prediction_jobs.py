"""Batch prediction jobs: create, get, list, cancel, delete, and their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.jobs.capacity import check_serving_quota
from gpu_pipelines.emulator.jobs.job_states import STATES, Jobs, now
from gpu_pipelines.emulator.models.batch_prediction_rules import accelerators_of_batch, check_batch_prediction
from gpu_pipelines.emulator.models.models import Models
from gpu_pipelines.emulator.names import Names, region_of
from gpu_pipelines.emulator.operations import Operations
from gpu_pipelines.emulator.state_folder import StateFolder

#: Fields that are ignored in a client's request.
_OF_THE_SERVICE = (
    *("name", "model_version_id", "output_info", "state", "error", "partial_failures", "resources_consumed"),
    *("completion_stats", "create_time", "start_time", "end_time", "update_time"),
)


class BatchPredictionJobs(Jobs):
    """The batch prediction jobs of all projects.

    Attributes:
        jobs, stop, hold_s: as in `Jobs`.
        start: called with the name of a new job, to run it; does nothing unless models are run.
        check: called with a job and its model; raises ApiError if it cannot be run.
        limits: GPUs by quota metric and region.
    """

    def __init__(
        self, names: Names, operations: Operations, models: Models, page_size: int, state: StateFolder
    ) -> None:
        super().__init__(names, api.ListBatchPredictionJobsResponse, page_size, state)
        self.start: Callable[[str], None] = lambda name: None
        self.check: Callable[[Any, Any], None] = lambda job, model: None
        self.limits: Mapping[str, Mapping[str, int]] = {}
        self._operations, self._models = operations, models

    def create(self, request: Any) -> Any:
        """CreateBatchPredictionJob."""
        parent, moment = self._names.number(request.parent), now()
        check_batch_prediction(request.batch_prediction_job, region_of(parent))
        job = api.BatchPredictionJob(request.batch_prediction_job)
        for field in _OF_THE_SERVICE:
            api.BatchPredictionJob.pb(job).ClearField(field)
        if job.model:
            if not self._names.number(job.model).startswith(f"{parent}/models/"):
                raise ApiError(400, f"The model {job.model} is not in {parent}.")
            model = self._models.get(api.GetModelRequest(name=job.model))
            job.model, job.model_version_id = model.name, model.version_id
        self.check(job, self.model_of(job))
        with self._changed:
            left = [accelerators_of_batch(other) for other in self.left_in(parent)]
            check_serving_quota(accelerators_of_batch(job), region_of(parent), left, self.limits)
            job.name, job.state = self._names.new(parent, self._kind), STATES.JOB_STATE_PENDING
            job.create_time = job.update_time = moment
            self.keep(job)
        self.start(job.name)
        return self._copy(job)

    def model_of(self, job: Any) -> Any:
        """The model of a job: one from the registry, or the job's own."""
        if not job.model:
            return job.unmanaged_container_model
        return self._models.get(api.GetModelRequest(name=f"{job.model}@{job.model_version_id}"))

    def delete(self, request: Any) -> Any:
        """DeleteBatchPredictionJob, for a job that has ended."""
        return self._operations.done(self.remove(request.name))
