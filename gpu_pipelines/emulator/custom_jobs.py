"""Custom jobs: created, looked at, listed, cancelled; the states that they go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.cloud import aiplatform_v1 as api
from google.protobuf import empty_pb2

from gpu_pipelines.emulator.capacity import check_quota
from gpu_pipelines.emulator.job_states import EMULATOR_ENDED, ENDED, STATES, WaitedJobs, now, require_running
from gpu_pipelines.emulator.names import Names, region_of
from gpu_pipelines.emulator.rules import check_custom_job
from gpu_pipelines.emulator.state_folder import StateFolder


class CustomJobs(WaitedJobs):
    """The custom jobs of all projects.

    Attributes:
        jobs, hold_s: as of `WaitedJobs`.
        start: is called with a job that was created, to run it; does nothing unless replicas are run.
        stop: is called with the name of a job that is cancelled; says whether it was running.
        limits: GPUs by quota metric and region.
        check: is called with project and region, and the `CustomJobSpec` of a job; raises ApiError to refuse it.
    """

    def __init__(self, names: Names, page_size: int, state: StateFolder) -> None:
        answer = api.ListCustomJobsResponse
        super().__init__(names, answer, "custom_jobs", page_size, state, "customJobs", api.CustomJob)
        self.start: Callable[[Any], None] = lambda job: None
        self.stop: Callable[[str], bool] = lambda name: False
        self.check: Callable[[str, Any], None] = lambda parent, spec: None
        self.limits: Mapping[str, Mapping[str, int]] = {}

    def create(self, request: Any) -> Any:
        """CreateCustomJob."""
        parent = self._names.number(request.parent)
        check_custom_job(request.custom_job, region_of(parent))
        self.check(parent, request.custom_job.job_spec)
        check_quota(request.custom_job, region_of(parent), self._left_in(parent), self.limits)
        return self.begin(parent, request.custom_job)

    def begin(self, parent: str, asked: Any) -> Any:
        """Creates a job that is known to keep the rules, and starts it."""
        moment = now()
        # What the client says of fields that are the service's to set is passed over.
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

    def _left_in(self, parent: str) -> list[Any]:
        """The jobs of a project and region that have not ended."""
        with self._lock:
            held = list(self.held.values())
        return [job for job in held if job.name.startswith(f"{parent}/") and job.state not in ENDED]

    def get(self, request: Any) -> Any:
        """GetCustomJob."""
        return self._copy(self.one(request.name))

    def cancel(self, request: Any) -> Any:
        """CancelCustomJob."""
        job = self.one(request.name)
        require_running(job)
        self.set_state(job.name, STATES.JOB_STATE_CANCELLING)
        if not self.stop(job.name):
            self.set_state(job.name, STATES.JOB_STATE_CANCELLED)
        return empty_pb2.Empty()

    def set_state(self, name: str, state: Any, error: str = "", code: int = 3) -> None:
        """Brings a job into a state.

        Args:
            name: resource name of the job.
            state: a `JobState` or its name, such as JOB_STATE_RUNNING.
            error: message of the error, of a job that has failed.
            code: google.rpc.Code of that.
        """
        job, moment = self.one(name), now()
        wanted = STATES[state] if isinstance(state, str) else state
        with self._changed:
            job.update_time = moment
            if wanted == STATES.JOB_STATE_RUNNING and "start_time" not in job:
                job.start_time = moment
            if wanted in ENDED:
                job.end_time = moment
            if error:
                job.error = {"code": code, "message": error}
            # Last: whoever sees that a job has ended finds when and why.
            job.state = wanted
            self._changed.notify_all()
            self.keep(job)

    def end_of_before(self) -> None:
        """Ends the jobs that ran when the emulator ended before."""
        for job in list(self.held.values()):
            if job.state not in ENDED:
                self.set_state(job.name, STATES.JOB_STATE_FAILED, EMULATOR_ENDED)

    def state(self, name: str) -> str:
        """Name of a job's state."""
        return str(STATES(self.one(name).state).name)
