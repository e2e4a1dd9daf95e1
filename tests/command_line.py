"""The command line inside the test's own process: Google's and KFP's libraries take seconds to import."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import Finished

from gpu_pipelines.cli.main import app, main


@cache
def _built() -> Any:
    """The command that Typer makes of the application; it would make it anew for every call, which is most of one."""
    return typer.main.get_command(app)


def command(
    *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None, columns: int = 0
) -> Finished:
    """What a command printed, and its exit status.

    Args:
        arguments: as on the command line.
        cwd: where it runs; left out, where the test is.
        environment: variables that it has besides the test's own.
        columns: width of the terminal; 0 if nobody says it.
    """
    out, err, status = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        if cwd is not None:
            patch.chdir(cwd)
        patch.delenv("COLUMNS", raising=False)
        for name, value in {**(environment or {}), **({"COLUMNS": str(columns)} if columns else {})}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["gpu-pipelines", *arguments])
        patch.setattr("gpu_pipelines.cli.main.app", _built())
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main()
        except SystemExit as end:
            status = int(end.code or 0)
    return Finished(status, out.getvalue(), err.getvalue())
