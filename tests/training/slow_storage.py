"""Cloud Storage that is slow for some files, counts bytes, or changes meanwhile: a proxy in front of the emulator."""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote, unquote, urlsplit

import pytest

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of


@contextmanager
def slow_storage(slow: bytes, seconds: float) -> Iterator[None]:
    """Delays uploads to the storage of STORAGE_EMULATOR_HOST.

    Args:
        slow: what the request of a slow upload has in it, such as the name of the file.
        seconds: how long one takes, at most until the block ends.
    """
    over = threading.Event()

    def delay(command: str, body: bytes) -> None:
        if command == "POST" and slow in body:
            over.wait(seconds)

    with _forwarded(delay, lambda path, size: None):
        try:
            yield
        finally:
            over.set()


@contextmanager
def failing_storage(failing: bytes, after: bytes, times: int) -> Iterator[None]:
    """Answers uploads to the storage of STORAGE_EMULATOR_HOST with 503.

    Args:
        failing: what the request of such an upload has in it.
        after: what the request has in it from which on they fail.
        times: how many fail.
    """
    begun = threading.Event()
    left = list(range(times))

    def fail(command: str, body: bytes) -> int | None:
        if command != "POST":
            return None
        if after in body:
            begun.set()
        return 503 if begun.is_set() and failing in body and left and left.pop() >= 0 else None

    with _forwarded(fail, lambda path, size: None):
        yield


@contextmanager
def counted_storage() -> Iterator[dict[str, int]]:
    """Counts the bytes that are downloaded from the storage of STORAGE_EMULATOR_HOST, by the path of the file."""
    read: dict[str, int] = {}
    counting = threading.Lock()

    def count(path: str, size: int) -> None:
        if "alt=media" in path or path.startswith("/download/"):
            with counting:
                name = unquote(urlsplit(path).path)
                read[name] = read.get(name, 0) + size

    with _forwarded(lambda command, body: None, count):
        yield read


@contextmanager
def deleted_once_listed(uri: str, often: int) -> Iterator[None]:
    """Deletes a file of the storage of STORAGE_EMULATOR_HOST as soon as somebody has listed it so often.

    Args:
        uri: `gs://…`.
        often: number of lists after which it is deleted.
    """
    behind = urlsplit(os.environ["STORAGE_EMULATOR_HOST"]).netloc
    bucket, name = urlsplit(uri).netloc, urlsplit(uri).path[1:]
    lists: list[str] = []

    def delete(path: str, size: int) -> None:
        if "prefix=" not in path:
            return
        lists.append(path)
        if len(lists) == often:
            connection = http.client.HTTPConnection(behind)
            connection.request("DELETE", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")
            connection.getresponse().read()

    with _forwarded(lambda command, body: None, delete):
        yield


@contextmanager
def _forwarded(before: Callable[[str, bytes], int | None], after: Callable[[str, int], None]) -> Iterator[None]:
    behind = urlsplit(os.environ["STORAGE_EMULATOR_HOST"]).netloc

    class Forwarding(JsonHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.body()
            if status := before(self.command, body):
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            connection = http.client.HTTPConnection(behind)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            if self.command == "GET":
                after(self.path, len(content))
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _forward

    # A client that was killed while its upload was delayed is no error, of which another test would read.
    with answering(server_of(Forwarding)) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        yield
