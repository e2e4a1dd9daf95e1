"""The rules a choice of accelerator must keep. Each check looks at one field and says all that is wrong with it.

A check works with what the others found: if the GPU is unknown, the region is still checked, so that one run reports
everything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

from gpu_pipelines.accelerators.catalog import Catalog, ElsewhereGpu, Gpu, GpuPartition, MachineType
from gpu_pipelines.accelerators.placement import located, usable_regions, zones_of
from gpu_pipelines.accelerators.request import (
    CPU,
    MAX_CPU_PROCESSES,
    MAX_NODES,
    STRATEGIES,
    PlanRequest,
    canonical,
    find_gpu,
    known_names,
    shown,
    split_partition,
    split_spec,
)
from gpu_pipelines.errors import nearest

#: Flex-start runs a job for at most seven days (Vertex AI, page on Dynamic Workload Scheduler).
FLEX_START_MAX_HOURS = 168
#: A year: longer is a typing error. A limit of this project, not Google's.
MAX_HOURS = 8784

_RESERVATION = re.compile(
    r"projects/(?P<project>[a-z0-9.:-]+)/zones/(?P<zone>[a-z]+-[a-z]+[0-9]+-[a-z])/reservations/(?P<name>[a-z0-9-]+)"
)

#: How people also say NAME:COUNT: `8xh100`, `8 h100`, `h100x8`, `h100-8`.
_SAID = re.compile(
    r"(?P<first>\d\d?)[\sx×*]*(?P<after>[a-z].*)|(?P<before>.*\w)[\sx×*,=-]\s*(?P<last>\d)", re.IGNORECASE
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        field: the field of the request to change: `gpu`, `count`, `nodes`, `region`, `strategy`, `machine_type`,
            `reservation`, `hours` or `memory_gb`.
        message: what is wrong, with the value that is.
    """

    field: str
    message: str


@dataclass
class Checked:
    """What the checks found out about a request.

    Attributes:
        request: the request.
        gpu: its GPU; None for `cpu:N` and if none was found.
        elsewhere: the requested GPU, if it is not available.
        count: GPUs per machine, or CPU processes.
        partition: the requested part of the GPU; None for whole ones.
        is_cpu: whether the request is `cpu:N`.
        machines: machine types that keep every rule, the smallest first; empty if there is a finding.
        zone: zone of the reservation, if one is named.
        findings: all that is wrong.
    """

    request: PlanRequest
    gpu: Gpu | None = None
    elsewhere: ElsewhereGpu | None = None
    count: int | None = None
    partition: GpuPartition | None = None
    is_cpu: bool = False
    machines: list[MachineType] = field(default_factory=list)
    zone: str | None = None
    findings: list[Finding] = field(default_factory=list)

    def add(self, field_name: str, message: str) -> None:
        """Notes one thing that is wrong."""
        self.findings.append(Finding(field_name, message))


def check(request: PlanRequest, catalog: Catalog, today: date) -> Checked:
    """Checks a request against every rule.

    Args:
        request: the request.
        catalog: the facts.
        today: the day that ended GPUs are judged by.
    """
    checked = Checked(request)
    _check_spec(checked, catalog, today)
    _check_nodes(checked)
    _check_hours(checked)
    if checked.is_cpu:
        _check_local(checked)
        return checked
    _check_strategy(checked)
    _check_reservation(checked)
    machines = _check_machine_type(checked, catalog)
    machines = _check_memory(checked, machines)
    machines = _check_offered(checked, catalog, machines)
    machines = _check_region(checked, catalog, machines)
    if not checked.findings:
        checked.machines = machines
    return checked


def listed(values: Sequence[object]) -> str:
    """`1`, `1 or 2`, `1, 2 or 4`."""
    texts = [str(value) for value in values]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def _check_spec(checked: Checked, catalog: Catalog, today: date) -> None:
    spec = checked.request.spec
    parts = split_spec(spec)
    if parts is None:
        _check_malformed(checked, catalog)
        return
    name, count = parts
    checked.count = count
    if canonical(name) == CPU:
        checked.is_cpu = True
        if not 1 <= count <= MAX_CPU_PROCESSES:
            checked.add("count", f"cpu:{count} asks for {count} processes; 1 to {MAX_CPU_PROCESSES} are possible.")
        return
    name, size = split_partition(name)
    found = find_gpu(catalog, name)
    if isinstance(found, Gpu):
        checked.gpu = found
        _check_count(checked, catalog, found, count)
        if size:
            _check_partition(checked, catalog, found, size)
        if found.has_ended(today):
            checked.add(
                "gpu",
                f"{found.name} ({found.product}) is gone: Google Cloud shut it down on {found.ends}. "
                f"Its replacement is {listed(found.replacements)}.",
            )
    elif found is not None:
        checked.elsewhere = found
        checked.add("gpu", _not_to_be_had(found))
    else:
        suggestion = nearest(canonical(name), catalog.gpus, also=known_names(catalog))
        checked.add("gpu", f"There is no GPU {shown(name)}. {suggestion}")


def _check_malformed(checked: Checked, catalog: Catalog) -> None:
    spec = checked.request.spec
    name, colon, rest = spec[:64].partition(":")
    gpu = find_gpu(catalog, name)
    said = _SAID.fullmatch(spec.strip()[:64])
    meant = find_gpu(catalog, said["after"] or said["before"]) if said else None
    if said and isinstance(meant, Gpu) and not isinstance(gpu, Gpu):
        checked.gpu, checked.count = meant, int(said["first"] or said["last"])
        checked.add("count", f"{shown(spec)} is not a specification. Write NAME:COUNT.")
    elif isinstance(gpu, Gpu):
        checked.gpu = gpu
        wrong = f"{shown(rest)} is not a number of GPUs" if colon else f"{shown(spec)} says no number of GPUs"
        checked.add("count", f"{wrong}; training takes {listed(catalog.counts(gpu.name))} {gpu.name} per machine.")
    else:
        checked.add("gpu", f"{shown(spec)} is not a specification. Write NAME:COUNT, for example h100:8.")


def _not_to_be_had(gpu: ElsewhereGpu) -> str:
    if gpu.reason:
        return f"{gpu.product} is not available: {gpu.reason}."
    why = "It offers data center GPUs only." if "consumer" in gpu.kind or "workstation" in gpu.kind else ""
    return f"Google Cloud has no {gpu.product} ({gpu.kind}). {why}".rstrip()


def _check_count(checked: Checked, catalog: Catalog, gpu: Gpu, count: int) -> None:
    counts = catalog.counts(gpu.name)
    if count not in counts:
        checked.add(
            "count", f"No machine has {count} × {gpu.name}; training takes {listed(counts)} {gpu.name} per machine."
        )


def _check_partition(checked: Checked, catalog: Catalog, gpu: Gpu, size: str) -> None:
    checked.partition = catalog.partitions.get((gpu.name, size))
    sizes = [each for name, each in catalog.partitions if name == gpu.name]
    if checked.partition is None and sizes:
        checked.add("gpu", f"{gpu.name} has no partition {shown(size)}. {nearest(size, sizes)}")
    elif checked.partition is None:
        cut = sorted({name for name, _ in catalog.partitions})
        told = f"{gpu.name} is not available in partitions; training takes those of {listed(cut)}"
        checked.add("gpu", f"{told}, one to a machine.")
    elif checked.count != 1:
        # `MachineSpec.gpu_partition_size`: "If set, the accelerator_count should be set to 1."
        checked.add("count", f"A job has one partition of one GPU on each machine, not {checked.count}.")


def _check_nodes(checked: Checked) -> None:
    nodes = checked.request.nodes
    if not 1 <= nodes <= MAX_NODES:
        checked.add("nodes", f"{nodes} nodes are not possible; give 1 to {MAX_NODES}.")


def _check_hours(checked: Checked) -> None:
    hours = checked.request.hours
    if hours is None:
        return
    # A time limit is sent in whole seconds, and 0 stands for none.
    if not (math.isfinite(hours) and 1 / 3600 <= hours <= MAX_HOURS):
        checked.add("hours", f"A job cannot run {hours:g} hours; give at least a second and at most {MAX_HOURS} hours.")
    elif checked.request.chosen_strategy == "flex-start" and hours > FLEX_START_MAX_HOURS:
        checked.add(
            "hours",
            f"Flex-start runs a job for at most {FLEX_START_MAX_HOURS} hours (7 days), not {hours:g}.",
        )


def _check_local(checked: Checked) -> None:
    request = checked.request
    if request.nodes > 1:
        checked.add("nodes", f"cpu:N is for this machine only; it has 1 node, not {request.nodes}.")
    for name in ("region", "strategy", "machine_type", "reservation", "memory_gb"):
        value = getattr(request, name)
        if value is not None:
            told = f"{name.replace('_', ' ')} {shown(str(value))}"
            checked.add(name, f"cpu:N is for this machine only; {told} means nothing there.")


def _check_strategy(checked: Checked) -> None:
    strategy = checked.request.strategy
    if strategy is not None and strategy not in STRATEGIES:
        checked.add("strategy", f"There is no strategy {shown(strategy)}. {nearest(canonical(strategy), STRATEGIES)}")


def _check_reservation(checked: Checked) -> None:
    request = checked.request
    if request.reservation is None:
        return
    if request.strategy in ("standard", "spot", "flex-start"):
        checked.add("strategy", f"A reservation cannot be used with the strategy {request.strategy}.")
    match = _RESERVATION.fullmatch(request.reservation)
    if match is None:
        checked.add(
            "reservation",
            f"{shown(request.reservation)} is not the full name of a reservation, "
            "projects/PROJECT/zones/ZONE/reservations/NAME.",
        )
        return
    checked.zone = match["zone"]
    region = match["zone"].rpartition("-")[0]
    if request.region is not None and request.region != region:
        checked.add("region", f"The reservation is in {match['zone']}, not in the region {shown(request.region)}.")


def _check_machine_type(checked: Checked, catalog: Catalog) -> list[MachineType]:
    """The machines to check further: the requested one, or all that carry the GPUs; none if the GPU is unknown."""
    gpu, count, name = checked.gpu, checked.count, checked.request.machine_type
    carriers = catalog.machines_with(gpu.name, count) if gpu else []
    if name is None:
        # With a wrong number of GPUs the machines of that GPU in any number still say where and how it is sold.
        return carriers or (catalog.machines_with(gpu.name) if gpu else [])
    machine = catalog.machine_types.get(name)
    if machine is None:
        checked.add("machine_type", _unknown_machine(name, catalog))
        return carriers
    if gpu is None:
        return []
    if gpu.name not in machine.gpu_counts:
        checked.add(
            "machine_type",
            f"{name} does not carry {gpu.name}; it carries {listed(sorted(machine.gpu_counts))}.",
        )
        return carriers
    # A number that no machine has is reported already.
    if count is not None and count in catalog.counts(gpu.name) and not machine.takes(gpu.name, count):
        checked.add("machine_type", _wrong_count(machine, gpu, count, catalog))
        return carriers
    return [machine]


def _unknown_machine(name: str, catalog: Catalog) -> str:
    other = catalog.unusable_machine_types.get(name)
    if other is not None:
        return f"Vertex AI training does not take {name}: {other.reason}. Take {other.instead}."
    hint = nearest(canonical(name), catalog.machine_types, otherwise="`accelerators list` shows those that are.")
    return f"{shown(name)} is not a machine type that Vertex AI training takes with GPUs. {hint}"


def _wrong_count(machine: MachineType, gpu: Gpu, count: int, catalog: Catalog) -> str:
    counts = machine.gpu_counts[gpu.name]
    text = f"{machine.name} carries {listed(counts)} × {gpu.name} in training, not {count}"
    limit = catalog.host_limits.get((gpu.name, count))
    if limit and (machine.vcpus > limit.max_vcpus or machine.memory_gb > limit.max_memory_gb):
        return (
            f"{text}: it has {machine.vcpus} vCPUs and {machine.memory_gb:g} GB, and {count} × {gpu.name} carry at "
            f"most {limit.max_vcpus} vCPUs and {limit.max_memory_gb:g} GB."
        )
    return f"{text}."


def _check_memory(checked: Checked, machines: list[MachineType]) -> list[MachineType]:
    asked = checked.request.memory_gb
    if asked is None:
        return machines
    if not (math.isfinite(asked) and asked > 0):
        checked.add("memory_gb", f"A machine cannot have {asked:g} GB of main memory.")
        return machines
    enough = [machine for machine in machines if machine.memory_gb >= asked]
    if machines and not enough:
        most = max(machine.memory_gb for machine in machines)
        checked.add("memory_gb", f"{asked:g} GB of main memory are not available here; {most:g} GB is the most.")
        return machines
    return enough


def _check_offered(checked: Checked, catalog: Catalog, machines: list[MachineType]) -> list[MachineType]:
    strategy = checked.request.chosen_strategy
    if checked.gpu is None or not machines or strategy not in STRATEGIES:
        return machines
    sold = [machine for machine in machines if machine.offered(strategy) != "no"]
    if sold:
        return sold
    text = f"{checked.gpu.name} is not available with {strategy}"
    if strategy == "flex-start":
        takes = [gpu.name for gpu in catalog.gpus.values() if gpu.flex_start]
        checked.add("strategy", f"{text}; Flex-start takes {listed(takes)}.")
    else:
        ways = [way for way in STRATEGIES if any(machine.offered(way) != "no" for machine in machines)]
        checked.add("strategy", f"{text}; it is available with {listed(ways)}.")
    return machines


def _check_region(checked: Checked, catalog: Catalog, machines: list[MachineType]) -> list[MachineType]:
    region = checked.request.region or (checked.zone or "").rpartition("-")[0] or None
    if region is None:
        return machines
    # The reservation names a zone of its own; where it contradicts the region, that is reported already.
    if checked.zone and checked.request.region not in (None, checked.zone.rpartition("-")[0]):
        return machines
    known = catalog.regions.get(region)
    where = "region" if checked.request.region else "reservation"
    if known is None:
        suggestion = nearest(canonical(region), catalog.regions, otherwise="")
        checked.add(where, f"No region {shown(region)} with GPUs is known. {suggestion}".rstrip())
        return machines
    if known.vertex_training == "no":
        checked.add(where, f"Vertex AI training does not run in {region} ({known.place}).")
        return machines
    gpu = checked.gpu
    if gpu is None or not machines or not located(catalog, gpu.name):
        return machines
    there = [machine for machine in machines if region in usable_regions(catalog, gpu.name, [machine])]
    if not there:
        checked.add(where, _not_in_region(gpu, region, machines, catalog))
        return machines
    zones = zones_of(catalog, gpu.name, region)
    if checked.zone and zones and checked.zone not in zones:
        checked.add("reservation", f"{checked.zone} has no {gpu.name}; in {region} it is in {listed(zones)}.")
    return there


def _not_in_region(gpu: Gpu, region: str, machines: Sequence[MachineType], catalog: Catalog) -> str:
    row = catalog.availability.get((gpu.name, region))
    if row is None:
        return f"{region} has no {gpu.name}."
    families = listed(sorted({machine.family for machine in machines}))
    if row.machine_families:
        return f"{region} has {gpu.name} only on {listed(row.machine_families)} machines, not on {families}."
    return f"{region} is listed with {gpu.name}, but with no {families} machine to carry it."
