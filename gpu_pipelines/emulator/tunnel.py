"""An HTTP proxy through which clients reach the server under Google's own host names and port.

It is set like a company's proxy (`https_proxy`). Connections to Google are TLS: a client that offers HTTP/2 is passed
to gRPC, any other to REST. Connections to other hosts, such as the package index of a step's installation, are passed
on for programs of this machine.
"""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from gpu_pipelines.emulator.json_server import JsonHandler
from gpu_pipelines.emulator.way_out import connected

_GOOGLE = re.compile(r"[a-z0-9-]+\.(googleapis\.com|pkg\.dev):443")
#: The offer of HTTP/2 in a client's first message: RFC 7301.
_HTTP_2 = b"\x02h2"
_CHUNK = 65_536


class ProxyHandler(JsonHandler):
    """Accepts connections to Google's hosts in their place.

    Attributes:
        api: has `grpc_port` and `tls_port`, the ports of gRPC and of REST with TLS.
    """

    protocol_version = "HTTP/1.1"
    api: Any

    def do_CONNECT(self) -> None:
        self.close_connection = True
        if _GOOGLE.fullmatch(self.path):
            self._accept()
            carry(self.wire(), self.api.grpc_port, self.api.tls_port)
        elif not ip_address(self.client_address[0]).is_loopback:
            self.send_error(403, f"There is no {self.path} here.")
        else:
            self._pass_on()

    def _pass_on(self) -> None:
        try:
            server = connected(self.path)
        except (OSError, ValueError) as error:
            self.send_error(502, f"{self.path} cannot be reached: {error}")
            return
        self._accept()
        with server:
            both_ways(self.wire(), server)

    def _accept(self) -> None:
        self.send_response(200)
        self.end_headers()

    def wire(self) -> Any:
        """The connection to the client."""
        return self.connection


def carry(client: socket.socket, grpc_port: int, rest_port: int) -> None:
    """Passes a connection to its interface, until one side closes it."""
    first = client.recv(_CHUNK)
    while first and len(first) < _length(first) and (more := client.recv(_CHUNK)):
        first += more
    port = grpc_port if _HTTP_2 in first else rest_port
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as server:
        server.sendall(first)
        both_ways(client, server)


def both_ways(client: socket.socket, server: socket.socket) -> None:
    """Passes data between both sides of a connection, until both are closed."""
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
