"""Starts processes on this machine: those of a training with torchrun, a single program, and pools of workers."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.distributed import signals
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.program_output import STDERR, last_state, show_and_copy, show_logs
from gpu_pipelines.errors import (
    ERROR_FILE,
    ConnectionLostError,
    Interrupted,
    ProcessFailedError,
    ProcessKilledError,
    UserError,
    leave_error,
    left_error,
)

LOOPBACK = "127.0.0.1"
SECONDS_BETWEEN_LOOKS = 0.25
_ERROR = "user_error.json"
_WORK = "work.json"
_RUN = "train_model"
_LAST_LINES, _LONGEST_LINE = 8, 2_000
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r"frame #\d+: ")
#: Text that libraries of collectives write when another process is gone (Gloo, PyTorch's stores, NCCL in PyTorch).
_OF_A_LOST_CONNECTION = ("onnection closed", "onnection reset", "roken pipe", "remote process", "DistBackendError")


def end_process(process: subprocess.Popen[Any], seconds: float) -> None:
    """Tells a process to end, and kills it if it has not ended after some seconds."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def one_process(initializer: Callable[..., None], arguments: tuple[Any, ...]) -> ProcessPoolExecutor:
    """A pool of one process, which ends with this one, and leaves signals to it.

    Args:
        initializer: called once; importable, like its arguments.
        arguments: of `initializer`.
    """
    # A forked process would inherit locks that the threads of this one hold, and could not use CUDA.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(initializer, arguments))


def _begin(initializer: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signals.leave_to_the_starter()
    initializer(*arguments)


@contextmanager
def killed_is_said(what: str) -> Iterator[None]:
    """Explains that a process of a pool was killed.

    Args:
        what: the process, as in "The process that evaluates on cuda:1".

    Raises:
        ProcessKilledError: a process was killed.
    """
    try:
        yield
    except BrokenProcessPool:
        raise ProcessKilledError(
            f"{what} was killed, most probably because the memory of the machine is full."
        ) from None


def leave_for_the_launcher(error: UserError) -> None:
    """Leaves the error of a process that torchrun started where `Workers.error_of` finds it."""
    # Its own file would change when torchrun considers the process failed.
    leave_error(Path(os.environ["TORCHELASTIC_ERROR_FILE"]).with_name(_ERROR), error)


def note_work(doing: str, if_killed: str) -> None:
    """Notes, in a process that torchrun started, what its launcher says if it is killed.

    Args:
        doing: current work, such as "building the model".
        if_killed: what to do if the memory was not enough for it.
    """
    place = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).with_name(_WORK)
    place.write_text(json.dumps({"doing": doing, "if_killed": if_killed}), encoding="utf-8")


def below(process: Any) -> list[Any]:
    """The descendants of a process; none if it has ended meanwhile.

    Args:
        process: as psutil knows it.
    """
    import psutil

    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


class Workers(ABC):
    """The processes of this node; a thread starts them and waits for them."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._asked: set[int] = set()

    def start(self, logs: Path) -> None:
        """Starts them; what they write is also kept below `logs`."""
        import psutil

        self._logs = logs
        # A process that a script leaves behind would keep this output open, and its reader would wait.
        signals.adopt_orphans()
        self._own = psutil.Process()
        self._before = {child.pid for child in self._own.children()}
        self._thread = threading.Thread(target=self._run_and_note, daemon=True, name="workers")
        self._thread.start()

    def _run_and_note(self) -> None:
        try:
            self._run()
        except Exception as error:  # the supervising thread looks at it
            self.error = error

    @abstractmethod
    def _run(self) -> None:
        """Returns when all ended well; else raises, with the attribute `failures` if processes failed."""

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(SECONDS_BETWEEN_LOOKS)

    def ask_to_stop(self) -> None:
        """Sends SIGTERM to every process that has not yet got it."""
        import psutil

        for child in self.processes():
            if child.pid not in self._asked:
                self._asked.add(child.pid)
                with suppress(psutil.NoSuchProcess):
                    child.terminate()

    def kill(self) -> None:
        """Ends the remaining processes and their descendants."""
        import psutil

        for child in self.processes():
            for process in (*below(child), child):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def processes(self) -> list[Any]:
        """The running ones, as psutil knows them."""
        return [child for child in self._own.children() if child.pid not in self._before]

    def last_lines(self, local_rank: int) -> list[str]:
        """The end of a process's stderr, as a terminal shows it: of a progress bar the last state.

        A C++ exception, such as of NCCL's watchdog, has its message above many stack frames; these are left out.
        """
        shown = (last_state(line)[:_LONGEST_LINE] for line in self._stderr(local_rank).split("\n"))
        return [line for line in shown if line.strip() and not _FRAME.match(line)][-_LAST_LINES:]

    def error_of(self, local_rank: int) -> UserError | Interrupted | None:
        """The error that a process left; None if none.

        A program of another project leaves no data, but an exception writes a traceback to stderr.
        """
        for file in self._logs.glob(f"**/{local_rank}/{_ERROR}"):
            return left_error(file)
        lines = self.last_lines(local_rank)
        if _TRACEBACK not in self._stderr(local_rank):
            return None
        lost = any(sign in line for line in lines for sign in _OF_A_LOST_CONNECTION)
        return (ConnectionLostError if lost else ProcessFailedError)(lines[-1])

    def killed_at(self, local_rank: int) -> str:
        """What a killed process was doing, and what to do about it."""
        for file in self._logs.glob(f"**/{local_rank}/{_WORK}"):
            noted = json.loads(file.read_text(encoding="utf-8"))
            return f" while {noted['doing']} (often: the machine ran out of memory; {noted['if_killed']})"
        return " (often: the machine ran out of memory)"

    def _stderr(self, local_rank: int) -> str:
        for file in self._logs.glob(f"**/{local_rank}/{STDERR}"):
            return file.read_bytes().decode(errors="replace")
        return ""


class Torchrun(Workers):
    """Python processes that torchrun's launcher starts."""

    def __init__(self, arguments: list[str], processes: int, cluster: Cluster, attempt: int = 0) -> None:
        super().__init__()
        self._arguments, self._processes, self._cluster, self._attempt = arguments, processes, cluster, attempt

    def _run(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        # It would warn that it gets no signals in this thread, and of each signal that it sends itself.
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
        several = self._cluster.nodes > 1
        host = (
            f"[{self._cluster.rank_0_address}]" if ":" in self._cluster.rank_0_address else self._cluster.rank_0_address
        )
        config = LaunchConfig(
            min_nodes=self._cluster.nodes,
            max_nodes=self._cluster.nodes,
            nproc_per_node=self._processes,
            rdzv_backend="static" if several else "c10d",
            rdzv_endpoint=f"{host}:{self._cluster.rank_0_port}" if several else f"{LOOPBACK}:0",
            # Otherwise the processes would meet at the host's name, and try for minutes to resolve it.
            local_addr=None if several else LOOPBACK,
            rdzv_configs={"timeout": 60, **({"rank": self._cluster.node_rank} if several else {})},
            # Several nodes share one store, where the entries of one attempt must not meet the next.
            run_id=f"{_RUN}-{self._attempt}",
            role="rank",
            max_restarts=0,
            monitor_interval=SECONDS_BETWEEN_LOOKS,
            logs_specs=DefaultLogsSpecs(log_dir=str(self._logs), redirects=Std.ALL),
        )
        ended = threading.Event()
        first_rank = self._cluster.node_rank * self._processes
        arguments = self._logs, first_rank, ended
        reader = threading.Thread(target=show_logs, args=arguments, daemon=True, name="output")
        reader.start()
        try:
            elastic_launch(config, sys.executable)("-u", *self._arguments)
        finally:
            ended.set()
            reader.join()


@dataclass(frozen=True)
class _ProgramFailure:
    """A process's failure in the form of torchrun's launcher."""

    exitcode: int
    timestamp: float
    local_rank: int = 0


class _ProgramError(Exception):
    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.failures = {0: _ProgramFailure(exit_code, time.time())}


class Program(Workers):
    """One process that runs any program."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        super().__init__()
        self._command, self._environment = command, dict(environment)

    def _run(self) -> None:
        log = self._logs / "0" / STDERR
        log.parent.mkdir()
        self._environment[ERROR_FILE] = str(log.with_name(_ERROR))
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            self._command, env=self._environment, stdout=pipe, stderr=pipe, start_new_session=True
        )
        copies = (process.stderr, sys.stderr, log), (process.stdout, sys.stdout, Path(os.devnull))
        readers = [threading.Thread(target=show_and_copy, args=each, daemon=True, name="output") for each in copies]
        for reader in readers:
            reader.start()
        code = process.wait()
        self.kill()  # processes that it left behind
        for reader in readers:
            reader.join()
        if code:
            raise _ProgramError(code)
