"""An upload that another thread watches and may give up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from functools import partial
from pathlib import Path
from typing import Any

_SECONDS_BETWEEN_LOOKS = 0.1


class UploadGivenUpError(Exception):
    """An upload was given up before its end."""


class Upload:
    """The progress of an upload, and the way to give it up.

    Attributes:
        total: bytes of all files; 0 before it begins.
        confirmed: bytes that the storage has taken.
    """

    def __init__(self) -> None:
        self.total = 0
        self._of_files: dict[str, int] = {}
        self._began: float | None = None
        self._given_up = threading.Event()

    @property
    def confirmed(self) -> int:
        return sum(self._of_files.values())

    @property
    def rate(self) -> float | None:
        """Bytes per second so far; None before any are confirmed."""
        if self._began is None or not self.confirmed:
            return None
        return self.confirmed / max(time.monotonic() - self._began, 1e-3)

    def give_up(self) -> None:
        """Ends it at once, even in the middle of a file."""
        self._given_up.set()

    def run(self, files: Any, sources: Sequence[str], places: Sequence[str]) -> None:
        """Uploads files, in parallel.

        Args:
            files: a file system of fsspec.
            sources: local paths.
            places: destination of each, as the file system names it.

        Raises:
            UploadGivenUpError: it was given up.
        """
        self.total = sum(Path(source).stat().st_size for source in sources)
        self._began = self._began or time.monotonic()
        putting = files._put(list(sources), list(places), callback=_noting(self._of_files))
        self._wait(asyncio.run_coroutine_threadsafe(putting, files.loop))

    def _wait(self, putting: Future[Any]) -> None:
        while not self._given_up.is_set():
            try:
                putting.result(_SECONDS_BETWEEN_LOOKS)
                return
            except NotYetError:
                if putting.done():  # the storage's own
                    raise
        putting.cancel()
        raise UploadGivenUpError


def _noting(of_files: dict[str, int]) -> Any:
    """A callback of fsspec that notes the uploaded bytes of each file, by its place."""
    from fsspec.callbacks import Callback  # only when something is uploaded: commands import this module

    def note(place: str, size: int | None, value: int, **_: Any) -> None:
        of_files[place] = value

    class OfAllFiles(Callback):
        def branched(self, path_1: str, path_2: str, **_: Any) -> Callback:
            return Callback(hooks={"confirmed": partial(note, path_2)})

    return OfAllFiles()
