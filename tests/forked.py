"""A command of the project as a process that begins as the copy of one which has imported all that it needs.

Beside a process of the installed command it saves the imports, and tells nothing else; one test of each starts that.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path


def run_module(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], anew: Sequence[str], out: Connection, err: str
) -> None:
    """Is, in the new process, `python -m name arguments`, which prints to a pipe and to a file."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(out.fileno(), sys.stdout.fileno())
    with Path(err).open("wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    for module in anew:
        importlib.reload(importlib.import_module(module))
    sys.argv = [name, *arguments]
    importlib.import_module(name).main()


class Forked:
    """What tests ask of `subprocess.Popen`, of such a process.

    Args:
        name: a module, whose `main` is the command.
        arguments: of the command.
        environment: its variables.
        imports: what all of them need; what the first of a session says holds.
        anew: modules that read the environment when they are imported.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        imports: list[str],
        anew: Sequence[str] = (),
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(imports)
        reader, writer = context.Pipe(duplex=False)
        descriptor, self._err = tempfile.mkstemp(suffix=".err")
        os.close(descriptor)
        given = (name, arguments, dict(environment), anew, writer, self._err)
        self._process = context.Process(target=run_module, args=given, daemon=True)
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        assert self._process.pid
        os.kill(self._process.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """What it still prints, and all that it has printed to stderr; it is killed when it takes too long."""
        late = threading.Timer(timeout, self.kill)
        late.start()
        out = self.stdout.read()
        self.stdout.close()
        self._process.join()
        late.cancel()
        return out, Path(self._err).read_text(encoding="utf-8")
