"""From `h100:8` and the choices beside it to a plan that renderers rely on, or to all that is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from gpu_pipelines.accelerators.catalog import Catalog, Gpu, MachineType, load_catalog
from gpu_pipelines.accelerators.cautions import Caution, cautions, quota_field
from gpu_pipelines.accelerators.placement import usable_regions, zones_of
from gpu_pipelines.accelerators.request import CPU, PlanRequest
from gpu_pipelines.accelerators.rules import FLEX_START_MAX_HOURS, Checked, check
from gpu_pipelines.accelerators.substitutes import Comparison, compare
from gpu_pipelines.errors import InvalidRequestError

#: `Scheduling.Strategy` of google-cloud-aiplatform; a reservation is a STANDARD job with an affinity.
SCHEDULING = {"standard": "STANDARD", "spot": "SPOT", "flex-start": "FLEX_START", "reservation": "STANDARD"}
RESERVATION_KEY = "compute.googleapis.com/reservation-name"
#: One vCPU for the training process of each GPU and one for the process that feeds it.
VCPUS_PER_GPU = 2


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a request.

    Attributes:
        field: the field of the request that it is in, as in `rules.Finding`.
        message: what is wrong, with the value that is.
        alternatives: requests nearby that are accepted, each whole.
        comparison: figures side by side, if Google Cloud does not have the requested GPU.
    """

    field: str
    message: str
    alternatives: tuple[PlanRequest, ...] = ()
    comparison: tuple[Comparison, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The problem as a JSON object."""
        return {
            "field": self.field,
            "message": self.message,
            "alternatives": [alternative.command() for alternative in self.alternatives],
            "comparison": [vars(line).copy() for line in self.comparison],
        }


class PlanError(InvalidRequestError):
    """A request that cannot be planned.

    Attributes:
        request: the request; None if several plans do not go together.
        problems: all that is wrong with it.
    """

    def __init__(self, problems: Sequence[Problem], request: PlanRequest | None = None) -> None:
        super().__init__("\n".join(_told(problem) for problem in problems))
        self.request = request
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled as its class and its text, of which this one is not made.
        return type(self), (self.problems, self.request)


@dataclass(frozen=True, repr=False)
class AcceleratorPlan:
    """A checked choice of accelerator; what runs on it is rendered from it and checks nothing again.

    Attributes:
        spec: the specification in its short form, e.g. `h100:8`.
        gpu: the GPU; None for `cpu:N`, which runs on this machine only.
        count: GPUs per machine, or CPU processes.
        nodes: number of machines.
        machine: the machine type; None for `cpu:N`.
        strategy: `standard`, `spot`, `flex-start` or `reservation`.
        region: the region asked for, or that of the reservation; None if it was left open.
        regions: regions where the plan can run; empty for `cpu:N`, and if none is known.
        zones: zones of `region` that have the GPU; empty if they are not known or no region was asked for.
        reservation: full name of the reservation; None with the strategy `reservation` means any that matches.
        hours: the longest the job may run; None if it was left open.
        reasons: why it is this machine and this place.
        warnings: what the user should know.
        partition: size of the partition of the GPU that the job has, such as `1g.5gb`; empty for whole GPUs.
    """

    spec: str
    gpu: Gpu | None
    count: int
    nodes: int
    machine: MachineType | None
    strategy: str
    region: str | None
    regions: tuple[str, ...]
    zones: tuple[str, ...]
    reservation: str | None
    hours: float | None
    reasons: tuple[str, ...]
    warnings: tuple[Caution, ...]
    partition: str = ""

    def __repr__(self) -> str:
        machine = f"{self.machine.name}, {self.strategy}" if self.machine else "this machine"
        bought = [f"region={self.region}" if self.region else "", f"hours={self.hours}" if self.hours else ""]
        where = f"{len(self.regions)} regions" if self.regions and not self.region else ""
        told = [f"warning: {caution.message}" for caution in self.warnings]
        parts = [f"{self.nodes} × {machine}", *bought, where]
        return "\n  ".join([f"AcceleratorPlan {self.spec}: {', '.join(filter(None, parts))}", *told])

    def _repr_html_(self) -> str:
        """For a notebook: the plan as a table, and what the user should know."""
        from gpu_pipelines.notebook_html import table, text

        machine, gpu = self.machine, self.gpu
        rows = [
            ["machines", f"{self.nodes} × {machine.name if machine else 'this machine'}"],
            ["GPUs", f"{self.total_gpus} × {gpu.name}, {gpu.memory_gb} GB each" if gpu else "none"],
            ["strategy", self.strategy],
            ["region", self.region or f"open: {', '.join(self.regions) or 'none is known'}"],
            *([["quota", f"{self.total_gpus} of {self.quota_metric}"]] if self.quota_metric else []),
            ["precision", self.precision],
        ]
        warnings = "".join(text(f"warning: {each.message}") for each in self.warnings)
        return text(f"Plan {self.spec}", "h4") + table((), rows) + warnings

    @property
    def is_local(self) -> bool:
        """Whether the plan is for CPU processes of this machine."""
        return self.gpu is None

    @property
    def total_gpus(self) -> int:
        """GPUs of all nodes together; 0 for `cpu:N`."""
        return self.count * self.nodes if self.gpu else 0

    @property
    def processes(self) -> int:
        """Processes of a training, all nodes together: one for each GPU, or those of `cpu:N`."""
        return self.count * self.nodes

    @property
    def machine_type(self) -> str | None:
        """Name of the machine type: `machineSpec.machineType`."""
        return self.machine.name if self.machine else None

    @property
    def accelerator_type(self) -> str | None:
        """Vertex AI's name of the GPU: `machineSpec.acceleratorType`."""
        return self.gpu.enum if self.gpu else None

    @property
    def boot_disk_type(self) -> str | None:
        """Type of boot disk to ask for: `diskSpec.bootDiskType`."""
        return self.machine.boot_disk if self.machine else None

    @property
    def scheduling_strategy(self) -> str:
        """Vertex AI's name of the strategy: `scheduling.strategy`."""
        return SCHEDULING[self.strategy]

    @property
    def reservation_affinity(self) -> dict[str, Any] | None:
        """`machineSpec.reservationAffinity` as Vertex AI's REST API has it; None without a reservation."""
        if self.strategy != "reservation":
            return None
        if self.reservation is None:
            return {"reservationAffinityType": "ANY_RESERVATION"}
        return {
            "reservationAffinityType": "SPECIFIC_RESERVATION",
            "key": RESERVATION_KEY,
            "values": [self.reservation],
        }

    @property
    def network_gbps(self) -> int | None:
        """Network bandwidth of one machine with its GPUs, Gbit/s; None if it is not known."""
        return self.machine.network_with(self.gpu.name, self.count) if self.machine and self.gpu else None

    @property
    def max_hours(self) -> float | None:
        """The longest the strategy lets a job run, hours; None if only the job's own timeout ends it."""
        return FLEX_START_MAX_HOURS if self.strategy == "flex-start" else None

    @property
    def quota_metric(self) -> str | None:
        """The Vertex AI quota the job draws on, in the region it runs in; it needs `total_gpus` of it."""
        return getattr(self.gpu, quota_field(self.strategy)) if self.gpu else None

    @property
    def precision(self) -> str:
        """The fastest precision that is safe to train in: `bf16`, `fp16` (with loss scaling) or `fp32`."""
        if self.gpu is None or not (self.gpu.supports_bf16 or self.gpu.fp16_tflops):
            return "fp32"
        return "bf16" if self.gpu.supports_bf16 else "fp16"

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        machine, gpu = self.machine, self.gpu
        return {
            "spec": self.spec,
            "nodes": self.nodes,
            "total_gpus": self.total_gpus,
            "local": self.is_local,
            "machine_type": self.machine_type,
            "accelerator_type": self.accelerator_type,
            "accelerator_count": self.count if gpu else None,
            "vcpus": machine.vcpus if machine else None,
            "memory_gb": machine.memory_gb if machine else None,
            "gpu_memory_gb": gpu.memory_gb if gpu else None,
            **({"gpu_partition_size": self.partition} if self.partition else {}),
            "local_ssd_gb": machine.local_ssd_gb if machine else None,
            "network_gbps": self.network_gbps,
            "host_architecture": machine.host_architecture if machine else None,
            "boot_disk_type": self.boot_disk_type,
            "strategy": self.strategy,
            "scheduling_strategy": self.scheduling_strategy,
            "reservation_affinity": self.reservation_affinity,
            "region": self.region,
            "zones": list(self.zones),
            "regions": list(self.regions),
            "hours": self.hours,
            "max_hours": self.max_hours,
            "quota_metric": self.quota_metric,
            "compute_engine_name": gpu.compute_engine_name if gpu else None,
            "gke_label": gpu.gke_label if gpu else None,
            "precision": self.precision,
            "reasons": list(self.reasons),
            "warnings": [vars(warning).copy() for warning in self.warnings],
        }


def plan(
    spec: str,
    *,
    nodes: int = 1,
    region: str | None = None,
    strategy: str | None = None,
    machine_type: str | None = None,
    reservation: str | None = None,
    hours: float | None = None,
    memory_gb: float | None = None,
    catalog: Catalog | None = None,
    today: date | None = None,
) -> AcceleratorPlan:
    """Checks a choice of accelerator and fills in what was left open.

    Args:
        spec: `NAME:COUNT`, GPUs per machine, e.g. `h100:8`; `NAME/PARTITION:1`, e.g. `a100/1g.5gb:1`; or
            `cpu:PROCESSES` for this machine.
        nodes: number of machines.
        region: Google Cloud region; None leaves it open.
        strategy: `standard`, `spot`, `flex-start` or `reservation`; None means `reservation` where one is named and
            `standard` otherwise.
        machine_type: machine type; None takes the smallest that fits.
        reservation: `projects/P/zones/Z/reservations/R`; None with the strategy `reservation` takes any that matches.
        hours: the longest the job may run, hours.
        memory_gb: main memory each machine must have, GB; None asks for as much as its GPUs have.
        catalog: the facts; None takes those of the package.
        today: the day that ended GPUs are judged by; None takes today.

    Raises:
        PlanError: with all that is wrong, each with the nearest requests that are accepted.
    """
    request = PlanRequest(spec, nodes, region, strategy, machine_type, reservation, hours, memory_gb)
    return plan_request(request, catalog=catalog, today=today)


def plan_request(request: PlanRequest, *, catalog: Catalog | None = None, today: date | None = None) -> AcceleratorPlan:
    """As `plan`, for a `PlanRequest`.

    Raises:
        PlanError: with all that is wrong, each with the nearest requests that are accepted.
    """
    facts = catalog or load_catalog()
    day = today or date.today()
    checked = check(request, facts, day)
    if checked.findings:
        raise PlanError(_problems(checked, facts, day), request)
    if checked.gpu is None:
        return _local_plan(checked)
    return _cloud_plan(checked, checked.gpu, facts, day)


def _problems(checked: Checked, catalog: Catalog, today: date) -> list[Problem]:
    # Only a refused request looks for alternatives; one that is accepted answers sooner without the import.
    from gpu_pipelines.accelerators.alternatives import alternatives

    return [
        Problem(
            field=finding.field,
            message=finding.message,
            alternatives=alternatives(checked, finding.field, catalog, today),
            comparison=compare(checked.elsewhere, catalog) if finding.field == "gpu" and checked.elsewhere else (),
        )
        for finding in checked.findings
    ]


def _told(problem: Problem) -> str:
    lines = [problem.message]
    if problem.comparison:
        width = max(len(line.name) for line in problem.comparison)
        lines += [
            f"    {line.name:<{width}}  {line.memory_gb:>4} GB  {line.memory_bandwidth_gb_s:>5} GB/s  "
            f"{line.bf16_tflops:>6g} bf16 TFLOP/s  {line.why}"
            for line in problem.comparison
        ]
    if problem.alternatives:
        lines.append("  Instead: " + "; ".join(alternative.command() for alternative in problem.alternatives))
    return "\n".join(lines)


def _local_plan(checked: Checked) -> AcceleratorPlan:
    return AcceleratorPlan(
        spec=f"{CPU}:{checked.count}",
        gpu=None,
        count=checked.count or 1,
        nodes=1,
        machine=None,
        strategy="standard",
        region=None,
        regions=(),
        zones=(),
        reservation=None,
        hours=checked.request.hours,
        reasons=(f"{checked.count} CPU processes on this machine; nothing is submitted.",),
        warnings=(),
    )


def _cloud_plan(checked: Checked, gpu: Gpu, catalog: Catalog, today: date) -> AcceleratorPlan:
    request, count = checked.request, checked.count or 0
    machine, reason = choose_machine(gpu, count, checked.machines, request.memory_gb)
    if request.machine_type is not None:
        reason = f"{machine.name} was asked for."
    region = request.region or (checked.zone.rpartition("-")[0] if checked.zone else None)
    zones = (checked.zone,) if checked.zone else zones_of(catalog, gpu.name, region) if region else ()
    regions = tuple(usable_regions(catalog, gpu.name, [machine]))
    part = checked.partition
    return AcceleratorPlan(
        spec=f"{gpu.name}/{part.size}:{count}" if part else f"{gpu.name}:{count}",
        gpu=gpu.cut_into(part) if part else gpu,
        count=count,
        nodes=request.nodes,
        machine=machine,
        strategy=request.chosen_strategy,
        region=region,
        regions=regions,
        zones=zones,
        reservation=request.reservation,
        hours=request.hours,
        reasons=(reason, *_reasons_of_the_disk(machine)),
        warnings=cautions(gpu, machine, request.chosen_strategy, region, catalog, today, part),
        partition=part.size if part else "",
    )


def _reasons_of_the_disk(machine: MachineType) -> tuple[str, ...]:
    if machine.boot_disk == "pd-ssd":
        return ()
    return (
        f"The boot disk must be {machine.boot_disk}: {machine.name} does not start from pd-ssd, which the SDK and the "
        "pipeline components send unless they are told otherwise.",
    )


def enough_memory_gb(gpu: Gpu, count: int, asked_gb: float | None) -> float:
    """The main memory a machine should have, GB: the requested amount, or as much as its GPUs have together.

    A checkpoint or a model on its way to the GPUs passes through main memory once.
    """
    return asked_gb if asked_gb is not None else float(gpu.memory_gb * count)


def choose_machine(
    gpu: Gpu, count: int, candidates: Sequence[MachineType], asked_gb: float | None
) -> tuple[MachineType, str]:
    """The smallest of the candidates that has enough main memory and vCPUs, and the sentence that says why.

    Args:
        gpu: the GPU.
        count: GPUs per machine.
        candidates: machines that carry them, the smallest first; not empty, and all with the memory asked for, if any.
        asked_gb: main memory asked for, GB; None if the user left it open.
    """
    if len(candidates) == 1 and asked_gb is None:
        return candidates[0], f"{candidates[0].name} is the machine with {count} × {gpu.name}."
    wanted = enough_memory_gb(gpu, count, asked_gb)
    vcpus = VCPUS_PER_GPU * count
    why = "as asked" if asked_gb is not None else f"as much as {count} × {gpu.name} have"
    fitting = [machine for machine in candidates if machine.memory_gb >= wanted and machine.vcpus >= vcpus]
    if fitting:
        chosen = fitting[0]
        return chosen, (
            f"{chosen.name} is the smallest machine for {count} × {gpu.name} with at least {wanted:g} GB of main "
            f"memory ({why}) and {vcpus} vCPUs ({VCPUS_PER_GPU} for each GPU): it has {chosen.memory_gb:g} GB and "
            f"{chosen.vcpus} vCPUs."
        )
    chosen = max(candidates, key=lambda machine: (machine.memory_gb, -machine.vcpus))
    return chosen, (
        f"{chosen.name} has the most main memory ({chosen.memory_gb:g} GB) of the machines for {count} × {gpu.name}; "
        f"none has {wanted:g} GB ({why}) and {vcpus} vCPUs."
    )
