"""The states that jobs of Vertex AI go through, and how clients wait for their ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from google.cloud import aiplatform_v1 as api
from google.protobuf import empty_pb2

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.names import Names, Resources
from gpu_pipelines.emulator.state_folder import StateFolder

STATES: Any = api.JobState
#: Why a job failed that was interrupted with the emulator.
EMULATOR_ENDED = "The emulator ended while this was running; its processes ended with it."
ENDED = (STATES.JOB_STATE_SUCCEEDED, STATES.JOB_STATE_FAILED, STATES.JOB_STATE_CANCELLED)


def now() -> datetime:
    """The time, as the API's messages have it."""
    return datetime.now(timezone.utc)


class Jobs(Resources):
    """Jobs of one kind, which run, are cancelled and end; arguments as of `Resources`.

    Attributes:
        jobs: by name.
        stop: is called with the name of a job that is cancelled; says whether it was running.
        hold_s: for how many seconds a look over gRPC at a job that runs is held back, until it has ended. Clients that
            look every few seconds, as GCPC's launcher does, are answered at once when there is news.
    """

    def __init__(self, names: Names, listed: Any, page_size: int, state: StateFolder) -> None:
        #: Is held while a job changes, and told of it.
        self._changed = threading.Condition()
        super().__init__(names, listed, page_size, state, self._changed)
        self.jobs = self.held
        self.stop: Callable[[str], bool] = lambda name: False
        self.hold_s = 0.0

    def left_in(self, parent: str) -> list[Any]:
        """The jobs of a project and region that have not ended."""
        with self._changed:
            held = list(self.held.values())
        return [job for job in held if job.name.startswith(f"{parent}/") and job.state not in ENDED]

    def cancel(self, request: Any) -> Any:
        """Cancels a job that has not ended."""
        job = self.one(request.name)
        if job.state in ENDED:
            raise ApiError(400, f"Cannot cancel a job in state {STATES(job.state).name}.", "FAILED_PRECONDITION")
        self.set_state(job.name, STATES.JOB_STATE_CANCELLING)
        if not self.stop(job.name):
            self.set_state(job.name, STATES.JOB_STATE_CANCELLED)
        return empty_pb2.Empty()

    def remove(self, name: str) -> str:
        """Forgets a job that has ended; returns its full name."""
        job = self.one(name)
        if job.state not in ENDED:
            raise ApiError(400, f"Cannot delete a job in state {STATES(job.state).name}.", "FAILED_PRECONDITION")
        self.forget(job.name)
        return str(job.name)

    def set_state(self, name: str, state: Any, error: str = "", code: int = 3, **fields: Any) -> None:
        """Brings a job into a state; one that is being cancelled does not begin to run.

        Args:
            name: resource name of the job.
            state: a `JobState` or its name, such as JOB_STATE_RUNNING.
            error: message of the error, of a job that has failed.
            code: google.rpc.Code of that.
            fields: others of the job that change with it.
        """
        job, moment = self.one(name), now()
        wanted = STATES[state] if isinstance(state, str) else state
        with self._changed:
            if job.state == STATES.JOB_STATE_CANCELLING and wanted not in ENDED:
                return
            for field, value in fields.items():
                setattr(job, field, value)
            job.update_time = moment
            # One that was preempted has begun before.
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

    def hold(self, request: Any) -> None:
        """Waits until a job has ended, for `hold_s` at most."""
        self._await(self.one(request.name), self.hold_s)

    def wait(self, name: str, seconds: float) -> Any:
        """Waits for the end of a job, and returns it; raises TimeoutError after so many seconds."""
        job = self.one(name)
        self._await(job, seconds)
        if job.state not in ENDED:
            raise TimeoutError(f"{name} is {STATES(job.state).name} after {seconds} s")
        return job

    def _await(self, job: Any, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._changed:
            while job.state not in ENDED and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
