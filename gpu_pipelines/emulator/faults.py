"""Failures that a test orders: error answers, slow answers, and answers that are lost after the request took effect."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

#: What Google's services say with a status, where the test does not say otherwise.
MESSAGES = {
    400: "Request contains an invalid argument.",
    401: "Request had invalid authentication credentials.",
    403: "Permission 'aiplatform.customJobs.create' denied on resource "
    "'//aiplatform.googleapis.com/projects/example-project/locations/us-central1' (or it may not exist).",
    404: "Requested entity was not found.",
    429: "The following quota metrics exceed quota limits: "
    "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus",
    500: "Internal error encountered.",
    503: "The service is currently unavailable.",
    504: "Deadline exceeded.",
}


@dataclass
class Fault:
    """What happens to the next requests of a kind.

    Attributes:
        pattern: regular expression, looked for in `METHOD /path` of REST and in `GRPC Method` of gRPC.
        status: HTTP status of the answer; 0 answers nothing and closes the connection; None answers as usual.
        times: how many requests it is for.
        message: Google's message.
        took_effect: whether the request is carried out before the answer is spoilt.
        seconds: how long the answer is held back.
    """

    pattern: str
    status: int | None
    times: int
    message: str
    took_effect: bool
    seconds: float


class Faults:
    """The failures that are ordered and have not happened yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Orders one."""
        with self._lock:
            self._faults.append(fault)

    def take(self, call: str) -> Fault | None:
        """The failure for a request, if one is ordered; it is used up by that."""
        with self._lock:
            for fault in self._faults:
                if re.search(fault.pattern, call):
                    fault.times -= 1
                    if fault.times == 0:
                        self._faults.remove(fault)
                    return fault
        return None
