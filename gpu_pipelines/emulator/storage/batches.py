"""Batches of Cloud Storage: several requests in the body of one.

https://cloud.google.com/storage/docs/batch
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email import message_from_bytes
from typing import Any
from urllib.parse import urlsplit

_BOUNDARY = "batch_of_the_emulator"
KIND = f"multipart/mixed; boundary={_BOUNDARY}"
_HEAD = re.compile(rb"(?P<verb>[A-Z]+) (?P<target>\S+)(?: HTTP/[0-9.]+)?\r?\n(?P<rest>.*)", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """A request of a batch.

    Attributes:
        name: its Content-ID; empty for none.
        verb: GET, POST and so on.
        target: the path, with the query.
        headers: its headers.
        content: its body.
    """

    name: str
    verb: str
    target: str
    headers: dict[str, str]
    content: bytes


def parts_of(kind: str, content: bytes) -> Iterator[Part]:
    """The requests of a batch.

    Args:
        kind: content type of the body.
        content: the body.

    Raises:
        ValueError: it is no batch.
    """
    message = message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + content)
    if not message.is_multipart():
        raise ValueError("The body has no parts.")
    parts: Any = message.get_payload()
    for part in parts:
        found = _HEAD.match((part.get_payload(decode=True) or b"").lstrip())
        if found is None:
            raise ValueError("A part is no request.")
        inner: Any = message_from_bytes(found["rest"])
        place = urlsplit(found["target"].decode())
        target = place.path + (f"?{place.query}" if place.query else "")
        if target.startswith("/batch/"):
            raise ValueError("A part is a batch.")
        body = (inner.get_payload(decode=True) or b"").rstrip(b"\r\n")
        yield Part(part.get("Content-ID", ""), found["verb"].decode(), target, dict(inner.items()), body)


def body_of(answers: Iterable[tuple[Part, int, str, bytes]]) -> bytes:
    """The body of the answer to a batch.

    Args:
        answers: of each request the status, the content type and the body.
    """
    parts = []
    for part, status, kind, content in answers:
        named = f"Content-ID: {part.name.replace('<', '<response-')}\r\n" if part.name else ""
        # Clients read the number; the phrase must not be missing.
        head = f"HTTP/1.1 {status} {'OK' if status < 300 else 'Refused'}\r\nContent-Type: {kind}\r\n"
        begun = f"--{_BOUNDARY}\r\nContent-Type: application/http\r\n{named}\r\n{head}"
        parts.append(f"{begun}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return b"\r\n".join([*parts, f"--{_BOUNDARY}--\r\n".encode()])
