"""Workers of pytest as copies of the process that gives them their tests: the tests are imported once for all workers.

What the tests import takes each worker seconds of processor time otherwise.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import multiprocessing
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from execnet import gateway_base, gateway_io
from forked import serve_copies


def copy_workers(files: Iterable[Path]) -> None:
    """Lets execnet copy this process, with the imports of all files, where it would start one.

    There may be no threads in this process.

    Args:
        files: modules of tests; what is wrong with one is left to the workers, which tell it.
    """
    for file in files:
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(file.stem)
    gc.freeze()
    serve_copies()
    gateway_io.Popen2IOMaster = _Copy  # type: ignore[assignment, misc]


class _Copy(gateway_io.Popen2IOMaster):
    """A worker as execnet talks to it: by its stdin and its stdout."""

    def __init__(self, _: list[str], execmodel: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        stdin, tell = context.Pipe(duplex=False)
        told, stdout = context.Pipe(duplex=False)
        self.popen: Any = context.Process(target=_work, args=(stdin, stdout), daemon=True)
        self.popen.start()
        streams = os.fdopen(os.dup(tell.fileno()), "wb", 0), os.fdopen(os.dup(told.fileno()), "rb", 0)
        for each in (stdin, tell, told, stdout):
            each.close()
        gateway_base.Popen2IO.__init__(self, *streams, execmodel=execmodel)

    def wait(self) -> int | None:
        self.popen.join()
        return self.popen.exitcode


def _work(stdin: Connection, stdout: Connection) -> None:
    """Is, in the new process, `python -c` with what execnet gives it."""
    os.dup2(stdin.fileno(), 0)
    os.dup2(stdout.fileno(), 1)
    stdin.close()
    stdout.close()
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", 1, closefd=False)
    sys.argv = ["-c"]
    # It has children of its own.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    try:
        exec(gateway_io.popen_bootstrapline, {})
    finally:
        atexit._run_exitfuncs()
