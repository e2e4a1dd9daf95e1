"""The four roles of an old job as worker pools: machines, GPUs and disks, checked for the old service and the new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan, PlanError, plan_request
from gpu_pipelines.accelerators.catalog import Catalog, MachineType
from gpu_pipelines.accelerators.request import PlanRequest
from gpu_pipelines.accelerators.together import share_zone
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.migration.notes import Notes
from gpu_pipelines.migration.old_machines import (
    CLOUD_TPU,
    FAMILIES,
    LEGACY_MACHINES,
    Replicas,
    cpu_machine,
    wrong_combination,
)
from gpu_pipelines.migration.replacements import Wanted, replace_gpu
from gpu_pipelines.migration.replicas import NOT_VERIFIED, ROLES, TPU, replicas_of

#: The range of `DiskSpec.boot_disk_size_gb` in the API.
_DISK_GB = (100, 64000)
_DISK_TYPES = ("pd-ssd", "pd-standard")


@dataclass(frozen=True)
class Pool:
    """The machines of one role.

    Attributes:
        role: one of `replicas.ROLES`.
        replicas: the number of machines.
        machine_type: the machine type.
        plan: the plan of machines with GPUs.
        disk: `diskSpec`; empty for the service's own default.
    """

    role: str
    replicas: int
    machine_type: str
    plan: AcceleratorPlan | None = None
    disk: Mapping[str, Any] = field(default_factory=dict)

    def machine_spec(self) -> dict[str, Any]:
        """`machineSpec`."""
        spec: dict[str, Any] = {"machineType": self.machine_type}
        if self.plan is not None:
            spec |= {"acceleratorType": self.plan.accelerator_type, "acceleratorCount": self.plan.count}
        return spec


@dataclass(frozen=True)
class Conditions:
    """Conditions that hold for all pools of a job.

    Attributes:
        region: its region; None if that is open.
        strategy: the provisioning of its machines; None for the standard one.
        hours: its longest run time.
        keep: refuse GPUs that are gone instead of replacing them.
        catalog: the catalog of machines and prices.
        today: the date by which the ends of GPUs are judged.
    """

    region: str | None
    strategy: str | None
    hours: float | None
    keep: bool
    catalog: Catalog
    today: date


def worker_pools(training: Mapping[str, Any], conditions: Conditions, notes: Notes) -> dict[str, Pool]:
    """The pools of a job by role, the master's first.

    Refuses what the old service would have refused, and what is no longer available.
    """
    found: dict[str, Pool] = {}
    by_role = replicas_of(training, notes)
    for role in ROLES:
        for name in (f"{role}Type", f"{role}Config"):
            if role not in by_role and training.get(name):
                notes.dropped(name, f"{role}Count is not given or 0, so there is no such pool.")
    for role, replicas in by_role.items():
        try:
            found[role] = _pool(role, replicas, training.get(f"{role}Config") or {}, conditions, notes)
        except PlanError as error:
            notes.refuse(f"{role}: {error}")
        except UserError as error:
            notes.refuse(error.problem, error.remedy)
    _warn([pool.plan for pool in found.values() if pool.plan], conditions, notes)
    return found


def _warn(plans: list[AcceleratorPlan], conditions: Conditions, notes: Notes) -> None:
    """Adds warnings about the GPUs, each and together: they must be in one zone."""
    cautions = [caution for plan in plans for caution in plan.warnings]
    try:
        cautions += share_zone(plans, conditions.catalog).warnings if plans else ()
    except PlanError as error:
        notes.refuse(str(error))
    for caution in cautions:
        notes.warn("GPUs", caution.message)


def _pool(role: str, replicas: Replicas, config: Mapping[str, Any], conditions: Conditions, notes: Notes) -> Pool:
    name, accelerator = _expanded(role, replicas, notes)
    catalog = conditions.catalog
    machine = catalog.machine_types.get(name)
    if accelerator is None and machine is not None and machine.family in FAMILIES and not machine.attached:
        gpu, counts = next(iter(machine.gpu_counts.items()))
        accelerator = (catalog.gpus[gpu].enum, counts[0])
        notes.changed(f"{role}Type", f"{name} has {counts[0]} × {gpu} in it, which Vertex AI wants said.")
    if accelerator is None:
        cpu, why = cpu_machine(name, f"{role}Type", catalog)
        if why:
            notes.changed(f"{role}Type", why)
        return Pool(role, replicas.count, cpu, None, _disk(role, config, None, notes))
    plan = _planned(role, name, accelerator, replicas.count, conditions, notes)
    return Pool(role, replicas.count, str(plan.machine_type), plan, _disk(role, config, plan, notes))


def _expanded(role: str, replicas: Replicas, notes: Notes) -> tuple[str, tuple[str, int] | None]:
    """Machine type of Compute Engine and GPUs, also for a legacy machine type."""
    name = replicas.machine_type
    if name == CLOUD_TPU:
        raise UserError(f"{role}Type is {CLOUD_TPU}. {TPU}")
    legacy = LEGACY_MACHINES.get(name)
    if legacy is None:
        return name, replicas.accelerator
    if replicas.accelerator is not None:
        raise UserError(
            f"{role}Type is {name}, which takes no acceleratorConfig.", f"Write {legacy.machine_type} instead."
        )
    gpus = f" with {legacy.accelerator[1]} × {legacy.accelerator[0]}" if legacy.accelerator else ""
    unsure = "" if legacy.verified else f" {NOT_VERIFIED}"
    notes.changed(f"{role}Type", f"Vertex AI has no {name}; it was {legacy.machine_type}{gpus}.{unsure}")
    return legacy.machine_type, legacy.accelerator


def _planned(
    role: str, name: str, accelerator: tuple[str, int], replicas: int, conditions: Conditions, notes: Notes
) -> AcceleratorPlan:
    catalog, (kind, count) = conditions.catalog, accelerator
    gpu = next(gpu for gpu in catalog.gpus.values() if gpu.enum == kind)
    machine = _old_machine(role, name, catalog)
    if wrong := wrong_combination(machine, gpu, count, catalog):
        raise UserError(f"{role}: AI Platform Training refused {count} × {gpu.name} on {name}. {wrong}")
    request = PlanRequest(
        spec=f"{gpu.name}:{count}",
        nodes=replicas,
        region=conditions.region,
        strategy=conditions.strategy,
        machine_type=name,
        hours=conditions.hours,
    )
    if not gpu.has_ended(conditions.today) or conditions.keep:
        return plan_request(request, catalog=catalog, today=conditions.today)
    plan, reason = replace_gpu(Wanted(gpu, count, machine, request), catalog, conditions.today)
    notes.changed(f"{role}Config.acceleratorConfig", reason)
    return plan


def _old_machine(role: str, name: str, catalog: Catalog) -> MachineType:
    machine = catalog.machine_types.get(name)
    if machine is not None and machine.family in FAMILIES:
        return machine
    names = [each for each, other in catalog.machine_types.items() if other.family in FAMILIES]
    hint = nearest(name, names, otherwise="It had GPUs on N1 and A2 machines.")
    raise UserError(f"{role}Type is {name[:60]!r}, which AI Platform Training did not have with GPUs. {hint}")


def _disk(role: str, config: Mapping[str, Any], plan: AcceleratorPlan | None, notes: Notes) -> dict[str, Any]:
    given = config.get("diskConfig") or {}
    size, kind = given.get("bootDiskSizeGb"), given.get("bootDiskType")
    low, high = _DISK_GB
    if size is not None and not low <= size <= high:
        raise UserError(f"{role}Config.diskConfig.bootDiskSizeGb is {size}; {low} to {high} GB can be had.")
    if kind is not None and kind not in _DISK_TYPES:
        raise UserError(f"{role}Config.diskConfig.bootDiskType is {kind[:60]!r}. {nearest(kind, _DISK_TYPES)}")
    if kind is None and size is None:
        return {}
    if plan is not None and plan.boot_disk_type not in _DISK_TYPES:
        kind = plan.boot_disk_type
        notes.changed(f"{role}Config.diskConfig", f"{plan.machine_type} starts from {kind} alone.")
    return {"bootDiskType": kind or _DISK_TYPES[0], "bootDiskSizeGb": size or low}
