"""Custom jobs: create, get, list, cancel, and their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.jobs.capacity import check_quota
from gpu_pipelines.emulator.jobs.job_states import STATES, Jobs, now
from gpu_pipelines.emulator.jobs.rules import check_custom_job
from gpu_pipelines.emulator.names import Names, region_of
from gpu_pipelines.emulator.state_folder import StateFolder


class CustomJobs(Jobs):
    """The custom jobs of all projects.

    Attributes:
        jobs, stop, hold_s: as in `Jobs`.
        start: called with a new job, to run it; does nothing unless replicas are run.
        limits: GPUs by quota metric and region.
        check: called with project and region, and the `CustomJobSpec` of a job; raises ApiError to refuse it.
    """

    def __init__(self, names: Names, page_size: int, state: StateFolder) -> None:
        super().__init__(names, api.ListCustomJobsResponse, page_size, state)
        self.start: Callable[[Any], None] = lambda job: None
        self.check: Callable[[str, Any], None] = lambda parent, spec: None
        self.limits: Mapping[str, Mapping[str, int]] = {}

    def create(self, request: Any) -> Any:
        """CreateCustomJob."""
        parent = self._names.number(request.parent)
        check_custom_job(request.custom_job, region_of(parent))
        self.check(parent, request.custom_job.job_spec)
        check_quota(request.custom_job, region_of(parent), self.left_in(parent), self.limits)
        return self.begin(parent, request.custom_job)

    def begin(self, parent: str, asked: Any) -> Any:
        """Creates a job that has passed the rules, and starts it."""
        moment = now()
        # The client's values of fields that the service sets are ignored.
        job = api.CustomJob(
            name=self._names.new(parent, "customJobs"),
            display_name=asked.display_name,
            job_spec=asked.job_spec,
            labels=dict(asked.labels),
            state=STATES.JOB_STATE_PENDING,
            create_time=moment,
            update_time=moment,
        )
        if "encryption_spec" in asked:
            job.encryption_spec = asked.encryption_spec
        self.keep(job)
        self.start(job)
        return self._copy(job)

    def state(self, name: str) -> str:
        """Name of a job's state."""
        return str(STATES(self.one(name).state).name)
