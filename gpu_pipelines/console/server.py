"""Runs a console until it is stopped."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_pipelines.console.emulator_link import EmulatorLink, linked, started_for
from gpu_pipelines.errors import UserError

HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a console shows, and where it listens.

    Attributes:
        port: 0 for a free one.
        runs: directory of the runs on this machine.
        registry: directory of the registry.
        state: the folder of an emulator to start for the console; None starts none.
        emulator: address of a running emulator; empty for the usual address, if one answers there.
        usual: the usual address of emulators.
    """

    port: int
    runs: Path
    registry: Path
    state: Path | None = None
    emulator: str = ""
    usual: str = ""


def serve(shown: Shown, begun: Callable[[str], None]) -> None:
    """Serves a console until Ctrl-C or SIGTERM.

    Args:
        shown: what to show.
        begun: called with the address, including the token, when the console listens.

    Raises:
        UserError: the port is in use, or there is no such emulator.
    """
    with _listening(shown.port) as listener, _link(shown) as link:
        from uvicorn import Config, Server

        from gpu_pipelines.console.app import console_app
        from gpu_pipelines.console.context import ConsoleSettings

        port = listener.getsockname()[1]
        app, console = console_app(ConsoleSettings(shown.runs, shown.registry, port, link))
        config = Config(
            app,
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=2,
            server_header=False,
        )
        begun(f"http://{HOST}:{port}/?token={console.held.token}")
        # The imports for the first form take seconds.
        threading.Thread(target=_warm_up, daemon=True).start()
        with suppress(KeyboardInterrupt):
            Server(config).run(sockets=[listener])


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    try:
        listener = socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise UserError(f"Port {port} of {HOST} is taken.", "Give another --port; 0 takes a free one.") from error
        raise UserError(f"The console cannot listen at {HOST}:{port}: {error}.", "Give another --port.") from error
    with listener:
        yield listener


def _link(shown: Shown) -> AbstractContextManager[EmulatorLink]:
    if shown.state is not None:
        return started_for(shown.state)
    return nullcontext(linked(shown.emulator, shown.usual))


def _warm_up() -> None:
    """Imports what the forms and charts need, so that the first of them need not wait."""
    # The first page comes first.
    time.sleep(4)
    with suppress(Exception):
        from gpu_pipelines.console.pipelines import project_pipeline

        project_pipeline("train_evaluate_upload")
