"""The entry point of the command line: its commands, and its errors. Heavy imports are inside the commands."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_pipelines import __version__
from gpu_pipelines.cli import accelerators, completion, components, emulator, job, models, runs, schedule, vm
from gpu_pipelines.cli.application import (
    RUN_FAILED,
    WRONG_REQUEST,
    Application,
    CommandGroup,
    UsageError,
    told_usage_error,
)
from gpu_pipelines.cli.compile import compile_pipelines, upload
from gpu_pipelines.cli.console import console
from gpu_pipelines.cli.doctor import doctor
from gpu_pipelines.cli.init import init
from gpu_pipelines.cli.migrate import JobCommand, migrate
from gpu_pipelines.cli.parameters import parameters
from gpu_pipelines.cli.run import RunCommand, cancel, follow, run
from gpu_pipelines.cli.serve import serve
from gpu_pipelines.errors import ERROR_PREFIX, RunFailedError, UserError, of_the_system
from gpu_pipelines.garbage import collect_rarely

#: pathlib's message for `~name/file`.
_NO_HOME = "Could not determine home directory."
PIPELINES, MODELS, MACHINES = "Pipelines", "Models", "Accelerators, jobs and machines"


class _All(CommandGroup):
    """All commands; without arguments it shows what to do first."""

    def first_steps(self, ctx: Any) -> str:
        """See `CommandGroup.first_steps`."""
        steps = {
            "gpu-pipelines run train_evaluate_upload": "a pipeline on this machine, on a sample: a minute",
            "gpu-pipelines init my-pipeline": "a project of your own: pipeline, task, tests, continuous integration",
            "gpu-pipelines accelerators advise --help": "which GPUs fit a training, how long, at what cost",
            "gpu-pipelines doctor": "what is missing for runs in Google Cloud",
        }
        longest = max(map(len, steps))
        return "\n".join(["To begin:", *(f"  {command:<{longest}}  {what}" for command, what in steps.items())])


app = Application(
    cls=_All,
    name="gpu-pipelines",
    help="Training pipelines for Kubeflow and Vertex AI in which you choose the accelerator.",
)
app.command(rich_help_panel=PIPELINES)(init)
app.command(cls=RunCommand, rich_help_panel=PIPELINES)(run)
app.command(rich_help_panel=PIPELINES)(parameters)
app.add_typer(components.app, name="components", rich_help_panel=PIPELINES)
app.command(rich_help_panel=PIPELINES)(follow)
app.command(rich_help_panel=PIPELINES)(cancel)
app.command("compile", rich_help_panel=PIPELINES)(compile_pipelines)
app.command(rich_help_panel=PIPELINES)(upload)
app.add_typer(runs.app, name="runs", rich_help_panel=PIPELINES)
app.add_typer(schedule.app, name="schedule", rich_help_panel=PIPELINES)
app.add_typer(emulator.app, name="emulator", rich_help_panel=PIPELINES)
app.command(rich_help_panel=PIPELINES)(console)
app.add_typer(models.app, name="models", rich_help_panel=MODELS)
app.command(rich_help_panel=MODELS)(serve)
app.command(rich_help_panel=MACHINES)(doctor)
app.add_typer(accelerators.app, name="accelerators", rich_help_panel=MACHINES)
app.add_typer(job.app, name="job", rich_help_panel=MACHINES)
app.add_typer(vm.app, name="vm", rich_help_panel=MACHINES)
app.command(
    cls=JobCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    rich_help_panel=MACHINES,
)(migrate)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"gpu-pipelines {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Training pipelines for Kubeflow and Vertex AI in which you choose the accelerator."""


def main() -> None:
    """Runs the command line. Exit status: 0 done, 1 the run failed, 2 the request was wrong, 130 interrupted."""
    collect_rarely()
    # A daemon may be started without streams; without a stderr, Python would print errors on stdout.
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    # A terminal without UTF-8 shows other characters as "?"; they would otherwise end a run.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if completion.is_asked():
        completion.answer(app)
        return
    try:
        sys.exit(app(standalone_mode=False, prog_name="gpu-pipelines"))
    except UserError as error:
        print(f"{ERROR_PREFIX}{error}", file=sys.stderr)
        if isinstance(error, RunFailedError):
            sys.exit(RUN_FAILED)
    except UsageError as error:
        print(told_usage_error(error), file=sys.stderr)
    except RuntimeError as error:
        if str(error) != _NO_HOME:
            raise
        no_user = UserError("A path begins with ~ and a name that no user of this machine has.", "Give the whole path.")
        print(f"{ERROR_PREFIX}{no_user}", file=sys.stderr)
    except (OSError, UnicodeEncodeError) as error:
        told = of_the_system(error)
        if told is None:
            raise
        print(f"{ERROR_PREFIX}{told}", file=sys.stderr)
        sys.exit(RUN_FAILED)
    sys.exit(WRONG_REQUEST)


if __name__ == "__main__":
    main()
