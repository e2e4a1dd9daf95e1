"""Data preparation on several machines without GPUs: a CustomJob, as a training on several nodes is one."""

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
from gpu_pipelines.targets.vertex.job_spec import STEP_HOURS, JobOptions, job_around, seconds_of, worker_pools

#: The machine of each replica where none is named: CPUs and memory as those of the plain task.
DATA_MACHINE = "n2-standard-16"
_BOOT_DISK = "pd-ssd"


@dataclass(frozen=True)
class DataNodes:
    """The machines that prepare the data.

    Attributes:
        nodes: how many.
        machine_type: of each; empty for `DATA_MACHINE`.
        strategy: how they are bought, one of `STRATEGIES`.
    """

    nodes: int = 1
    machine_type: str = ""
    strategy: str = STANDARD

    @property
    def is_plain_task(self) -> bool:
        """Whether one machine of the service's choice will do."""
        return self == DataNodes()

    def require(self) -> None:
        """Checks what can be checked here.

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
        container: what each replica runs.
        settings: service account, network, key and labels.
        options: disk and variables.

    Raises:
        UserError: there are no such machines.
    """
    data.require()
    pools = worker_pools(
        {"machine_type": data.machine_type or DATA_MACHINE}, data.nodes, _BOOT_DISK, container, options
    )
    # The replicas are a Ray cluster: one that is lost costs what it was doing, and joins again when it is restarted.
    scheduling = {"strategy": data.strategy.upper(), "timeout": seconds_of(STEP_HOURS)}
    return job_around(pools, scheduling, "", settings, options)
