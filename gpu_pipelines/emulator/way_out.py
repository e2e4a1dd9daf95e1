"""Connections from the emulator to other hosts: directly, or through the proxy of its user."""

from __future__ import annotations

import base64
import os
import socket
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi

_SECONDS = 30.0
_LONGEST_ANSWER = 65_536
#: The proxy of the user, and the authorities that the user trusts. They are read on import, before clients in the same
#: process are pointed at an emulator.
_PROXY = getproxies().get("https", "")
_TRUSTED = next((os.environ[name] for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE") if os.environ.get(name)), "")


def connected(target: str) -> socket.socket:
    """A connection to a host.

    Args:
        target: `HOST:PORT`.

    Raises:
        OSError: it cannot be reached.
        ValueError: it is not a host and port.
    """
    host, _, port = target.rpartition(":")
    name = host.strip("[]")
    if not _PROXY or proxy_bypass(name):
        return _open(name, int(port))
    proxy = urlsplit(_PROXY if "//" in _PROXY else f"http://{_PROXY}")
    connection = _open(proxy.hostname or "", proxy.port or 80)
    try:
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if proxy.username is not None:
            pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair).decode()}")
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        _check_answer(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def trusted_here() -> bytes:
    """The authorities that programs of this machine trust, in PEM."""
    bundle = Path(_TRUSTED) if _TRUSTED and Path(_TRUSTED).is_file() else Path(certifi.where())
    return bundle.read_bytes()


def _open(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=_SECONDS)
    # The timeout is only for connecting: a download may pause.
    connection.settimeout(None)
    return connection


def _check_answer(connection: socket.socket) -> None:
    """Reads the answer of a proxy, up to the end of its headers."""
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte or len(answer) > _LONGEST_ANSWER:
            raise OSError("the proxy hung up")
        answer += byte
    status = answer.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        raise OSError(f"the proxy says {status}")
