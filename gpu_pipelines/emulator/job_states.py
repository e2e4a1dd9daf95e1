"""The states that jobs of Vertex AI go through, and how clients wait for their ends."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timezone
from typing import Any

from google.cloud import aiplatform_v1 as api

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


def require_running(job: Any) -> None:
    """Raises ApiError for a job that has ended and is to be cancelled."""
    if job.state in ENDED:
        raise ApiError(400, f"Cannot cancel a job in state {STATES(job.state).name}.", "FAILED_PRECONDITION")


def require_ended(job: Any) -> None:
    """Raises ApiError for a job that has not ended and is to be deleted."""
    if job.state not in ENDED:
        raise ApiError(400, f"Cannot delete a job in state {STATES(job.state).name}.", "FAILED_PRECONDITION")


class WaitedJobs(Resources):
    """Jobs of one kind whose ends are waited for; arguments as of `Resources`.

    Attributes:
        jobs: by name.
        hold_s: for how many seconds a look over gRPC at a job that runs is held back, until it has ended. Clients that
            look every few seconds, as GCPC's launcher does, are answered at once when there is news.
    """

    def __init__(
        self, names: Names, listed: Any, field: str, page_size: int, state: StateFolder, kind: str, message: Any
    ) -> None:
        #: Is held while a job changes, and told of it.
        self._changed = threading.Condition()
        super().__init__(names, listed, field, page_size, self._changed, state, kind, message)
        self.jobs = self.held
        self.hold_s = 0.0

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
