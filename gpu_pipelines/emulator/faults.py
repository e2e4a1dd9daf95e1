"""Failures ordered by a test: error answers, slow answers, and answers lost after the request took effect."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_pipelines.errors import UserError

#: Google's usual messages by status.
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
    """A failure of the next requests of a kind.

    Attributes:
        pattern: regular expression, searched in `METHOD /path` for REST and in `GRPC Method` for gRPC.
        status: HTTP status of the answer; 0 answers nothing and closes the connection; None answers as usual.
        times: the number of requests.
        message: Google's message.
        took_effect: whether the request is carried out before the answer fails.
        seconds: how long to hold the answer back.
    """

    pattern: str
    status: int | None
    times: int
    message: str
    took_effect: bool
    seconds: float


#: The requests of each service, as `Fault.pattern`.
SERVICES = {
    "aiplatform": r"^GRPC (?!CreateReadSession$|ReadRows$)|/v1/projects/[^/]+/locations/[^/]+/(?!repositories/)",
    "artifactregistry": r"/repositories/",
    "bigquery": r"^GRPC (CreateReadSession|ReadRows)$| (/upload)?/bigquery/",
    "logging": r"/v2/entries",
    "storage": r" /(storage|upload(?!/bigquery)|download|batch)/",
}


@dataclass(frozen=True)
class Rate:
    """Random failures of a service.

    Attributes:
        service: one of `SERVICES`.
        code: HTTP status of the answers.
        rate: the share of its requests that fail, from 0 to 1.
    """

    service: str
    code: int
    rate: float

    @classmethod
    def of(cls, text: str) -> Rate:
        """Parses SERVICE:CODE:RATE.

        Raises:
            UserError: it has another form.
        """
        service, _, rest = text.partition(":")
        code, _, rate = rest.partition(":")
        try:
            made = cls(service, int(code), float(rate))
            fits = service in SERVICES and made.code in MESSAGES and 0 <= made.rate <= 1
        except ValueError:
            fits = False
        if not fits:
            raise UserError(
                f"--fault {text!r} is not of the form SERVICE:CODE:RATE.",
                f"Services: {', '.join(SERVICES)}; codes: {', '.join(map(str, MESSAGES))}; a rate from 0 to 1. "
                "aiplatform:503:0.1, say.",
            )
        return made


class Faults:
    """The ordered failures that have not happened yet, and the random ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._rates: Sequence[Rate] = ()
        self._chance = random.Random()  # noqa: S311

    def by_chance(self, rates: Sequence[Rate], seed: int) -> None:
        """Sets the rates of failures; the same requests in the same order fail with the same seed."""
        self._rates, self._chance = rates, random.Random(seed)  # noqa: S311

    def add(self, fault: Fault) -> None:
        """Orders one."""
        with self._lock:
            self._faults.append(fault)

    def take(self, call: str) -> Fault | None:
        """The failure for a request, if one is ordered, which is then used up."""
        with self._lock:
            for fault in self._faults:
                if re.search(fault.pattern, call):
                    fault.times -= 1
                    if fault.times == 0:
                        self._faults.remove(fault)
                    return fault
            for each in self._rates:
                if re.search(SERVICES[each.service], call) and self._chance.random() < each.rate:
                    return Fault(call, each.code, 1, MESSAGES[each.code], False, 0.0)
        return None
