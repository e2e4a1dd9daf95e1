"""An HTTP proxy through which clients reach the server under Google's own host names, at their own port.

Clients are told of it as they are told of a company's proxy (`https_proxy`); no name is looked up and nothing leaves
the machine. What comes through it is TLS: a client that offers HTTP/2 is handed to gRPC, any other to REST.
"""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from typing import Any

from gpu_pipelines.emulator.json_server import JsonHandler

_GOOGLE = re.compile(r"[a-z0-9-]+\.(googleapis\.com|pkg\.dev):443")
#: How a client offers HTTP/2 in its first message: RFC 7301.
_HTTP_2 = b"\x02h2"
_CHUNK = 65_536


class ProxyHandler(JsonHandler):
    """Stands in for Google's hosts where it is asked for a connection to one.

    Attributes:
        api: has `grpc_port` and `tls_port`, where gRPC and REST with TLS are.
    """

    protocol_version = "HTTP/1.1"
    api: Any

    def do_CONNECT(self) -> None:
        if not _GOOGLE.fullmatch(self.path):
            self.send_error(403, f"There is no {self.path} here.")
            return
        self.send_response(200)
        self.end_headers()
        self.close_connection = True
        carry(self.wire(), self.api.grpc_port, self.api.tls_port)

    def wire(self) -> Any:
        """The connection to the client."""
        return self.connection


def carry(client: socket.socket, grpc_port: int, rest_port: int) -> None:
    """Carries a connection to the face that it is meant for, until one side closes it."""
    first = client.recv(_CHUNK)
    while first and len(first) < _length(first) and (more := client.recv(_CHUNK)):
        first += more
    port = grpc_port if _HTTP_2 in first else rest_port
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as server:
        server.sendall(first)
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        _pump(client, server)
        back.join()


def _length(record: bytes) -> int:
    """Length of a TLS record with its header."""
    return 5 + int.from_bytes(record[3:5], "big") if len(record) >= 5 else 5


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(_CHUNK):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
