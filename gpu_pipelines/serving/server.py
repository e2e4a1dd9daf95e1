"""The server as a process: it listens at once, loads the model meanwhile, and ends without losing a request."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
import time
import warnings
from types import FrameType

import uvicorn

from gpu_pipelines.artifacts.remote_files import folder_at
from gpu_pipelines.errors import ERROR_PREFIX, UserError
from gpu_pipelines.garbage import collect_as_usual
from gpu_pipelines.serving.app import Serving
from gpu_pipelines.serving.connections import Connections
from gpu_pipelines.serving.listener import BACKLOG
from gpu_pipelines.serving.log_limit import LogLimit
from gpu_pipelines.serving.settings import Contract, ServerSettings

#: How long connections without a request are kept open, seconds; longer than load balancers keep theirs.
_KEPT_SECONDS = 650
#: How long a request may be in transit over an open connection, seconds.
_ON_ITS_WAY_SECONDS = 0.25
#: How long requests in progress may take after the server stops listening, seconds.
_LAST_ANSWERS_SECONDS = 60
#: uvicorn ticks ten times a second.
_TICKS_A_SWEEP = 5
#: asyncio accepts as many connections as its backlog before it serves the first of them.
_ACCEPTED_AT_ONCE = 32
DONE, FAILED, WRONG_REQUEST = 0, 1, 2


def serve(
    model: str, settings: ServerSettings, contract: Contract, listener: socket.socket, access_log: bool = False
) -> int:
    """Serves a model until a signal ends it.

    Args:
        model: directory of an exported model, or `gs://…`.
        settings: the limits.
        contract: the routes.
        listener: the socket to listen on.
        access_log: whether to print each request.

    Returns:
        Exit status: 0 ended by a signal; 1 or 2 the model cannot be loaded.
    """
    serving, connections = Serving(settings, contract), Connections(settings)
    serving.metrics.watch("connections", "Connections that are open.", lambda: len(connections.open))
    serving.metrics.watch_closed(connections.closed)
    config = uvicorn.Config(
        serving,
        # A subclass of the protocol of uvicorn that bounds the size of headers.
        http=connections,  # type: ignore[arg-type]
        loop="asyncio",
        ws="none",
        backlog=_ACCEPTED_AT_ONCE,
        log_level="info" if access_log else "warning",
        access_log=access_log,
        server_header=False,
        timeout_keep_alive=_KEPT_SECONDS,
        timeout_graceful_shutdown=_LAST_ANSWERS_SECONDS,
    )
    # Clients can make these loggers write without bound; the access log is written because somebody wants it.
    for logger in ("uvicorn.error", "asyncio"):
        logging.getLogger(logger).addFilter(LogLimit())
    # What Pillow says of damaged images; the client is told in the answer.
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"PIL\.")
    server = _Server(config, serving, connections, settings.drain_seconds)
    threading.Thread(target=server.load, args=(model, settings, _address(listener), contract), daemon=True).start()
    server.run([listener])
    return server.status


class _Server(uvicorn.Server):
    """uvicorn's server, which continues for a while after a SIGTERM.

    Whoever sends the requests needs a moment to learn that the server ends. Meanwhile each connection is closed with
    its next answer, so that none is cut while a request is in transit.
    """

    def __init__(
        self, config: uvicorn.Config, serving: Serving, connections: Connections, drain_seconds: float
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self.status = DONE
        self._serving = serving
        self._drain_seconds = drain_seconds
        self._end = float("inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._serving.draining or sig == signal.SIGINT:
            self.should_exit = True
        self._serving.draining = True
        self._end = min(self._end, time.monotonic() + self._drain_seconds)

    async def on_tick(self, counter: int) -> bool:
        if time.monotonic() >= self._end:
            self.should_exit = True
        if counter % _TICKS_A_SWEEP == 0:
            self._connections.sweep()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._serving.draining = True
        # Accepts connections that the system has already opened, which would be cut off with the socket.
        await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        # Closing a connection without a request could cut one in transit, so waits for it first.
        await asyncio.sleep(_ON_ITS_WAY_SECONDS)
        await super().shutdown(sockets)

    def load(self, model: str, settings: ServerSettings, address: str, contract: Contract) -> None:
        """Loads the model and serves it; ends the server if that fails."""
        started = time.monotonic()
        try:
            from gpu_pipelines.serving.predictors import load_predictor, name_of

            directory = folder_at(model)
            predictor, name = load_predictor(directory, settings), name_of(directory)
            collect_as_usual()
            self._serving.start(predictor, name)
        except UserError as error:
            print(f"{ERROR_PREFIX}{error}", file=sys.stderr, flush=True)
            self.status, self.should_exit = WRONG_REQUEST, True
            return
        except BaseException:
            self.status, self.should_exit = FAILED, True
            raise
        print(
            f"serving {predictor.task} on {predictor.device} at {address}{contract.predict_route} "
            f"(loaded in {time.monotonic() - started:.1f} s)",
            flush=True,
        )


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
