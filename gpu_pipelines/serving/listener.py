"""The socket that a server listens on; a program that starts a server as a process makes it and hands it over."""

from __future__ import annotations

import socket

from gpu_pipelines.errors import UserError

#: Connections that the system opens and keeps until the server accepts them.
BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Args:
        host: an address of this machine.
        port: 0 for a free one.

    Raises:
        UserError: the address is in use, or not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        why = str(getattr(error, "strerror", None) or error).rstrip(".")
        raise UserError(f"Nothing can listen on {host}:{port}: {why}.", "Give another --port or --host.") from None
