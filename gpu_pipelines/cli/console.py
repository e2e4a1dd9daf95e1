"""`gpu-pipelines console`: a web page of the runs on this machine and of the emulator."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from gpu_pipelines.component_interface.default_registry import DEFAULT_REGISTRY, registry_of_project
from gpu_pipelines.errors import UserError

#: The packages of the extra `console` that nothing else in this project brings.
_OF_THE_EXTRA = ("fastapi", "uvicorn")
PORT = 8991
_EMULATOR, _NONE = "http://127.0.0.1:8990", "none"


def console(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = PORT,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run an emulator with this state, and show it.")
    ] = None,
    emulator: Annotated[
        str,
        typer.Option(metavar="URL", help=f"Emulator to show, or none; by default the one at {_EMULATOR}, if it runs."),
    ] = "",
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the runs.")] = Path("runs"),
    registry: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=f"Directory of the models; by default that of gpu-pipelines.yaml, else {DEFAULT_REGISTRY}.",
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Serve a web page of runs, pipelines, schedules and models until Ctrl-C.

    It is for this machine and its user alone: the address that is printed has a token.
    """
    _require_extra()
    if state is not None and emulator:
        raise UserError("--state runs an emulator, and --emulator names one that runs.", "Give one of them.")
    # A path has a single slash where an address has two.
    if str(registry).startswith(("mlflow:", "vertex:")):
        raise UserError(
            f"The console shows no models of {registry}.",
            "Give a directory; gpu-pipelines models list --registry URI lists those of any registry.",
        )
    from gpu_pipelines.console.server import Shown, serve
    from gpu_pipelines.distributed.signals import interrupt

    signal.signal(signal.SIGTERM, interrupt)

    def begun(address: str) -> None:
        print(f"The console is at {address}\nCtrl-C ends it; runs that it started continue.", flush=True)
        if open_page:
            _open(address)

    usual, asked = ("", "") if emulator == _NONE else (_EMULATOR, emulator)
    models = registry or _registry_of_project()
    serve(Shown(port=port, runs=runs, registry=models, state=state, emulator=asked, usual=usual), begun)


def _registry_of_project() -> Path:
    """The directory of the project's models; the default one if its registry is not a directory."""
    from gpu_pipelines.registry import is_local

    found = registry_of_project()
    return Path(found if is_local(found) else DEFAULT_REGISTRY)


def _open(address: str) -> None:
    from gpu_pipelines.cli.runs import has_browser

    if has_browser():
        import threading
        import webbrowser

        # The server responds right after this; some browsers keep their caller waiting.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def _require_extra() -> None:
    from importlib.util import find_spec

    missing = [package for package in _OF_THE_EXTRA if find_spec(package) is None]
    if missing:
        needed = f"The console needs {', '.join(missing)}, which is not installed."
        raise UserError(needed, "pip install 'gpu-pipelines[console]'")
