"""What is not for Google leaves the emulator: directly, or by the proxy that its user has."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from gpu_pipelines.emulator import way_out

if TYPE_CHECKING:
    from gpu_pipelines.emulator.certificates import Certificates
    from gpu_pipelines.emulator.vertex_api import VertexApi


@pytest.fixture
def host() -> Iterator[str]:
    """A host of one's own, which answers a line with the same in capitals."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(connection.recv(100).upper())

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def through(api: VertexApi, target: str) -> socket.socket:
    """Asks the emulator's proxy for a connection; its answer is not read yet."""
    address = urlsplit(api.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=20)
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    return connection


def headers(connection: socket.socket) -> str:
    """The answer of a proxy."""
    found = b""
    while not found.endswith(b"\r\n\r\n"):
        found += connection.recv(1)
    return found.decode()


def test_another_host_is_passed_on_to(vertex_api: VertexApi, host: str) -> None:
    with closing(through(vertex_api, host)) as connection:
        assert " 200 " in headers(connection)
        connection.sendall(b"a line")
        assert connection.recv(100) == b"A LINE"


def test_a_host_that_is_not_there_is_said_to_be_none(vertex_api: VertexApi) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for target in (f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:port"):
            with closing(through(vertex_api, target)) as connection:
                assert " 502 " in headers(connection)


def test_the_proxy_of_the_user_is_used(vertex_api: VertexApi, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator itself is the proxy of the user here."""
    with monkeypatch.context() as patch:
        patch.setattr(way_out, "_PROXY", vertex_api.url.replace("http://", "http://user:pass@"))
        # The first connection is the user's; the proxy itself finds the host directly.
        patch.setattr(way_out, "proxy_bypass", lambda name: threading.current_thread() is not threading.main_thread())
        with way_out.connected(host) as connection:
            connection.sendall(b"by proxy")
            assert connection.recv(100) == b"BY PROXY"
        with pytest.raises(OSError, match="502"):
            way_out.connected("127.0.0.1:1")


def test_authorities_of_this_machine_are_trusted_beside_the_emulators(vertex_certificates: Certificates) -> None:
    trusted = vertex_certificates.trusted.read_bytes()
    assert vertex_certificates.authority.read_bytes() in trusted
    assert way_out.trusted_here() in trusted
    assert trusted.count(b"BEGIN CERTIFICATE") > 20
