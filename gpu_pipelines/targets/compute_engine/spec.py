"""From a plan to a VM on Compute Engine that trains, independent of its format.

Fields: https://cloud.google.com/compute/docs/reference/rest/v1/instances.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.container_registry import shut_down
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.project_settings import ProjectSettings, has_form
from gpu_pipelines.step_environment import problems_of_variables
from gpu_pipelines.targets.compute_engine.boot_image import BootImage, boot_image
from gpu_pipelines.targets.compute_engine.startup import AT_END, StartupSettings, startup_script
from gpu_pipelines.targets.compute_engine.zones import zones_to_try
from gpu_pipelines.targets.container import Container

PROVISIONING = {"standard": "STANDARD", "reservation": "STANDARD", "spot": "SPOT", "flex-start": "FLEX_START"}
#: A Flex-start VM runs for a week at most, and its request waits for two hours at most:
#: https://cloud.google.com/compute/docs/instances/about-flex-start-vms.
FLEX_START_RUN_HOURS, FLEX_START_WAIT_HOURS = 168.0, 2.0
#: Bounds of the time limit of a VM: https://cloud.google.com/compute/docs/instances/limit-vm-runtime.
_LEAST_RUN_SECONDS, _MOST_RUN_HOURS = 30, 120 * 24
#: Sizes that Compute Engine allows for boot disks of these types, GB; less than 100 does not hold image and training.
DISK_GB = (100, 65536)

#: For writing to Cloud Storage, pulling from Artifact Registry (which needs storage), writing logs and metrics.
SCOPES = (
    "https://www.googleapis.com/auth/devstorage.read_write",
    "https://www.googleapis.com/auth/logging.write",
    "https://www.googleapis.com/auth/monitoring.write",
)
#: A VM that deletes itself calls Compute Engine.
DELETE_SCOPE = "https://www.googleapis.com/auth/compute"
LABEL = {"created-by": "gpu-pipelines"}

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_NETWORK = re.compile(r"([a-z0-9.:-]+|projects/[^/\s,]+/global/networks/[a-z0-9-]+)")
_SUBNET = re.compile(r"([a-z0-9-]+|projects/[^/\s,]+/regions/(?P<region>[a-z0-9-]+)/subnetworks/[a-z0-9-]+)")


@dataclass(frozen=True)
class VmOptions:
    """The options of a VM besides its plan, its container and the project's settings. None: not given.

    Attributes:
        name: of the VM; made from GPU and number if not given.
        zone: zone of the plan's region; each of them in turn if not given.
        boot_disk_gb: size of the boot disk, GB.
        max_wait_hours: how long a Flex-start request waits for a machine, hours; two if not given.
        at_end: what happens to the VM when its training has ended or failed: `stop`, `delete` or `keep`.
        environment: variables of the container, by name.
        output_directory: `gs://…` for checkpoints, model and log.
        sync_directory: directory in the container that is copied there while the training runs.
        work_directory: directory in the container that stays on the VM's disk from one start to the next.
        network, subnet: network of the VM, by name or full name.
        external_ip: whether it has an address on the internet.
        image_family, image_project: boot image instead of the one chosen for the GPU.
    """

    name: str | None = None
    zone: str | None = None
    boot_disk_gb: int = 200
    max_wait_hours: float | None = None
    at_end: str = "stop"
    environment: Mapping[str, str] = field(default_factory=dict)
    output_directory: str | None = None
    sync_directory: str | None = None
    work_directory: str | None = None
    network: str | None = None
    subnet: str | None = None
    external_ip: bool = True
    image_family: str | None = None
    image_project: str | None = None


@dataclass(frozen=True)
class VirtualMachine:
    """A requested VM, which was checked; the formats do not check it again.

    Attributes:
        name, project, zone, machine_type: as in Compute Engine.
        other_zones: further zones to try, in order.
        accelerator: name and number of the GPUs to attach; None if they are part of the machine type.
        boot_image: its boot image.
        boot_disk_type, boot_disk_gb: the boot disk, GB.
        encryption_key: full name of the Cloud KMS key of the boot disk; None for Google's own.
        provisioning_model: `STANDARD`, `SPOT` or `FLEX_START`.
        reservation: name of the reservation that it must come from; None for none in particular.
        max_run_seconds: Compute Engine ends it after that; None for no limit.
        max_wait_seconds: how long the request waits for a machine; None if it does not wait.
        termination_action: `STOP` or `DELETE`, when Compute Engine ends it; None if it does not.
        discards_local_ssd: whether it has local SSDs, which do not outlive a stop.
        network, subnet: its network; None for the default.
        external_ip: whether it has an address on the internet.
        nic_type: `GVNIC`, or None to leave it to the image.
        service_account: its service account; None for the project's default.
        scopes: the Google APIs that it may use, if its service account may.
        labels: its labels.
        startup: settings of its start-up script.
        warnings: what the user should know, including the warnings of the plan.
    """

    name: str
    project: str
    zone: str
    other_zones: tuple[str, ...]
    machine_type: str
    accelerator: tuple[str, int] | None
    boot_image: BootImage
    boot_disk_type: str
    boot_disk_gb: int
    encryption_key: str | None
    provisioning_model: str
    reservation: str | None
    max_run_seconds: int | None
    max_wait_seconds: int | None
    termination_action: str | None
    discards_local_ssd: bool
    network: str | None
    subnet: str | None
    external_ip: bool
    nic_type: str | None
    service_account: str | None
    scopes: tuple[str, ...]
    labels: Mapping[str, str]
    startup: StartupSettings
    warnings: tuple[str, ...]

    @property
    def script(self) -> str:
        """The start-up script."""
        return startup_script(self.startup)

    @property
    def place(self) -> dict[str, str]:
        """The identification by which it is found again."""
        return {"name": self.name, "zone": self.zone, "project": self.project}

    def in_zone(self, zone: str) -> VirtualMachine:
        """The same VM in another zone."""
        return replace(self, zone=zone, startup=replace(self.startup, zone=zone))


def virtual_machine(
    plan: AcceleratorPlan, container: Container, settings: ProjectSettings, options: VmOptions
) -> VirtualMachine:
    """The VM of a plan.

    Args:
        plan: its GPUs and machine, checked by the rules of Vertex AI training.
        container: what it runs.
        settings: project, service account, network, key and labels.
        options: the rest.

    Raises:
        UserError: lists what is wrong with them.
    """
    if problems := [*_problems(plan, options), *_problem_of_key(plan, settings.encryption_key)]:
        raise UserError.of_all(problems)
    settings.require("project")
    image = boot_image(plan, options.image_family, options.image_project)
    zone, *others = zones_to_try(plan, options.zone)
    machine, gpu = plan.machine, plan.gpu
    assert machine is not None
    assert gpu is not None
    name = options.name or f"train-{gpu.name}-{plan.count}"
    run_hours = plan.hours or (FLEX_START_RUN_HOURS if plan.strategy == "flex-start" else None)
    ends = run_hours is not None or plan.strategy == "spot"
    return VirtualMachine(
        name=name,
        project=settings.project or "",
        zone=zone,
        other_zones=tuple(others),
        machine_type=machine.name,
        accelerator=(gpu.compute_engine_name, plan.count) if machine.attached else None,
        boot_image=image,
        boot_disk_type=machine.boot_disk,
        boot_disk_gb=options.boot_disk_gb,
        encryption_key=settings.encryption_key,
        provisioning_model=PROVISIONING[plan.strategy],
        reservation=_reservation(plan, settings.project),
        max_run_seconds=None if run_hours is None else round(run_hours * 3600),
        max_wait_seconds=_max_wait_seconds(plan, options),
        termination_action=("DELETE" if options.at_end == "delete" else "STOP") if ends else None,
        discards_local_ssd=bool(machine.local_ssd_gb),
        network=options.network or settings.network,
        subnet=options.subnet,
        external_ip=options.external_ip,
        nic_type=machine.nic or None,
        service_account=settings.service_account,
        scopes=SCOPES + ((DELETE_SCOPE,) if options.at_end == "delete" else ()),
        labels={**LABEL, **settings.labels},
        startup=_startup(name, zone, plan.count, container, options),
        warnings=_warnings(plan, image, container, options),
    )


def _startup(name: str, zone: str, gpus: int, container: Container, options: VmOptions) -> StartupSettings:
    same = ("environment", "output_directory", "sync_directory", "work_directory", "at_end")
    found = StartupSettings(name, zone, gpus, container, **{each: getattr(options, each) for each in same})
    # The error of a too long script belongs to the request, not to the command that sends it.
    startup_script(found)
    return found


def _problems(plan: AcceleratorPlan, options: VmOptions) -> list[str]:
    if plan.is_local:
        return [f"{plan.spec} is for this machine; Compute Engine has no such machine. Choose a GPU, such as l4:1."]
    problems = []
    if plan.partition:
        problems.append(f"{plan.spec} is a partition of a GPU, which jobs of Vertex AI can have. A VM has whole GPUs.")
    if plan.nodes > 1:
        problems.append(
            f"A VM is one machine, not {plan.nodes}. Train on several with gpu-pipelines job submit --accelerator "
            f"{plan.spec} --nodes {plan.nodes}, which brings them together."
        )
    low, high = DISK_GB
    if not low <= options.boot_disk_gb <= high:
        problems.append(f"A boot disk cannot have {options.boot_disk_gb} GB; give {low} to {high} GB.")
    if options.at_end not in AT_END:
        problems.append(f"--at-end {options.at_end[:40]!r} is not known. {nearest(options.at_end, AT_END)}")
    if plan.hours is not None and not _LEAST_RUN_SECONDS <= plan.hours * 3600 <= _MOST_RUN_HOURS * 3600:
        problems.append(
            f"A VM cannot be limited to {plan.hours:g} hours; give {_LEAST_RUN_SECONDS} seconds to {_MOST_RUN_HOURS:,} "
            "hours."
        )
    wait = options.max_wait_hours
    if wait is not None and plan.strategy != "flex-start":
        problems.append(f"Only flex-start waits for machines; the strategy is {plan.strategy}. Leave --max-wait out.")
    elif wait is not None and not (math.isfinite(wait) and 1 <= wait * 3600 <= FLEX_START_WAIT_HOURS * 3600):
        problems.append(f"A VM cannot wait {wait:g} hours; {FLEX_START_WAIT_HOURS:g} at most, and a second at least.")
    return [*problems, *_problems_of_places(options), *_problems_of_names(options), *_problem_of_subnet(plan, options)]


def _problems_of_places(options: VmOptions) -> list[str]:
    problems = []
    output, sync = options.output_directory, options.sync_directory
    if output is not None and not has_form("pipeline_root", output):
        problems.append(f"--output-dir {output[:80]!r} is not a place in Cloud Storage, gs://BUCKET/FOLDER.")
    if sync is not None and output is None:
        problems.append(f"--sync-dir {sync[:80]} is copied to the output directory. Give --output-dir.")
    if sync is not None and (not PurePosixPath(sync).is_absolute() or ":" in sync or sync.strip("/") == ""):
        problems.append(f"--sync-dir {sync[:80]!r} must be the full path of a directory in the container.")
    return problems


def _problems_of_names(options: VmOptions) -> list[str]:
    problems = []
    if options.name is not None and not _NAME.fullmatch(options.name):
        problems.append(
            f"--name {options.name[:80]!r} is not valid: a VM's name begins with a lower-case letter, has lower-case "
            "letters, digits and dashes, does not end with a dash, and has 63 of them at most."
        )
    for flag, value, form in (("--network", options.network, _NETWORK), ("--subnet", options.subnet, _SUBNET)):
        if value is not None and not form.fullmatch(value):
            problems.append(f"{flag} {value[:80]!r} is neither a name nor a full name, projects/P/….")
    return problems + problems_of_variables(options.environment)


def _problem_of_subnet(plan: AcceleratorPlan, options: VmOptions) -> list[str]:
    subnet = _SUBNET.fullmatch(options.subnet or "")
    region = subnet and subnet["region"]
    if region and plan.region and region != plan.region:
        return [f"--subnet {options.subnet} is in {region}, and the VM would be in {plan.region}."]
    return []


def _problem_of_key(plan: AcceleratorPlan, key: str | None) -> list[str]:
    place = key.split("/")[3] if key else ""
    # The location of a multi-region key, such as us, has no hyphen, and the key works for disks in these regions.
    if "-" in place and plan.region and place != plan.region:
        return [f"The key is in {place}, and the disk to encrypt would be in {plan.region}: {key}."]
    return []


def _reservation(plan: AcceleratorPlan, project: str | None) -> str | None:
    """The reservation for gcloud: the name of the project's own, or project and name of a shared one."""
    if plan.reservation is None:
        return None
    _, owner, _, _, _, name = plan.reservation.split("/")
    return name if owner == project else f"projects/{owner}/reservations/{name}"


def _max_wait_seconds(plan: AcceleratorPlan, options: VmOptions) -> int | None:
    if plan.strategy != "flex-start":
        return None
    return round((options.max_wait_hours or FLEX_START_WAIT_HOURS) * 3600)


def _warnings(plan: AcceleratorPlan, image: BootImage, container: Container, options: VmOptions) -> tuple[str, ...]:
    # Quotas, regions and offers of Vertex AI do not apply to Compute Engine.
    warnings = [caution.message for caution in plan.warnings if not caution.of_vertex]
    warnings += filter(None, [image.warning, shut_down(container.image)])
    if plan.machine is not None and plan.machine.rdma:
        warnings.append(
            f"Google's pages show {plan.machine_type} with {plan.machine.interfaces or 'further'} network interfaces. "
            "This VM has one, which one machine can train with; that it starts so is not verified."
        )
    if plan.strategy == "reservation" and plan.reservation is None:
        warnings.append(
            "Compute Engine takes the VM from a reservation that matches, and on demand where there is none; "
            "--reservation names the one to take it from."
        )
    if options.output_directory is None:
        warnings.append(
            "Without --output-dir checkpoints stay where the training writes them, and the log on the VM and its "
            "serial port."
        )
    return tuple(dict.fromkeys(warnings))
