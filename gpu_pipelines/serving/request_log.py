"""A sample of the requests and their predictions, written to a folder or bucket; predictions never wait for it.

The lines have columns of the table in which Vertex AI logs the requests of an endpoint, so that one reader reads both.
Source: https://cloud.google.com/vertex-ai/docs/predictions/online-prediction-logging.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.errors import UserError
from gpu_pipelines.serving.log_limit import LogLimit
from gpu_pipelines.serving.settings import ServerSettings

#: The most entries that wait for the disk; more are left out.
_MOST_WAITING, _MOST_BYTES = 1000, 64 << 20
#: Files that could not be uploaded and are tried again; if there are more, the oldest are given up.
_MOST_KEPT = 16
#: How long the server waits at its end for entries that are not written yet.
_LAST_SECONDS = 10.0
_TICK_SECONDS = 0.5
#: Form of a client's name for its request; a request with any other name gets a new one.
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HEADER = "x-request-id"
#: Prefix of files that are being written: sources skip names that begin with a dot.
_UNFINISHED = "."


class _Entry(NamedTuple):
    request_id: str
    time: str
    instances: Sequence[Any]
    predictions: Sequence[Any]
    size: int


def require_writable(place: str) -> None:
    """Tries the folder for logged requests. A bucket is not tried; the server reports problems when it writes there.

    Args:
        place: as in `--log-requests`.

    Raises:
        UserError: the folder cannot be made or written to.
    """
    if is_remote(place):
        return
    folder = Path(place).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=_UNFINISHED):
            pass
    except OSError as error:
        raise UserError(
            f"No requests can be logged to {folder}: {error.strerror}.", "Give another --log-requests, or leave it out."
        ) from None


class RequestLog:
    """Writes a sample of requests, in a thread of its own.

    Entries that cannot be written are counted and reported in the server's log; no error is raised. Of a request, the
    instances are written and nothing of its head.

    Args:
        settings: the folder, the share, and when to begin a new file.
        model: the name of the model.

    Attributes:
        written: requests that are in a file.
        left_out: requests that were drawn but are in no file.
    """

    def __init__(self, settings: ServerSettings, model: str) -> None:
        self.written = self.left_out = 0
        self._place, self._model = settings.log_requests, model
        self._share = settings.log_share
        self._most_bytes, self._most_seconds = settings.log_megabytes * (1 << 20), settings.log_minutes * 60
        self._waiting: queue.Queue[_Entry | None] = queue.Queue(_MOST_WAITING)
        self._bytes_waiting = 0
        self._counting = threading.Lock()
        self._told = LogLimit()
        self._scratch = (
            tempfile.TemporaryDirectory(prefix="gpu-pipelines-requests-") if is_remote(self._place) else None
        )
        self._folder = Path(self._scratch.name if self._scratch else self._place).expanduser()
        self._file: FileIO | None = None
        self._name, self._begun, self._number, self._entries = "", 0.0, 0, 0
        self._to_upload: list[tuple[str, int]] = []
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)
        self._thread.start()

    def wants(self, request_id: str) -> bool:
        """Whether a request is in the sample. This depends only on its name: all servers draw the same ones."""
        number = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big")
        return number < self._share * 2**64

    def offer(self, request_id: str, instances: Sequence[Any], predictions: Sequence[Any], size: int) -> None:
        """Hands over an answered request; returns at once.

        Args:
            request_id: from `id_of`.
            instances: the instances of the request.
            predictions: the predictions of the answer.
            size: bytes of the body.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        with self._counting:
            if self._bytes_waiting + size > _MOST_BYTES:
                self.left_out += 1
                return
            self._bytes_waiting += size
        try:
            self._waiting.put_nowait(_Entry(request_id, now, instances, predictions, size))
        except queue.Full:
            self._leave_out(1, size)

    def close(self) -> None:
        """Writes what waits, for at most ten seconds."""
        try:
            self._waiting.put(None, timeout=1)
        except queue.Full:
            return
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while True:
            try:
                entry = self._waiting.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                self._safely(self._finish_old)
                continue
            if entry is None:
                self._safely(self._finish)
                return
            self._safely(self._write, entry)
            with self._counting:
                self._bytes_waiting -= entry.size
            self._safely(self._finish_old)

    def _safely(self, do: Any, *given: Any) -> None:
        """Calls a function that may fail for any reason, without ending the thread."""
        try:
            do(*given)
        except Exception as error:  # a full disk, a missing bucket, an answer that is not JSON
            if given:
                self._leave_out(1)
            allowed, held = self._told.allows()
            if allowed:
                more = f" ({held} like this were left out)" if held else ""
                told = error.problem if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                with suppress(OSError):  # stderr may be a file on the full disk
                    print(f"requests are not logged to {self._place}: {told[:300]}{more}", file=sys.stderr, flush=True)

    def _leave_out(self, requests: int, size: int = 0) -> None:
        with self._counting:
            self.left_out += requests
            self._bytes_waiting -= size

    def _write(self, entry: _Entry) -> None:
        line = {
            "request_id": entry.request_id,
            "logging_time": entry.time,
            "model": self._model,
            "request_payload": [_json(each) for each in entry.instances],
            "response_payload": [_json(each) for each in entry.predictions],
        }
        content = _json(line).encode() + b"\n"
        if self._file is None:
            self._begin()
        assert self._file is not None
        whole, left = self._file.tell(), memoryview(content)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            # A full disk takes part of a line, which the next one would continue.
            self._file.seek(whole)
            self._file.truncate()
            raise
        self._entries += 1

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._number += 1
        stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
        self._name = f"requests-{stamp}-{socket.gethostname()}-{os.getpid()}-{self._number:05d}.jsonl"
        path = self._folder / f"{_UNFINISHED}{self._name}"
        # Requests hold what people have sent: nobody else on the machine may read them.
        # Without a buffer, whose rest would need space when the file is closed.
        self._file = FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._begun, self._entries = time.monotonic(), 0

    def _finish_old(self) -> None:
        if self._file is None:
            return
        if self._file.tell() >= self._most_bytes or time.monotonic() - self._begun >= self._most_seconds:
            self._finish()

    def _finish(self) -> None:
        """Closes the file and makes it visible; for a bucket, uploads it and any that could not be uploaded before."""
        file, self._file = self._file, None
        if file is not None:
            entries = self._entries
            try:
                file.close()
                (self._folder / f"{_UNFINISHED}{self._name}").rename(self._folder / self._name)
            except OSError:
                self._leave_out(entries)
                raise
            if not self._scratch:
                self.written += entries
                return
            self._to_upload.append((self._name, entries))
        while len(self._to_upload) > _MOST_KEPT:
            name, entries = self._to_upload.pop(0)
            (self._folder / name).unlink(missing_ok=True)
            self._leave_out(entries)
        while self._to_upload:
            name, entries = self._to_upload[0]
            RemoteFolder(self._place).upload(self._folder, [name])
            (self._folder / name).unlink(missing_ok=True)
            del self._to_upload[0]
            self.written += entries


def id_of(headers: Mapping[str, str]) -> str:
    """The name of a request: from its client in X-Request-Id, else a new one."""
    given = headers.get(_HEADER, "")
    return given if _ID.fullmatch(given) else uuid.uuid4().hex


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
