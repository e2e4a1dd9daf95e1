"""`gpu-pipelines emulator`: Vertex AI on this machine, and the settings for its clients."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import Application, print_json
from gpu_pipelines.cli.target_options import AsJson
from gpu_pipelines.emulator.extra import needed_by
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.emulator.start import EmulatorSettings

PORT = 8990
#: Long enough for lists that people read; tests use shorter times.
_PAGE_SIZE = 100

app = Application(name="emulator", help="Vertex AI on this machine.")
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
Host = Annotated[str, typer.Option(help="Address to listen on.")]


Capacity = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGION:ACCELERATOR=N",
        help="Capacity of an accelerator, such as us-central1:NVIDIA_L4=2; others are unlimited. Repeatable.",
    ),
]
Quota = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGION:ACCELERATOR=N",
        help="Quota of the project for an accelerator, in the form of --capacity. Repeatable.",
    ),
]


@app.command()
def start(
    port: Port = PORT,
    host: Host = "127.0.0.1",
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory that keeps the state for the next start; by default a temporary one."
        ),
    ] = None,
    rehearse: Annotated[
        str, typer.Option(metavar="cpu:N", help="CPU processes that stand in for the GPUs of each machine.")
    ] = "cpu:1",
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVICE:CODE:RATE", help="Make requests fail at random, such as aiplatform:503:0.1. Repeatable."
        ),
    ] = None,
    preempt: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS|PROBABILITY",
            help="Preempt Spot machines: 20s after 20 seconds; 0.1 with this probability a minute; 20s:3 three times.",
        ),
    ] = None,
    capacity: Capacity = None,
    quota: Quota = None,
    permissions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML file of what service accounts may do; by default everything."),
    ] = None,
    speed: Annotated[
        float, typer.Option(min=0.001, help="Speed of the schedules' clock: its seconds in one second.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Random seed; the same seed gives the same faults.")] = 0,
) -> None:
    """Serve Vertex AI, Artifact Registry, Cloud Storage and Cloud Logging until Ctrl-C.

    What is submitted runs here: the containers of steps as processes, with the Python of this command.
    """
    with needed_by("gpu-pipelines emulator start"):
        from gpu_pipelines.emulator.start import EmulatorSettings

    settings = EmulatorSettings(
        host=host,
        port=port,
        state=state,
        rehearse=rehearse,
        faults=tuple(fault or ()),
        preempt=preempt or "",
        capacity=tuple(capacity or ()),
        quota=tuple(quota or ()),
        permissions=permissions,
        seed=seed,
        speed=speed,
    )
    serve(settings)


def serve(settings: EmulatorSettings) -> None:
    """Runs an emulator until SIGINT or SIGTERM, and prints how to reach it."""
    from gpu_pipelines.emulator.start import running_emulator

    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with running_emulator(settings) as api:
        api.state.page_size = _PAGE_SIZE
        print(f"Vertex AI on this machine listens at {api.url}")
        print(f"project example-project, region us-central1, gs://example-bucket; state: {api.folder}")
        named = f" --port {api.url.rpartition(':')[2]}" if not api.url.endswith(f":{PORT}") else ""
        print(f'In another shell: eval "$(gpu-pipelines emulator env{named})". Ctrl-C stops it.', flush=True)
        stopped.wait()
        print("stopping", file=sys.stderr)


@app.command()
def env(port: Port = PORT, host: Host = "127.0.0.1", as_json: AsJson = False) -> None:
    """Print the variables by which gcloud, Google's SDKs, the KFP client and Terraform use a running emulator.

    As exports of a shell: eval "$(gpu-pipelines emulator env)".
    """
    about = about_emulator(f"http://{host}:{port}")
    if as_json:
        print_json(about)
        return
    for name, value in sorted(about["environment"].items()):
        print(f"export {name}={shlex.quote(value)}")


def about_emulator(address: str) -> dict[str, Any]:
    """The description of a running emulator.

    Raises:
        UserError: no emulator listens there.
    """
    from gpu_pipelines.console.emulator_client import EmulatorClient

    try:
        return EmulatorClient(address).about
    except UserError as error:
        remedy = "Start one: gpu-pipelines emulator start. If it has another port, give --port."
        raise UserError(error.problem, remedy) from error
