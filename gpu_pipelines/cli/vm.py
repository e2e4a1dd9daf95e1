"""`gpu-pipelines vm`: a plan as a VM on Compute Engine that trains, printed or created."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli import job_options as options
from gpu_pipelines.cli.application import Application
from gpu_pipelines.cli.tables import width_of, wrapped
from gpu_pipelines.errors import ERROR_PREFIX, UserError, nearest

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.targets.compute_engine.spec import VirtualMachine

RUN_FAILED = 1
FORMATS = ("gcloud", "terraform", "script")
#: Files of each format.
STARTUP_FILE, COMMAND_FILE, TERRAFORM_FILE = "startup.sh", "create.sh", "main.tf.json"

app = Application(name="vm", help="A VM on Compute Engine that trains and then stops.")

Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="-- ARGUMENT…", help="The application's own arguments, after --.")
]
Accelerator = Annotated[str, typer.Option(metavar="SPEC", help="GPUs of the VM: NAME:COUNT, as l4:4.")]
Name = Annotated[str | None, typer.Option(help="Name of the VM; made from the accelerator if not given.")]
Nodes = Annotated[int, typer.Option(help="1; several machines are what job submit is for.", hidden=True)]
Zone = Annotated[str | None, typer.Option(help="Zone; one of the region's that have the GPU if not given.")]
Image = Annotated[str | None, typer.Option(help="Container image to run.")]
Command = Annotated[
    str | None,
    typer.Option(metavar="WORDS", help='Runs in place of the image\'s entrypoint, in quotes: "python -m trainer".'),
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="A variable of the container; no secrets. Repeatable."),
]
OutputDir = Annotated[
    str | None, typer.Option(metavar="URI", help="gs://…, from which AIP_CHECKPOINT_DIR and its like are made.")
]
SyncDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="A directory in the container to copy to checkpoints/ of --output-dir."),
]
AtEnd = Annotated[str, typer.Option(help="What becomes of the VM at the end: stop, delete or keep.")]
MaxWait = Annotated[
    float | None, typer.Option(metavar="HOURS", help="With flex-start: wait for a machine so long, 2 at most.")
]
Network = Annotated[str | None, typer.Option(metavar="NAME", help="VPC network, by name or full name.")]
Subnet = Annotated[str | None, typer.Option(metavar="NAME", help="Subnet, by name or full name.")]
ExternalIp = Annotated[
    bool, typer.Option("--external-ip/--no-external-ip", help="Whether the VM has an address on the internet.")
]
ImageFamily = Annotated[str | None, typer.Option(metavar="NAME", help="Boot from this image family instead.")]
ImageProject = Annotated[str | None, typer.Option(metavar="ID", help="Project of --image-family.")]
Label = Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label of the VM; repeatable.")]


@app.command()
def config(
    arguments: Arguments = None,
    accelerator: Accelerator = "",
    nodes: Nodes = 1,
    strategy: options.Strategy = None,
    region: options.Region = None,
    zone: Zone = None,
    machine_type: options.MachineType = None,
    reservation: options.Reservation = None,
    hours: options.Hours = None,
    max_wait: MaxWait = None,
    image: Image = None,
    command: Command = None,
    env: Env = None,
    output_dir: OutputDir = None,
    sync_dir: SyncDir = None,
    at_end: AtEnd = "stop",
    name: Name = None,
    project: options.Project = None,
    service_account: options.ServiceAccount = None,
    network: Network = None,
    subnet: Subnet = None,
    external_ip: ExternalIp = True,
    encryption_key: options.EncryptionKey = None,
    image_family: ImageFamily = None,
    image_project: ImageProject = None,
    label: Label = None,
    boot_disk_gb: options.BootDiskGb = options.BOOT_DISK_GB,
    output_format: Annotated[
        str, typer.Option("--format", help="gcloud: the command; terraform: JSON; script: the start-up script.")
    ] = "gcloud",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write files there instead of printing.")
    ] = None,
) -> None:
    """Print the command that creates the VM, or Terraform JSON, or its start-up script."""
    if output_format not in FORMATS:
        raise UserError(f"--format {output_format[:40]!r} is not known. {nearest(output_format, FORMATS)}")
    vm, plan = _requested(locals())
    files = _files(vm, output_format, output)
    _warn(vm, plan)
    if output is not None:
        _write(files, output)
        return
    if output_format == "gcloud":
        print(f"# {STARTUP_FILE} is what --format script prints; -o DIR writes both files.")
    print(files[next(iter(files))], end="")


@app.command()
def create(
    arguments: Arguments = None,
    accelerator: Accelerator = "",
    nodes: Nodes = 1,
    strategy: options.Strategy = None,
    region: options.Region = None,
    zone: Zone = None,
    machine_type: options.MachineType = None,
    reservation: options.Reservation = None,
    hours: options.Hours = None,
    max_wait: MaxWait = None,
    image: Image = None,
    command: Command = None,
    env: Env = None,
    output_dir: OutputDir = None,
    sync_dir: SyncDir = None,
    at_end: AtEnd = "stop",
    name: Name = None,
    project: options.Project = None,
    service_account: options.ServiceAccount = None,
    network: Network = None,
    subnet: Subnet = None,
    external_ip: ExternalIp = True,
    encryption_key: options.EncryptionKey = None,
    image_family: ImageFamily = None,
    image_project: ImageProject = None,
    label: Label = None,
    boot_disk_gb: options.BootDiskGb = options.BOOT_DISK_GB,
    as_json: options.AsJson = False,
) -> None:
    """Create the VM with gcloud. What it costs is shown before."""
    from gpu_pipelines.targets.compute_engine.create import CreationError, create_vm
    from gpu_pipelines.targets.vertex.job_config import told_cost, told_plan

    vm, plan = _requested(locals())
    _tell(told_plan(plan))
    _tell(told_cost(plan))
    _warn(vm, plan)
    try:
        created = create_vm(vm, _tell)
    except CreationError as error:
        print(f"{ERROR_PREFIX}{error}", file=sys.stderr)
        raise typer.Exit(RUN_FAILED) from None
    _show_created(created.vm, created.status, as_json)


def _requested(given: dict[str, Any]) -> tuple[VirtualMachine, AcceleratorPlan]:
    """The VM and the plan of a command's parameters, by their names."""
    from gpu_pipelines.accelerators import plan as planned
    from gpu_pipelines.accelerators.request import require_gpu
    from gpu_pipelines.project_settings import load_project_settings
    from gpu_pipelines.targets.compute_engine.spec import VmOptions, virtual_machine
    from gpu_pipelines.targets.compute_engine.zones import region_to_plan
    from gpu_pipelines.targets.vertex.job_spec import Container

    if not given["accelerator"]:
        raise UserError("A VM needs GPUs.", "Give --accelerator, l4:1 say; gpu-pipelines accelerators list shows them.")
    require_gpu(given["accelerator"], "Compute Engine")
    names = ("project", "region", "image", "service_account", "encryption_key")
    settings = load_project_settings({name: given[name] for name in names})
    settings = options.with_labels(settings, given["label"])
    settings.require("project", "image")
    plan = planned(
        given["accelerator"],
        nodes=given["nodes"],
        # A reservation brings its own zone.
        region=region_to_plan(given["zone"], given["region"], None if given["reservation"] else settings.region),
        strategy=given["strategy"],
        machine_type=given["machine_type"],
        reservation=given["reservation"],
        hours=given["hours"],
    )
    same = ("name", "zone", "boot_disk_gb", "at_end", "network", "subnet", "external_ip", "image_family")
    wanted = VmOptions(
        **{name: given[name] for name in (*same, "image_project")},
        max_wait_hours=given["max_wait"],
        environment=options.variables(given["env"]),
        output_directory=given["output_dir"],
        sync_directory=given["sync_dir"],
    )
    container = Container(settings.image or "", _words(given["command"]), given["arguments"] or [])
    return virtual_machine(plan, container, settings, wanted), plan


def _words(command: str | None) -> list[str]:
    try:
        return shlex.split(command or "")
    except ValueError as error:
        raise UserError(f"--command {(command or '')[:80]!r} cannot be split into words: {error}.") from None


def _files(vm: VirtualMachine, output_format: str, folder: Path | None) -> dict[str, str]:
    """The files of a format, by name; the first is the one to print."""
    from gpu_pipelines.targets.compute_engine.command import create_command, shell_text
    from gpu_pipelines.targets.compute_engine.terraform import terraform_text

    if output_format == "terraform":
        return {TERRAFORM_FILE: terraform_text(vm)}
    if output_format == "script":
        return {STARTUP_FILE: vm.script}
    script = str(folder / STARTUP_FILE) if folder else STARTUP_FILE
    return {COMMAND_FILE: f"{shell_text(create_command(vm, script))}\n", STARTUP_FILE: vm.script}


def _write(files: dict[str, str], folder: Path) -> None:
    for name, text in files.items():
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"The file {path} cannot be written: {error.strerror}.") from None
        print(f"wrote {path}")


def _show_created(vm: VirtualMachine, status: str, as_json: bool) -> None:
    from gpu_pipelines.targets.compute_engine.create import ways_to_it

    ways = {what: shlex.join(command) for what, command in ways_to_it(vm).items()}
    if as_json:
        document = {"name": vm.name, "project": vm.project, "zone": vm.zone, "status": status, "commands": ways}
        print(json.dumps(document, indent=2))
        return
    print(f"created {vm.name} in {vm.zone}: {status}")
    for what, way in ways.items():
        print(f"{what}: {way}")


def _warn(vm: VirtualMachine, plan: AcceleratorPlan) -> None:
    # Quotas, regions and offers of Vertex AI do not apply to Compute Engine.
    of_machine = [caution.message for caution in plan.warnings if not caution.of_vertex]
    for message in dict.fromkeys([*of_machine, *vm.warnings]):
        _tell(f"warning: {message}")


def _tell(text: str) -> None:
    print(wrapped(text, then="  ", width=width_of(sys.stderr)), file=sys.stderr, flush=True)
