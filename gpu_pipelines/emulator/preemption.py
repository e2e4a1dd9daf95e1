"""When Spot machines are preempted: by chance, the same with the same seed, and when a test orders it.

What runs on a machine of Spot gets SIGTERM, and the machine is gone after a grace period; the job is started again.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.errors import UserError

#: How often the service starts the machines of a job again after a preemption: page on Spot VMs of custom training.
MOST_RESTARTS = 6
_FORM = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>s?)(:(?P<times>[1-9]\d*))?")
_MINUTE_S = 60.0


@dataclass(frozen=True)
class PreemptionRule:
    """How often Spot machines are preempted.

    Attributes:
        seconds: after so many one machine of each job is, each time; None: by chance.
        probability: how likely a machine is preempted in a minute.
        times: how many there are in all; None: without an end.
    """

    seconds: float | None = None
    probability: float = 0.0
    times: int | None = None

    @classmethod
    def of(cls, text: str) -> PreemptionRule:
        """From 20s (seconds) or 0.1 (a probability), with :N for N preemptions in all.

        Raises:
            UserError: it has another form.
        """
        match = _FORM.fullmatch(text)
        number = float(match["number"]) if match else 0.0
        if match is None or number == 0 or (not match["unit"] and number > 1):
            raise UserError(
                f"--preempt {text!r} is neither seconds nor a probability.",
                "20s: after 20 seconds a machine of each Spot job; 0.1: that likely in a minute, each machine. "
                "20s:3: three times in all.",
            )
        times = int(match["times"]) if match["times"] else None
        return cls(number, 0.0, times) if match["unit"] else cls(None, number, times)


@dataclass(frozen=True)
class Preemption:
    """The next one of a job: so many seconds after its machines were started, and which of its replicas."""

    seconds: float
    replica: int


class Preemptions:
    """The preemptions of all jobs.

    Args:
        rule: how often; None: only those that are ordered.
        seed: of the chance.
    """

    def __init__(self, rule: PreemptionRule | None = None, seed: int = 0) -> None:
        self._rule, self._seed = rule, seed
        self._left = rule.times if rule else 0
        self._jobs: dict[str, int] = {}
        self._lock = threading.Lock()

    def of_job(self, job: Any, replicas: int) -> Callable[[], Preemption | None]:
        """What gives the next preemption of a job, each time that its machines were started.

        Jobs are told apart by their display name and their turn among those of that name, which are the same each time.
        """
        rule = self._rule
        if rule is None or not is_spot(job):
            return lambda: None
        with self._lock:
            turn = self._jobs[job.display_name] = self._jobs.get(job.display_name, 0) + 1
        chance = random.Random(f"{self._seed} {job.display_name} {turn}")  # noqa: S311

        def following() -> Preemption:
            if rule.seconds is not None:
                return Preemption(rule.seconds, chance.randrange(replicas))
            lives = [_life(chance, rule.probability) for _ in range(replicas)]
            return Preemption(min(lives), lives.index(min(lives)))

        return following

    def take(self) -> bool:
        """Whether one more may happen; it is counted by that."""
        with self._lock:
            if self._left is None:
                return True
            self._left -= 1
            return self._left >= 0


def is_spot(job: Any) -> bool:
    """Whether the machines of a job can be preempted: Flex-start's cannot, though they count in Spot's quota."""
    strategies = api.Scheduling.Strategy
    return job.job_spec.scheduling.strategy in (strategies.SPOT, strategies.LOW_COST)


def stockout(region: str) -> str:
    """What the service says when it finds no machines."""
    return (
        f"Resources are insufficient in region: {region}. Try a different region or use a different accelerator. "
        "(STOCKOUT)"
    )


def _life(chance: random.Random, probability: float) -> float:
    """Seconds that a machine lives which is preempted in each minute with a probability."""
    minutes = 0
    while chance.random() >= probability:
        minutes += 1
    return _MINUTE_S * (minutes + chance.random())
