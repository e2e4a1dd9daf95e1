"""A command of the project as a process that begins as the copy of one which has imported all that it needs.

Beside a process of the installed command it saves the imports, and tells nothing else; one test of each starts that.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

#: Of `unshare` in sched.h, which Python has from 3.12 on.
_NEW_USER_NAMESPACE, _NEW_MOUNTS = 0x10000000, 0x00020000


def serve_copies() -> None:
    """Makes what multiprocessing forks from a copy of this process, whose imports it has; there may be no threads."""
    server: Any = forkserver._forkserver
    server._forkserver_address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    alive, server._forkserver_alive_fd = os.pipe()
    known: dict[str, Any] = {}
    if hasattr(server, "_forkserver_authkey"):  # since Python 3.14 both ends have to know it
        known["authkey_r"], writer = os.pipe()
        server._forkserver_authkey = os.urandom(forkserver._AUTHKEY_LEN)  # type: ignore[attr-defined]
        os.write(writer, server._forkserver_authkey)
        os.close(writer)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(server._forkserver_address)
        listener.listen()
        server._forkserver_pid = os.fork()
        if not server._forkserver_pid:
            os.close(server._forkserver_alive_fd)
            _open_streams()  # those of pytest keep what is printed
            try:
                forkserver.main(listener.fileno(), alive, [], **known)
            finally:
                os._exit(0)
    for descriptor in (alive, *known.values()):
        os.close(descriptor)


def _open_streams() -> None:
    sys.stdout = os.fdopen(1, "w", 1, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)


def run_module(
    name: str,
    arguments: Sequence[str | socket.socket],
    environment: Mapping[str, str],
    anew: Sequence[str],
    out: connection.Connection | str,
    err: str,
    files: int,
    cwd: str,
    disk: tuple[str, str],
) -> None:
    """Is, in the new process, `python -m name arguments`, which prints to pipe or file, and to a file or the same.

    Or `python name arguments`, if the name is a script's.
    """
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # it was read from the environment of the process that this one is a copy of
    if disk[0]:
        _mount_disk(*disk)
    os.chdir(cwd)
    if isinstance(out, str):
        with Path(out).open("ab") as file:
            os.dup2(file.fileno(), 1)
    else:
        os.dup2(out.fileno(), 1)
        out.close()
    if err:
        with Path(err).open("wb") as file:
            os.dup2(file.fileno(), 2)
    else:
        os.dup2(1, 2)
    _open_streams()  # a pipe cannot seek, which the file before may have done
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    for module in anew:
        importlib.reload(importlib.import_module(module))
    # It may have children of its own.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [name, *(each if isinstance(each, str) else str(each.fileno()) for each in arguments)]
    if name.endswith(".py"):
        runpy.run_path(name, run_name="__main__")
    else:
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function or "main")()


def _mount_disk(folder: str, size: str) -> None:
    """Mounts a disk for this process and its children alone, as `unshare --user --map-root-user --mount` lets it."""
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USER_NAMESPACE | _NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    if libc.mount(b"none", folder.encode(), b"tmpfs", 0, f"size={size}".encode()):
        raise OSError(ctypes.get_errno(), "mount", folder)


class Forked:
    """What tests ask of `subprocess.Popen`, of such a process.

    Args:
        name: a module, whose `main` is the command, a function as `module:function`, or a script.
        arguments: of the command; a socket is one that it is given, and its number there.
        environment: its variables.
        anew: modules that read the environment when they are imported.
        log: gets all that it prints; a pipe gets what it prints to stdout, and `communicate` the rest, if not given.
        merged: whether the pipe gets that too.
        files: so many may it have open; 0 for as many as this process.
        cwd: where it runs; left out, where this process does.
        disk: a folder that is a disk of its own there, and how large the disk is, as in `2m`.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str | socket.socket],
        environment: Mapping[str, str],
        *,
        anew: Sequence[str] = (),
        log: Path | None = None,
        merged: bool = False,
        files: int = 0,
        cwd: Path | None = None,
        disk: tuple[Path, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        self._err, out = "", str(log)
        if not (log or merged):
            descriptor, self._err = tempfile.mkstemp(suffix=".err")
            os.close(descriptor)
        reader, writer = context.Pipe(duplex=False)
        place, small = str(cwd or Path.cwd()), (str(disk[0]), disk[1]) if disk else ("", "")
        given = (name, arguments, dict(environment), anew, out if log else writer, self._err, files, place, small)
        self._process = context.Process(target=run_module, args=given, daemon=True)
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()

    @property
    def pid(self) -> int:
        assert self._process.pid
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

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
        if not self._err:
            return out, ""
        errors = Path(self._err).read_text(encoding="utf-8")
        Path(self._err).unlink()
        return out, errors
