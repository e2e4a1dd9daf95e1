"""`gpu-pipelines vm` inside the test's own process, as `main` would have it."""

from __future__ import annotations

from conftest import Finished
from typer.testing import CliRunner

from gpu_pipelines.cli.main import WRONG_REQUEST, app
from gpu_pipelines.errors import UserError


def vm_command(*arguments: str) -> Finished:
    """What a command printed, and its exit status."""
    result = CliRunner().invoke(app, ["vm", *arguments])
    if isinstance(result.exception, UserError):
        return Finished(WRONG_REQUEST, result.stdout, f"{result.stderr}error: {result.exception}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Finished(result.exit_code, result.stdout, result.stderr)
