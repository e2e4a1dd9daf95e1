"""Checks, before jobs are sent, that a persistent resource has the machines that they need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.google_cloud.connection import (
    REQUEST_SECONDS,
    location_of,
    persistent_resource_service,
    service_errors,
    tried_again,
)
from gpu_pipelines.project_settings import ProjectSettings

#: The only state in which it takes jobs, by its name in `PersistentResource.State`.
_RUNNING = "RUNNING"


def told_resource(resource: str, jobs: Mapping[str, Sequence[Mapping[str, Any]]], settings: ProjectSettings) -> str:
    """Checks that a persistent resource exists and has the machines of some jobs, each of which runs by itself.

    Args:
        resource: its id.
        jobs: their worker pools, by the names of the jobs.
        settings: project, region and network.

    Returns:
        A line with its machines, and that it is paid for anyway.

    Raises:
        UserError: it does not exist, takes no jobs, or has other machines, or too few.
    """
    found = _found(resource, settings)
    state = type(found).State(found.state).name
    pools = list(found.resource_pools)
    if state != _RUNNING:
        raise UserError(
            f"The persistent resource {resource} is {state.lower()}, and takes no jobs.",
            "Wait until it runs, or leave --persistent-resource out.",
        )
    problems = [problem for name, wanted in jobs.items() for problem in _missing(resource, name, wanted, pools)]
    if found.network and found.network != (settings.network or ""):
        problems.append(
            f"The persistent resource {resource} is in the network {found.network}, and a job on it has to be as well. "
            f"Give --network {found.network}."
        )
    if problems:
        raise UserError.of_all(problems)
    return f"persistent resource {resource}: {_held(pools)}; paid for as long as it exists, whether jobs run or not"


def _found(resource: str, settings: ProjectSettings) -> Any:
    from google.api_core.exceptions import NotFound

    client, parent = persistent_resource_service(settings), location_of(settings)
    asked: dict[str, Any] = {"retry": tried_again(), "timeout": REQUEST_SECONDS}
    with service_errors(f"Looking at the persistent resource {resource}"):
        try:
            return client.get_persistent_resource(name=f"{parent}/persistentResources/{resource}", **asked)
        except NotFound:
            names = [each.name.rpartition("/")[2] for each in client.list_persistent_resources(parent=parent, **asked)]
    where = f"{settings.project} in {settings.region}"
    there = nearest(resource, names) if names else "There is none at all; gcloud ai persistent-resources makes one."
    raise UserError(f"There is no persistent resource {resource} of {where}.", there)


def _missing(resource: str, job: str, wanted: Sequence[Mapping[str, Any]], pools: Sequence[Any]) -> list[str]:
    """The machines that a job needs and a resource lacks; all machines of one kind must be in one pool."""
    needed: Counter[tuple[str, str, int, str]] = Counter()
    for pool in wanted:
        if machine := pool.get("machine_spec"):
            needed[_kind(machine)] += int(pool.get("replica_count", 1))
    problems = []
    for kind, number in needed.items():
        most = max((int(pool.replica_count) for pool in pools if _kind_of(pool) == kind), default=0)
        if most < number:
            problems.append(
                f"{job} runs on {number} × {_words(kind)}, and the persistent resource {resource} has {_held(pools)}. "
                "Choose its machine with --accelerator, --machine-type and --nodes, or leave --persistent-resource out."
            )
    return problems


def _held(pools: Sequence[Any]) -> str:
    return " and ".join(f"{pool.replica_count} × {_words(_kind_of(pool))}" for pool in pools)


def _kind(machine: Mapping[str, Any]) -> tuple[str, str, int, str]:
    names = ("machine_type", "accelerator_type", "accelerator_count", "gpu_partition_size")
    kind, accelerator, count, partition = (machine.get(name) for name in names)
    return str(kind), str(accelerator or ""), int(count or 0), str(partition or "")


def _kind_of(pool: Any) -> tuple[str, str, int, str]:
    machine = pool.machine_spec
    kind = type(machine.accelerator_type)(machine.accelerator_type)
    accelerator = kind.name if machine.accelerator_count else ""
    return machine.machine_type, accelerator, int(machine.accelerator_count), machine.gpu_partition_size


def _words(kind: tuple[str, str, int, str]) -> str:
    machine, accelerator, count, partition = kind
    gpus = (
        f" with {count} × {accelerator}{f' in partitions of {partition}' if partition else ''}" if accelerator else ""
    )
    return f"{machine}{gpus}"
