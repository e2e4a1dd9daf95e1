"""VMs on Compute Engine that train, in a Python program and for the commands `vm`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.driver.opening import arguments_of, container_options
from gpu_pipelines.driver.run import teller
from gpu_pipelines.errors import InvalidRequestError, nearest

if TYPE_CHECKING:
    from gpu_pipelines.targets.compute_engine.compute_engine import VmFlags
    from gpu_pipelines.targets.compute_engine.create import CreatedVm
    from gpu_pipelines.targets.compute_engine.spec import VirtualMachine

FORMATS = ("gcloud", "terraform", "script")
#: Files of each format.
STARTUP_FILE, COMMAND_FILE, TERRAFORM_FILE = "startup.sh", "create.sh", "main.tf.json"


def vm_config(
    accelerator: str,
    format: str = "gcloud",
    *,
    command: Sequence[str] = (),
    arguments: Sequence[Any] = (),
    progress: bool = True,
    **options: Any,
) -> dict[str, str]:
    """The files that create a VM which trains and then stops, as `gpu-pipelines vm config -o`.

    Args:
        accelerator: GPUs of the VM, NAME:COUNT, such as l4:4.
        format: `gcloud` for the command and the start-up script that it reads, `terraform` for JSON, or `script` for
            the start-up script alone.
        command: what to run in place of the image's entrypoint; empty for that.
        arguments: the application's own, texts and numbers; or one line, as a shell has it.
        progress: print warnings to stderr.
        options: those of the command, by the names of their flags with underscores: `image`, `zone`,
            `output_dir` and so on. What is not given is that of the project.

    Returns:
        The text of each file, by its name.

    Raises:
        UserError: lists what is wrong or missing.
        PlanError: the accelerator is not available like that.
    """
    from gpu_pipelines.targets.compute_engine.compute_engine import VmFlags

    require_format(format)
    flags = container_options(VmFlags, "vm", accelerator, command, options)
    vm, _ = flags.machine(arguments_of(arguments))
    tell_cautions(vm, teller(progress))
    return files_of(vm, format)


def create_vm(
    accelerator: str,
    *,
    command: Sequence[str] = (),
    arguments: Sequence[Any] = (),
    progress: bool = True,
    **options: Any,
) -> CreatedVm:
    """Creates a VM with gcloud that trains and then stops, as `gpu-pipelines vm create`.

    Args:
        accelerator: GPUs of the VM, NAME:COUNT, such as l4:4.
        command: what to run in place of the image's entrypoint; empty for that.
        arguments: the application's own, texts and numbers; or one line, as a shell has it.
        progress: print the cost, warnings and the zones tried to stderr.
        options: as of `vm_config`.

    Returns:
        The VM with its zone, and its status.

    Raises:
        UserError: lists what is wrong or missing; or there is no gcloud, or it is too old.
        PlanError: the accelerator is not available like that.
        CreationError: Compute Engine refuses, or no zone has a machine left.
    """
    from gpu_pipelines.targets.compute_engine.compute_engine import VmFlags

    flags = container_options(VmFlags, "vm", accelerator, command, options)
    return created(flags, arguments_of(arguments), teller(progress))


def require_format(format: str) -> None:
    """Raises UserError unless there is such a format."""
    if format not in FORMATS:
        raise InvalidRequestError(f"--format {format[:40]!r} is not known. {nearest(format, FORMATS)}")


def files_of(vm: VirtualMachine, format: str, folder: Path | None = None) -> dict[str, str]:
    """The files of a format, by name; the first is the one to print.

    Args:
        vm: the VM.
        format: one of `FORMATS`.
        folder: where they will be; None for the working directory of the command.
    """
    from gpu_pipelines.targets.compute_engine.formats import create_command, shell_text, terraform_text

    if format == "terraform":
        return {TERRAFORM_FILE: terraform_text(vm)}
    if format == "script":
        return {STARTUP_FILE: vm.script}
    script = str(folder / STARTUP_FILE) if folder else STARTUP_FILE
    return {COMMAND_FILE: f"{shell_text(create_command(vm, script))}\n", STARTUP_FILE: vm.script}


def created(flags: VmFlags, arguments: Sequence[str], tell: Callable[[str], None]) -> CreatedVm:
    """Creates a VM; errors as those of `create_vm`.

    Args:
        flags: the request.
        arguments: the application's own.
        tell: called with the cost, each warning and each zone that is tried.
    """
    from gpu_pipelines.targets.compute_engine.create import create_vm as create
    from gpu_pipelines.targets.plan_lines import told_cost, told_plan

    vm, plan = flags.machine(arguments)
    tell(told_plan(plan))
    tell(told_cost(plan))
    tell_cautions(vm, tell)
    return create(vm, tell)


def tell_cautions(vm: VirtualMachine, tell: Callable[[str], None]) -> None:
    """Tells each warning.

    Args:
        vm: the VM.
        tell: called with each.
    """
    for message in vm.warnings:
        tell(f"warning: {message}")
