"""Lets a training continue, and write its last checkpoint, when the reader of its output is gone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class _Detached:
    """A stream that drops what can no longer be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (BrokenPipeError, ValueError):
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def output_may_break() -> Iterator[None]:
    """Makes `print` survive a closed pipe while the block runs; without it, it would end the training."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Detached(sys.stdout), _Detached(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
