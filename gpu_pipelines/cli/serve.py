"""`gpu-pipelines serve`: a model behind HTTP on this machine, as on a Vertex AI endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_pipelines.component_interface.default_registry import DEFAULT_REGISTRY, registry_of_project
from gpu_pipelines.errors import UserError

#: The packages of the extra `serving` that nothing else in this project brings.
_OF_THE_EXTRA = ("fastapi", "uvicorn", "prometheus_client", "torch", "transformers")


def serve(
    model: Annotated[
        str,
        typer.Argument(help="Directory of an exported model, NAME@ALIAS or NAME@VERSION of a registry, or gs://…."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 means all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for a free one.")] = 8080,
    registry: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help=f"Registry that has NAME@…; by default that of gpu-pipelines.yaml, else {DEFAULT_REGISTRY}.",
        ),
    ] = "",
    max_batch: Annotated[int | None, typer.Option(help="Most instances in one batch; default 32.")] = None,
    max_wait_ms: Annotated[
        float | None, typer.Option(help="Longest time that a batch waits for more requests; default 5.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File of tokens, one a line. A client has to send one of them.")
    ] = None,
    log_requests: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Write a sample of the requests to a folder or gs://….")
    ] = None,
    log_share: Annotated[float | None, typer.Option(help="Share of the requests in the sample; default 0.1.")] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="Print each request.")] = False,
) -> None:
    """Serve a model: POST {"instances": [...]} to /predict, GET /health. Ctrl-C ends it.

    The routes and further limits are set in the environment; docs/serving.md lists them.
    """
    from dataclasses import replace

    _require_extra()
    place = place_of_model(model, registry or registry_of_project())
    from gpu_pipelines.serving.listener import listen
    from gpu_pipelines.serving.request_log import require_writable
    from gpu_pipelines.serving.server import serve as run_server
    from gpu_pipelines.serving.settings import Contract, ServerSettings, tokens_of

    asked: dict[str, Any] = {"max_batch": max_batch, "max_wait_ms": max_wait_ms}
    asked |= {"log_requests": log_requests, "log_share": log_share}
    if token_file is not None:
        asked["tokens"] = tokens_of(token_file)
    given = {name: value for name, value in asked.items() if value is not None}
    settings = replace(ServerSettings.of_environment(), **given)
    if problems := settings.problems():
        raise UserError.of_all(problems)
    if settings.log_requests:
        require_writable(settings.log_requests)
    status = run_server(place, settings, Contract.of_environment(), listen(host, port), access_log)
    raise typer.Exit(status)


def place_of_model(model: str, registry: str) -> str:
    """The place of a model's files, from its name on the command line.

    Args:
        model: a directory, `gs://…`, or `NAME@REFERENCE`; NAME alone is its champion.
        registry: the registry of names.

    Raises:
        UserError: there is no such model.
    """
    from gpu_pipelines.registry.missing import missing_model
    from gpu_pipelines.registry.named import directory_named, existing_registry

    if "://" in model:
        return model
    if directory := directory_named(model, registry):
        return str(directory)
    name, _, reference = model.partition("@")
    if not name or "/" in name:
        raise UserError(f"There is no directory {model}.", "Give an exported model, NAME@champion, or gs://….")
    opened = existing_registry(registry)
    if name not in opened.names():
        missing = missing_model(opened, name, registry)
        raise UserError(f"There is no directory {name!r}, and no such model in {registry}.", missing.remedy)
    return opened.version(name, reference or "champion").place


def _require_extra() -> None:
    from importlib.util import find_spec

    missing = [package for package in _OF_THE_EXTRA if find_spec(package) is None]
    if missing:
        raise UserError(
            f"The prediction server needs {', '.join(missing)}, which is not installed.",
            "pip install 'gpu-pipelines[serving]'",
        )
