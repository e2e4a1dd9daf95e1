"""The connections of the server: bounds on their number and on how long a client may take to send and to receive.

uvicorn bounds neither. A subclass of its protocol does, which the server calls once a second. Of the other servers,
hypercorn has no time limit for a request's head either, and granian brings an event loop in Rust whose workers are
separate processes, each of which would load the model.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpu_pipelines.serving.settings import ServerSettings

#: Open files that the process needs for everything else: libraries, the model, the bucket.
_OTHER_FILES = 128
#: How long a refused client may go on sending, seconds.
_LINGER_SECONDS = 1.0
_FULL = "The server has as many connections as it takes. Try again."
_SLOW = "The head of the request did not arrive in time."
_NO_HTTP = "This is not HTTP/1.1, or its head is too large."


class Connections:
    """Makes the connections of a server and looks after them.

    A connection without a request in progress may be closed at any time. If there are too many, the one that has waited
    longest is closed, so that new clients are answered even if others hold all connections open.

    Args:
        settings: the most connections, and the time limits.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._most = _most_connections(settings.max_connections)
        self._header_seconds, self._write_seconds = settings.header_seconds, settings.write_seconds
        self.open: set[Connection] = set()
        #: Connections closed early, by reason.
        self.closed = {"slow head": 0, "slow reader": 0, "too many": 0}

    def __call__(self, **arguments: Any) -> Connection:
        """A connection, called by uvicorn for each that it accepts."""
        return Connection(self, **arguments)

    def added(self, connection: Connection) -> None:
        """Counts a connection; if there are too many, closes another one."""
        self.open.add(connection)
        if len(self.open) <= self._most:
            return
        self.closed["too many"] += 1
        idle = [each for each in self.open if not each.has_request and each is not connection]
        if idle:
            min(idle, key=lambda each: each.waits_since).abort()
        else:
            connection.refuse(503, _FULL)

    def sweep(self) -> None:
        """Closes the connections whose clients take too long."""
        now = time.monotonic()
        for connection in list(self.open):
            if connection.refused_since is not None:
                if now - connection.refused_since > _LINGER_SECONDS:
                    connection.abort()
            elif connection.stuck_since is not None and now - connection.stuck_since > self._write_seconds:
                self.closed["slow reader"] += 1
                connection.abort()
            elif connection.head_since is not None and now - connection.head_since > self._header_seconds:
                self.closed["slow head"] += 1
                if connection.has_sent:
                    connection.refuse(408, _SLOW)
                else:
                    connection.transport.close()


class Connection(H11Protocol):
    """A connection of uvicorn that knows what it waits for, and since when.

    Attributes:
        head_since: since when a request's head is awaited; None between requests and while one is in progress.
        stuck_since: since when the client has not received an answer that does not fit into the buffers.
        refused_since: when it was refused; whatever still arrives is not read.
        waits_since: when its last request ended, or when it was opened.
    """

    def __init__(self, all_of_them: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._all = all_of_them
        self.head_since: float | None = None
        self.stuck_since: float | None = None
        self.refused_since: float | None = None
        self.waits_since = 0.0

    @property
    def has_request(self) -> bool:
        """Whether a request is in progress."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def has_sent(self) -> bool:
        """Whether data has arrived that is not yet the whole head of a request."""
        return bool(self.conn.trailing_data[0])

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.head_since = self.waits_since = time.monotonic()
        self._all.added(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.open.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self.refused_since is not None:
            return
        if self.head_since is None and not self.has_request:
            self.head_since = time.monotonic()
        super().data_received(data)
        if self.has_request or (self.conn.their_state is h11.IDLE and not self.has_sent):
            self.head_since = None

    def on_response_complete(self) -> None:
        self.waits_since = time.monotonic()
        # Further data is part of the next request, or of a body that nobody reads; neither may take for ever.
        self.head_since = self.waits_since if self.has_sent or self.conn.their_state is h11.SEND_BODY else None
        super().on_response_complete()
        if self.has_request:
            self.head_since = None

    def pause_writing(self) -> None:
        self.stuck_since = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stuck_since = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, _NO_HTTP)

    def refuse(self, status: int, message: str) -> None:
        """Answers something that is not, or not yet, a request, and closes.

        Data that the client is still sending is read for a moment. If the connection were closed at once, the system
        would report an error to the client before it has read the answer.
        """
        if self.transport.is_closing() or self.refused_since is not None:
            return
        self.refused_since = time.monotonic()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": message}).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            response = h11.Response(status_code=status, headers=headers, reason=_REASONS[status])
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.write_eof()

    def abort(self) -> None:
        """Closes at once, whatever is being sent."""
        self._all.open.discard(self)
        self.transport.abort()


_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 503: b"Service Unavailable"}


def _most_connections(wanted: int) -> int:
    """The wanted number of connections, or as many as the process may open files; raises that limit if possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + _OTHER_FILES:
        soft = min(hard, wanted + _OTHER_FILES) if hard != resource.RLIM_INFINITY else wanted + _OTHER_FILES
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - _OTHER_FILES))
