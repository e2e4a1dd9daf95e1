"""Temporary folders that the next process removes if this one is killed: by SIGKILL, or because memory is full.

Each is locked while its process lives, so an unlocked one belongs to nobody. On a disk that several machines share,
such as a mounted bucket, a lock may be visible only on its own machine, so each machine looks only at its own folders.
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
    """An empty folder that is removed afterwards; those that killed processes left there are removed first.

    Args:
        kind: beginning of the names of such folders, which no other folder has.
        beside: directory to make it in, and so its disk; None for that of temporary files.

    Raises:
        OSError: it cannot be created.
    """
    place, prefix = beside or own_folder("scratch"), f"{kind}-{socket.gethostname()}-"
    for left in place.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError):  # its process still runs, or that is not known
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
    """A new folder, and the descriptor of its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        # Before the lock, another process may have taken it for the folder of a killed one.
        with suppress(FileNotFoundError):
            held = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks, which keeps old folders
                fcntl.flock(held, fcntl.LOCK_EX)
            if folder.is_dir():
                return folder, held
            os.close(held)


def _locked(folder: Path) -> int:
    """Locks a folder, and returns the descriptor of the lock; raises OSError if another process holds it."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held
