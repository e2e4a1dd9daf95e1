"""Preemptions of Spot machines: random, the same with the same seed, or ordered by a test.

A process on a Spot machine gets SIGTERM, and the machine is gone after a grace period; the job is started again.
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
    """The frequency of preemptions.

    Attributes:
        seconds: after this many seconds one machine of each job is preempted, each time; None for random ones.
        probability: the probability of a machine's preemption in a minute.
        times: the number of preemptions in all; None for no limit.
    """

    seconds: float | None = None
    probability: float = 0.0
    times: int | None = None

    @classmethod
    def of(cls, text: str) -> PreemptionRule:
        """Parses 20s (seconds) or 0.1 (a probability), with :N for N preemptions in all.

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
    """The next preemption of a job: seconds after the start of its machines, and the index of the replica."""

    seconds: float
    replica: int


class Preemptions:
    """The preemptions of all jobs.

    Args:
        rule: the frequency; None for only those that are ordered.
        seed: the seed of random ones.
    """

    def __init__(self, rule: PreemptionRule | None = None, seed: int = 0) -> None:
        self._rule, self._seed = rule, seed
        self._left = rule.times if rule else 0
        self._jobs: dict[str, int] = {}
        self._lock = threading.Lock()

    def of_job(self, job: Any, replicas: int) -> Callable[[], Preemption | None]:
        """Returns a function for the next preemption of a job, called each time that its machines were started.

        Jobs are identified by display name and their position among those of that name, which are the same each time.
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
        """Whether one more may happen; if so, it is counted."""
        with self._lock:
            if self._left is None:
                return True
            self._left -= 1
            return self._left >= 0


def is_spot(job: Any) -> bool:
    """Whether the machines of a job can be preempted: those of Flex-start cannot, though they use Spot's quota."""
    strategies = api.Scheduling.Strategy
    return job.job_spec.scheduling.strategy in (strategies.SPOT, strategies.LOW_COST)


def stockout(region: str) -> str:
    """The service's message if it finds no machines."""
    return (
        f"Resources are insufficient in region: {region}. Try a different region or use a different accelerator. "
        "(STOCKOUT)"
    )


def _life(chance: random.Random, probability: float) -> float:
    """A random lifetime of a machine, seconds, for a probability of preemption in a minute."""
    minutes = 0
    while chance.random() >= probability:
        minutes += 1
    return _MINUTE_S * (minutes + chance.random())
