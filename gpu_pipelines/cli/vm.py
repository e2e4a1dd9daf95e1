"""`gpu-pipelines vm`: a plan as a VM on Compute Engine that trains, printed or created."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import RUN_FAILED, Application, print_json
from gpu_pipelines.cli.target_options import Arguments, AsJson, with_fields
from gpu_pipelines.errors import ERROR_PREFIX
from gpu_pipelines.terminal import width_of, wrapped

if TYPE_CHECKING:
    from gpu_pipelines.targets.compute_engine.spec import VirtualMachine

app = Application(name="vm", help="Create a VM on Compute Engine that trains and then stops.")
_FLAGS = "gpu_pipelines.targets.compute_engine.compute_engine:VmFlags"


@app.command()
@with_fields(_FLAGS, "vm")
def config(
    options: Any,
    arguments: Arguments = None,
    output_format: Annotated[
        str, typer.Option("--format", help="gcloud: the command; terraform: JSON; script: the start-up script.")
    ] = "gcloud",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write files there instead of printing.")
    ] = None,
) -> None:
    """Print the command that creates the VM, or Terraform JSON, or its start-up script."""
    from gpu_pipelines.driver.machines import STARTUP_FILE, files_of, require_format, tell_cautions

    require_format(output_format)
    vm, _ = options.machine(arguments or [])
    files = files_of(vm, output_format, output)
    tell_cautions(vm, _tell)
    if output is not None:
        _write(files, output)
        return
    if output_format == "gcloud":
        print(f"# {STARTUP_FILE} is what --format script prints; -o DIR writes both files.")
    print(files[next(iter(files))], end="")


@app.command()
@with_fields(_FLAGS, "vm")
def create(options: Any, arguments: Arguments = None, as_json: AsJson = False) -> None:
    """Create the VM with gcloud. The cost is shown first."""
    from gpu_pipelines.driver.machines import created
    from gpu_pipelines.targets.compute_engine.create import CreationError

    try:
        made = created(options, arguments or [], _tell)
    except CreationError as error:
        print(f"{ERROR_PREFIX}{error}", file=sys.stderr)
        raise typer.Exit(RUN_FAILED) from None
    _show_created(made.vm, made.status, as_json)


def _write(files: dict[str, str], folder: Path) -> None:
    from gpu_pipelines.targets.compiled import write_file

    for name, text in files.items():
        write_file(folder / name, text)
        print(f"wrote {folder / name}")


def _show_created(vm: VirtualMachine, status: str, as_json: bool) -> None:
    from gpu_pipelines.targets.compute_engine.create import ways_to_it

    ways = {what: shlex.join(command) for what, command in ways_to_it(vm).items()}
    if as_json:
        document = {"name": vm.name, "project": vm.project, "zone": vm.zone, "status": status, "commands": ways}
        print_json(document)
        return
    print(f"created {vm.name} in {vm.zone}: {status}")
    for what, way in ways.items():
        print(f"{what}: {way}")


def _tell(text: str) -> None:
    print(wrapped(text, then="  ", width=width_of(sys.stderr)), file=sys.stderr, flush=True)
