"""Which failures of a training justify starting its processes again on the same machines."""

from __future__ import annotations

import time

from gpu_pipelines.errors import ConnectionLostError, NodeFailedError, ProcessFailedError, ProcessKilledError, UserError

#: Most restarts within a time in seconds; they do not mend what fails more often.
MOST_RESTARTS, WITHIN_SECONDS = 2, 3600.0
#: Texts of errors that come from a machine: NCCL's and Gloo's errors, those of memory and of the bus.
_OF_A_MACHINE = (
    *("NCCL", "DistBackendError", "onnection closed", "onnection reset", "roken pipe", "remote process"),
    *("uncorrectable ECC", "hardware error", "unspecified launch failure", "fallen off the bus", "InfiniBand"),
)


class Restarts:
    """Counts restarts of processes.

    Args:
        most: most restarts within an hour.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._began: list[float] = []

    def are_worth(self, error: UserError) -> bool:
        """Whether a failure may not happen again, and there were not too many of them."""
        now = time.monotonic()
        self._began = [began for began in self._began if now - began < WITHIN_SECONDS]
        return len(self._began) < self._most and is_of_a_machine(error)

    def note(self) -> str:
        """Notes one, and returns its number in words."""
        self._began.append(time.monotonic())
        return f"{len(self._began)} of {self._most} within an hour"


def is_of_a_machine(error: BaseException | None) -> bool:
    """Whether a process died of something outside the program: it was killed, or a device or a connection failed.

    An error message of the process for its user, and any other exception of a program, would happen again. On a machine
    that is gone nothing can be started.
    """
    if isinstance(error, NodeFailedError):
        return is_of_a_machine(error.__cause__)
    if isinstance(error, (ProcessKilledError, ConnectionLostError)):
        return True
    return type(error) is ProcessFailedError and any(sign in str(error) for sign in _OF_A_MACHINE)
