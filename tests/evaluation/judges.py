"""A judge on this machine: a server that answers as OpenAI's does, with what a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of


class Answers:
    """What the server does, and what it was asked.

    Attributes:
        of: of a question, what it answers: text, or a status with a message.
        seen: each request's body, and its headers.
    """

    def __init__(self) -> None:
        self.of: Any = lambda body: "Good.\nscore: 8"
        self.seen: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.lock = threading.Lock()


@contextmanager
def judging() -> Iterator[tuple[str, Answers]]:
    answers = Answers()

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            body = json.loads(self.body())
            with answers.lock:
                answers.seen.append((body, dict(self.headers)))
            assert self.path == "/v1/chat/completions"
            found = answers.of(body)
            if isinstance(found, str):
                self.send(200, {"choices": [{"message": {"role": "assistant", "content": found}}]})
            else:
                status, document, *headers = found
                self.send(status, document, **(headers[0] if headers else {}))

    with answering(server_of(Handler)) as address:
        yield f"{address}/v1", answers
