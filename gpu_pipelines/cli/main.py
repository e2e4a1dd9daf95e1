"""The command line's entry: commands, and how errors end it. Heavy imports live inside the commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gpu_pipelines import __version__
from gpu_pipelines.cli import accelerators, job, models, schedule, vm
from gpu_pipelines.cli.compile import compile_pipelines
from gpu_pipelines.cli.doctor import doctor
from gpu_pipelines.cli.follow import cancel, follow
from gpu_pipelines.cli.migrate import JobCommand, migrate
from gpu_pipelines.cli.run import run
from gpu_pipelines.cli.serve import serve
from gpu_pipelines.cli.upload import upload
from gpu_pipelines.errors import ERROR_PREFIX, UserError

DONE, RUN_FAILED, WRONG_REQUEST, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="gpu-pipelines",
    help="Training pipelines for Kubeflow and Vertex AI in which the accelerator is a choice.",
    no_args_is_help=True,
    # Plain help: drawing it with rich would take longer than all the rest of a short command.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command("compile")(compile_pipelines)
app.command()(doctor)
app.command()(follow)
app.command()(cancel)
app.command(cls=JobCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(migrate)
app.command()(upload)
app.command()(serve)
app.add_typer(schedule.app, name="schedule")
app.add_typer(accelerators.app, name="accelerators")
app.add_typer(models.app, name="models")
app.add_typer(job.app, name="job")
app.add_typer(vm.app, name="vm")


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
    """Training pipelines for Kubeflow and Vertex AI in which the accelerator is a choice."""


def main() -> None:
    """Runs the command line. Exit status: 0 done, 1 the run failed, 2 the request was wrong, 130 interrupted."""
    try:
        app()
    except UserError as error:
        print(f"{ERROR_PREFIX}{error}", file=sys.stderr)
        sys.exit(WRONG_REQUEST)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
