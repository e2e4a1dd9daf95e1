"""Temporary folders that the next process removes where this one is killed: by SIGKILL, or because memory is full.

Each is locked for as long as its process lives, so what is not locked is of nobody. On a disk that several machines
share, such as a mounted bucket, a lock may be known on its own machine alone, so each machine looks at its own folders.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpu_pipelines.artifacts.remote_files import own_folder


@contextmanager
def scratch_folder(kind: str, beside: Path | None = None) -> Iterator[Path]:
    """An empty folder that is gone afterwards; those that killed processes have left there are removed first.

    Args:
        kind: what the names of such folders begin with; no other folder's name begins so.
        beside: the directory that it is made in, whose disk it is to be on; None for that of temporary files.

    Raises:
        OSError: it cannot be made.
    """
    place, prefix = beside or own_folder("scratch"), f"{kind}-{socket.gethostname()}-"
    for left in place.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError):  # its process goes on, or nobody can tell
            held = _locked(left)
            shutil.rmtree(left, ignore_errors=True)
            os.close(held)
    folder, held = _made(prefix, place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _made(prefix: str, place: Path) -> tuple[Path, int]:
    """A new folder, and what holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        # Before it was locked another process may have taken it for that of a killed one.
        with suppress(FileNotFoundError):
            held = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks, where nothing is removed
                fcntl.flock(held, fcntl.LOCK_EX)
            if folder.is_dir():
                return folder, held
            os.close(held)


def _locked(folder: Path) -> int:
    """Locks a folder, and gives what holds the lock; raises OSError where another process does."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held
