"""The states of Vertex AI's jobs, and how clients wait for their ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from google.cloud import aiplatform_v1 as api
from google.protobuf import empty_pb2

from gpu_pipelines.emulator.api_error import ApiError, as_warning
from gpu_pipelines.emulator.names import Names, Resources
from gpu_pipelines.emulator.state_folder import StateFolder

STATES: Any = api.JobState
#: The error of a job that was interrupted with the emulator.
EMULATOR_ENDED = "The emulator ended while this was running; its processes ended with it."
ENDED = (STATES.JOB_STATE_SUCCEEDED, STATES.JOB_STATE_FAILED, STATES.JOB_STATE_CANCELLED)


def now() -> datetime:
    """The time in the form of the API's messages."""
    return datetime.now(timezone.utc)


class Jobs(Resources):
    """Jobs of one kind, which run, are cancelled and end; arguments as for `Resources`.

    Attributes:
        jobs: by name.
        stop: called with the name of a cancelled job; returns whether it was running.
        hold_s: how many seconds a request over gRPC for a running job is held back, until it has ended. Clients that
            poll every few seconds, such as GCPC's launcher, then get news at once.
    """

    def __init__(self, names: Names, listed: Any, page_size: int, state: StateFolder) -> None:
        #: Held while a job changes, and notified of it.
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
        """Deletes a job that has ended; returns its full name."""
        job = self.one(name)
        if job.state not in ENDED:
            raise ApiError(400, f"Cannot delete a job in state {STATES(job.state).name}.", "FAILED_PRECONDITION")
        self.forget(job.name)
        return str(job.name)

    def set_state(self, name: str, state: Any, error: str = "", code: int = 3, **fields: Any) -> None:
        """Sets the state of a job; one that is being cancelled does not begin to run.

        Args:
            name: resource name of the job.
            state: a `JobState` or its name, such as JOB_STATE_RUNNING.
            error: the error message of a failed job.
            code: google.rpc.Code of the error.
            fields: other fields of the job that change with it.
        """
        job, moment = self.one(name), now()
        wanted = STATES[state] if isinstance(state, str) else state
        with self._changed:
            if job.state == STATES.JOB_STATE_CANCELLING and wanted not in ENDED:
                return
            for field, value in fields.items():
                setattr(job, field, value)
            job.update_time = moment
            # A preempted job has begun before.
            if wanted == STATES.JOB_STATE_RUNNING and "start_time" not in job:
                job.start_time = moment
            if wanted in ENDED:
                job.end_time = moment
            if error:
                job.error = {"code": code, "message": error}
            # Last, so that clients that see the end of a job also find its time and reason.
            job.state = wanted
            self._changed.notify_all()
            with as_warning():
                self.keep(job)

    def end_of_before(self) -> None:
        """Ends the jobs that were running when the previous emulator ended."""
        for job in list(self.held.values()):
            if job.state not in ENDED:
                self.set_state(job.name, STATES.JOB_STATE_FAILED, EMULATOR_ENDED)

    def hold(self, request: Any) -> None:
        """Waits until a job has ended, for `hold_s` at most."""
        self._await(self.one(request.name), self.hold_s)

    def wait(self, name: str, seconds: float) -> Any:
        """Waits for the end of a job, and returns it; raises TimeoutError after this many seconds."""
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
