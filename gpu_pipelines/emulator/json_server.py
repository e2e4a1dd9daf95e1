"""Local HTTP servers that answer with JSON, for the duration of a block."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from gpu_pipelines.emulator.certificates import Certificates

_CHUNK = 1 << 20


class JsonHandler(BaseHTTPRequestHandler):
    """Answers with JSON, and keeps no log."""

    # The body must not wait until the client has acknowledged the headers, which can take 40 ms on Linux.
    disable_nagle_algorithm = True

    def body(self) -> bytes:
        """The body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send(self, status: int, document: Any, kind: str = "application/json", **headers: str) -> None:
        """Answers.

        Args:
            status: of HTTP.
            document: written as JSON; bytes are sent as they are.
            kind: the content type.
            headers: further headers.
        """
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_file(self, status: int, file: BinaryIO, length: int, kind: str, **headers: str) -> None:
        """Answers with so many bytes of a file, from where it is."""
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        while length and (chunk := file.read(min(length, _CHUNK))):
            self.wfile.write(chunk)
            length -= len(chunk)
        # Of a file that became shorter meanwhile, the client must not wait for the rest.
        self.close_connection = self.close_connection or length > 0

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    # An upload comes by dozens of connections at once. Of more than these the kernel lets the rest try again, after
    # seconds or, where it has acknowledged them, after a minute.
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """As in http.server; a client that hangs up is not an error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


def server_of(
    handler: type[BaseHTTPRequestHandler],
    certificates: Certificates | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> ThreadingHTTPServer:
    """A server, with TLS if there are certificates.

    Args:
        handler: answers requests.
        certificates: the server's certificates; None serves without TLS.
        host: address to listen at.
        port: port to listen at; 0 for a free one.

    Raises:
        OSError: the port is in use, or the address is not this machine's.
    """
    server = _Server((host, port), handler)
    if certificates:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.chain, certificates.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


def url_of(server: ThreadingHTTPServer) -> str:
    """Its address, without encryption and without a slash at the end."""
    host = str(server.server_address[0])
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{server.server_port}"  # noqa: S104


@contextmanager
def answering(*servers: ThreadingHTTPServer) -> Iterator[str]:
    """Lets servers answer during the block; yields the address of the first."""
    # A short interval, because `shutdown` waits for the end of one.
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True) for server in servers
    ]
    for thread in threads:
        thread.start()
    try:
        yield url_of(servers[0])
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
