"""The available machines by region and accelerator, the jobs that have them, and the quotas of a project.

Machines that are not declared are unlimited.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.jobs.preemption import is_spot
from gpu_pipelines.emulator.jobs.rules import FLEX_START
from gpu_pipelines.errors import UserError

#: The default wait of Flex-start: reference of `Scheduling.max_wait_duration`.
_LONGEST_WAIT_S = 24 * 3600.0
_FORM = re.compile(r"(?P<region>[a-z]+(-[a-z]+)+\d+):(?P<accelerator>[A-Z0-9_]+)=(?P<number>\d+)")
_LOOK_S = 0.05
#: Region and accelerator, by the name in `AcceleratorType`.
Place = tuple[str, str]


def places_of(option: str, texts: Iterable[str]) -> dict[Place, int]:
    """Accelerators by place, from texts like us-central1:NVIDIA_L4=2.

    Args:
        option: the option that gave them, such as --capacity.
        texts: one for each place.

    Raises:
        UserError: a text has another form, or names an accelerator that Vertex AI does not have.
    """
    found: dict[Place, int] = {}
    known = sorted(gpu.enum for gpu in load_catalog().gpus.values())
    for text in texts:
        match = _FORM.fullmatch(text)
        if match is None:
            raise UserError(
                f"{option} {text!r} is not of the form REGION:ACCELERATOR=NUMBER.", "us-central1:NVIDIA_L4=2, say."
            )
        if match["accelerator"] not in known:
            raise UserError(
                f"{option} {text!r}: Vertex AI has no accelerator {match['accelerator']}.",
                f"Those that there are: {', '.join(known)}.",
            )
        found[match["region"], match["accelerator"]] = int(match["number"])
    return found


def accelerators_of(spec: Any) -> Counter[str]:
    """The accelerators of a `CustomJobSpec`, by type; none on a persistent resource, which has its own."""
    found: Counter[str] = Counter()
    if spec.persistent_resource_id:
        return found
    for pool in spec.worker_pool_specs:
        if machine := pool.machine_spec.accelerator_count:
            found[api.AcceleratorType(pool.machine_spec.accelerator_type).name] += machine * pool.replica_count
    return found


class Capacity:
    """The available machines.

    Args:
        limits: accelerators by place; others are unlimited.
    """

    def __init__(self, limits: Mapping[Place, int] | None = None) -> None:
        self._limits = dict(limits or {})
        self._changed = threading.Condition()
        self._used: dict[str, dict[Place, int]] = {}
        self._queue: list[tuple[str, set[Place]]] = []

    def used(self) -> Counter[Place]:
        """The accelerators in use, by place."""
        with self._changed:
            return self._sum()

    def take(self, name: str, region: str, wanted: Mapping[str, int]) -> bool:
        """Takes machines for a job, if they are free now.

        Args:
            name: the name of the job; one that already has machines takes no more.
            region: the region.
            wanted: number by accelerator.
        """
        with self._changed:
            return self._take(name, region, wanted)

    def wait(
        self, name: str, region: str, wanted: Mapping[str, int], seconds: float | None, given_up: Callable[[], bool]
    ) -> bool:
        """Queues for machines, behind earlier requests for the same; returns whether the job got them.

        Args:
            name: the name of the job.
            region: the region.
            wanted: number by accelerator.
            seconds: the longest wait; None waits for ever.
            given_up: whether the job no longer wants them.
        """
        until = None if seconds is None else time.monotonic() + seconds
        turn = name, {(region, accelerator) for accelerator in wanted}
        with self._changed:
            self._queue.append(turn)
            try:
                while not given_up():
                    if self._is_first(turn) and self._take(name, region, wanted):
                        return True
                    if until is not None and time.monotonic() >= until:
                        return False
                    self._changed.wait(_LOOK_S)
                return False
            finally:
                self._queue.remove(turn)
                self._changed.notify_all()

    def limit(self, region: str, accelerator: str, number: int) -> None:
        """Changes the number of machines; jobs that have more keep theirs until they end, or are preempted."""
        with self._changed:
            self._limits[region, accelerator] = number
            self._changed.notify_all()

    def free(self, name: str) -> None:
        """Frees the machines of a job."""
        with self._changed:
            self._used.pop(name, None)
            self._changed.notify_all()

    def _is_first(self, turn: tuple[str, set[Place]]) -> bool:
        before = self._queue[: self._queue.index(turn)]
        return not any(places & turn[1] for _, places in before)

    def _take(self, name: str, region: str, wanted: Mapping[str, int]) -> bool:
        used, places = self._sum(), {(region, accelerator): number for accelerator, number in wanted.items()}
        if name not in self._used:
            if any(
                used[place] + number > self._limits.get(place, used[place] + number) for place, number in places.items()
            ):
                return False
            self._used[name] = places
        return True

    def _sum(self) -> Counter[Place]:
        found: Counter[Place] = Counter()
        for places in self._used.values():
            found.update(places)
        return found


def waits(job: Any) -> bool:
    """Whether a job queues for machines: Flex-start does."""
    return bool(job.job_spec.scheduling.strategy == FLEX_START)


def longest_wait(job: Any) -> float | None:
    """How long a job queues, seconds; None for ever."""
    scheduling = job.job_spec.scheduling
    if "max_wait_duration" not in scheduling:
        return _LONGEST_WAIT_S
    seconds: float = scheduling.max_wait_duration.total_seconds()
    return seconds or None


def metric_of(accelerator: str, job: Any) -> str:
    """The quota metric of a job's accelerators; Flex-start uses that of Spot."""
    gpu = next((gpu for gpu in load_catalog().gpus.values() if gpu.enum == accelerator), None)
    if gpu is None:
        return ""
    return str(gpu.spot_metric if is_spot(job) or waits(job) else gpu.training_metric)


def limits_of(quota: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    """Quotas by metric and region; Spot with Flex-start, and predictions, have their own, of the same size."""
    gpus = {gpu.enum: gpu for gpu in load_catalog().gpus.values()}
    found: dict[str, dict[str, int]] = {}
    for (region, accelerator), number in quota.items():
        gpu = gpus[accelerator]
        for metric in (gpu.training_metric, gpu.spot_metric, gpu.serving_metric):
            found.setdefault(metric, {})[region] = number
    return found


def check_quota(job: Any, region: str, others: Iterable[Any], limits: Mapping[str, Mapping[str, int]]) -> None:
    """Checks a new job against the quotas of the project.

    Args:
        job: the job.
        region: the region.
        others: the jobs that have not ended in that region.
        limits: accelerators by metric and region; a missing metric has no limit.

    Raises:
        ApiError: it needs more than is left.
    """
    _require(_metrics(job), (_metrics(other) for other in others), region, limits)


def check_serving_quota(
    wanted: Mapping[str, int],
    region: str,
    others: Iterable[Mapping[str, int]],
    limits: Mapping[str, Mapping[str, int]],
) -> None:
    """Checks the accelerators of a batch prediction against the quotas of the project, like `check_quota`.

    Args:
        wanted: the number of accelerators by type.
        region: the region.
        others: the accelerators of the jobs that have not ended in that region.
        limits: accelerators by metric and region.

    Raises:
        ApiError: it needs more than is left.
    """
    metrics = {gpu.enum: gpu.serving_metric for gpu in load_catalog().gpus.values()}

    def counted(accelerators: Mapping[str, int]) -> Counter[str]:
        return Counter({metrics.get(accelerator, ""): number for accelerator, number in accelerators.items()})

    _require(counted(wanted), map(counted, others), region, limits)


def _require(
    wanted: Counter[str], others: Iterable[Counter[str]], region: str, limits: Mapping[str, Mapping[str, int]]
) -> None:
    used = Counter[str]()
    for other in others:
        used.update(other)
    exceeded = [
        metric
        for metric, number in wanted.items()
        if used[metric] + number > limits.get(metric, {}).get(region, used[metric] + number)
    ]
    if exceeded:
        raise ApiError(429, f"The following quota metrics exceed quota limits: {','.join(exceeded)}")


def _metrics(job: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for accelerator, number in accelerators_of(job.job_spec).items():
        found[metric_of(accelerator, job)] += number
    return found
