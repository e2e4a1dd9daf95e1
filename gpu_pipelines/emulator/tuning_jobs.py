"""Hyperparameter tuning jobs: created, and held to the rules of their trials' custom jobs."""

from __future__ import annotations

from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.names import Names, region_of, restored
from gpu_pipelines.emulator.rules import check_custom_job
from gpu_pipelines.emulator.state_folder import StateFolder
from gpu_pipelines.emulator.transcoding import as_json

_KIND = "hyperparameterTuningJobs"


class TuningJobs:
    """The hyperparameter tuning jobs of all projects.

    Attributes:
        jobs: by name.
    """

    def __init__(self, names: Names, state: StateFolder) -> None:
        message = api.HyperparameterTuningJob
        self.jobs: dict[str, Any] = {job.name: job for job in restored(state, _KIND, message)}
        self._names, self._state = names, state

    def create(self, request: Any) -> Any:
        """CreateHyperparameterTuningJob."""
        parent, asked = self._names.number(request.parent), request.hyperparameter_tuning_job
        trial = api.CustomJob(display_name=asked.display_name, job_spec=asked.trial_job_spec, labels=dict(asked.labels))
        check_custom_job(trial, region_of(parent))
        if not (asked.study_spec.metrics and asked.study_spec.parameters):
            raise ApiError(400, "A study needs metrics and parameters.")
        if asked.max_trial_count < 1 or asked.parallel_trial_count < 1:
            raise ApiError(400, "There is at least one trial.")
        name = self._names.new(parent, "hyperparameterTuningJobs")
        job = api.HyperparameterTuningJob(asked, name=name, state=api.JobState.JOB_STATE_PENDING)
        self._state.write(_KIND, name, as_json(job))
        self.jobs[name] = job
        return job
