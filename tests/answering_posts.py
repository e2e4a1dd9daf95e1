"""A server of this machine that answers documents that are posted, for as long as a block runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of


@contextmanager
def answering_posts(answer: Callable[[Any], Any]) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers each document that is posted; gives its address with a slash, and what it was sent."""
    sent: list[Any] = []

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            sent.append(json.loads(self.body()))
            self.send(200, answer(sent[-1]))

    with answering(server_of(Handler)) as address:
        yield f"{address}/", sent
