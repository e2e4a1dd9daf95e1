"""The cost of the machines of custom jobs: seconds that a job has them × the list prices of the catalog.

A machine costs from the moment that a job gets it until the job gives it back, as Vertex AI bills it; a job that waits
for machines costs nothing (https://cloud.google.com/vertex-ai/pricing#custom-trained_models). The service's management
fee, which is added to the price of the machines, is in no list that was found.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.accelerators.cost import price_in
from gpu_pipelines.emulator.jobs.preemption import is_spot
from gpu_pipelines.emulator.names import region_of


@dataclass
class BillLine:
    """The machines of a job.

    Attributes:
        job: name of the job.
        labels: its labels.
        per_hour: the cost of all its machines, USD per hour; None if a price is not known.
        began: when it got them, seconds of `time.time`.
        ended: when it gave them back; None before.
    """

    job: str
    labels: dict[str, str]
    per_hour: float | None
    began: float
    ended: float | None = None

    @property
    def usd(self) -> float:
        """Their cost, USD; 0 if no price is known."""
        return ((self.ended or time.time()) - self.began) / 3600 * (self.per_hour or 0.0)


class Bill:
    """The bill of a project.

    Attributes:
        lines: one for each time that a job had machines, in order.
    """

    def __init__(self) -> None:
        self.lines: list[BillLine] = []
        self._lock = threading.Lock()

    def begin(self, job: Any) -> None:
        """Starts the cost of a job's machines."""
        with self._lock:
            self.lines.append(BillLine(job.name, dict(job.labels), dollars_per_hour(job), time.time()))

    def end(self, name: str) -> None:
        """Stops the cost of a job's machines."""
        with self._lock:
            for line in self.lines:
                if line.job == name and line.ended is None:
                    line.ended = time.time()


def dollars_per_hour(job: Any) -> float | None:
    """The list price of all machines of a `CustomJob`, USD per hour; None if a price is not known."""
    catalog, total = load_catalog(), 0.0
    gpus = {gpu.enum: gpu for gpu in catalog.gpus.values()}
    if job.job_spec.persistent_resource_id:
        return 0.0
    for pool in job.job_spec.worker_pool_specs:
        spec = pool.machine_spec
        machine, gpu = catalog.machine_types.get(spec.machine_type), None
        if spec.accelerator_count:
            gpu = gpus.get(api.AcceleratorType(spec.accelerator_type).name)
        region, count = region_of(job.name), int(spec.accelerator_count)
        price = price_in(catalog, gpu, count, machine, region, int(pool.replica_count)) if machine else None
        found = None if price is None else price.spot if is_spot(job) else price.on_demand
        if found is None:
            return None
        total += found
    return total
