"""Data preparation on several machines without GPUs: a CustomJob, like a training on several nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.accelerators.rules import listed
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.container import Container
from gpu_pipelines.targets.data_nodes import STANDARD, problems_of_data_nodes
from gpu_pipelines.targets.vertex.placement.job_spec import STEP_HOURS, JobOptions, job_around, seconds_of, worker_pools

#: The default machine of each replica, with the CPUs and memory of the plain task.
DATA_MACHINE = "n2-standard-16"
_BOOT_DISK = "pd-ssd"


@dataclass(frozen=True)
class DataNodes:
    """The machines that prepare the data.

    Attributes:
        nodes: number of machines.
        machine_type: their type; empty for `DATA_MACHINE`.
        strategy: the way to buy them, one of `STRATEGIES`.
    """

    nodes: int = 1
    machine_type: str = ""
    strategy: str = STANDARD

    @property
    def is_plain_task(self) -> bool:
        """Whether one machine of the service's choice will do."""
        return self == DataNodes()

    def require(self) -> None:
        """Makes the checks that need no service.

        Raises:
            UserError: lists what is wrong.
        """
        problems, bought = problems_of_data_nodes(self.nodes, self.strategy, "machines")
        catalog = load_catalog()
        if self.machine_type and not catalog.takes_without_gpus(self.machine_type):
            series = dict.fromkeys(family.partition("-")[0].upper() for family in catalog.cpu_families)
            problems.append(
                f"{self.machine_type[:60]!r} is not a machine without GPUs that custom jobs take. "
                f"Give one of {listed(list(series))}, such as {DATA_MACHINE}."
            )
        problems += bought
        if problems:
            raise UserError.of_all(problems)


def data_job(
    data: DataNodes, container: Container, settings: ProjectSettings, options: JobOptions
) -> Mapping[str, Any]:
    """The `CustomJob` of a preparation, with the names of the API's protobuf fields.

    Args:
        data: the machines.
        container: container of each replica.
        settings: service account, network, key and labels.
        options: disk and variables.

    Raises:
        UserError: there are no such machines.
    """
    data.require()
    pools = worker_pools(
        {"machine_type": data.machine_type or DATA_MACHINE}, data.nodes, _BOOT_DISK, container, options
    )
    # The replicas are a Ray cluster: a lost one loses only its current work, and joins again when it is restarted.
    scheduling = {"strategy": data.strategy.upper(), "timeout": seconds_of(STEP_HOURS)}
    return job_around(pools, scheduling, "", settings, options)
