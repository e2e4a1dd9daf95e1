"""Work in pieces on the cores or the GPUs of this machine: processes that are started if there is enough work."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

from gpu_pipelines.distributed import signals
from gpu_pipelines.distributed.pieces import (
    Answer,
    Bench,
    Executor,
    Needs,
    Outcome,
    Work,
    Workers,
    error_as_data,
    leave_cores_to_workers,
)
from gpu_pipelines.errors import UserError
from gpu_pipelines.processors import cores

#: Pieces that a process has at once, so that it need not wait for this one.
_AT_ONCE = 2
_SECONDS_TO_END = 5.0
_DEVICES = "CUDA_VISIBLE_DEVICES"
#: First byte of a message: work, a piece, or that there is no more work for now.
_WORK, _PIECE, _REST = b"w", b"p", b"r"


class ProcessExecutor(Executor):
    """Processes of this machine; they are kept from one `map` to the next.

    Args:
        processes: most processes; 0 for one on each core.
    """

    few = 4

    def __init__(self, processes: int = 0) -> None:
        self._most = processes or cores()
        # A `map` takes them out; a nested one starts its own.
        self._idle: list[_Process] = []

    def _is_alone(self, needs: Needs) -> bool:
        return not needs.gpus and self._number(needs) == 1

    def _number(self, needs: Needs) -> int:
        return max(1, int(self._most / max(needs.cpus, 1)))

    def _workers(self, work: Work, needs: Needs, check: Callable[[], None]) -> Workers:
        number, devices = self._number(needs), [""]
        if needs.gpus:
            devices = _shares_of_gpus(needs.gpus)
            number = min(number, len(devices))
        wanted = [devices[place % len(devices)] for place in range(number)]
        taken, self._idle = self._idle, []
        return _Processes(taken, wanted, work, self._idle_again)

    def _idle_again(self, processes: list[_Process]) -> None:
        self.close()
        self._idle = processes

    def close(self) -> None:
        for process in self._idle:
            process.end()
        self._idle = []


def _shares_of_gpus(gpus: float) -> list[str]:
    """The GPUs of each worker that this machine has room for, as `CUDA_VISIBLE_DEVICES` names them."""
    import torch

    given = os.environ.get(_DEVICES)
    names = given.split(",") if given else [str(number) for number in range(torch.cuda.device_count())]
    if not torch.cuda.is_available() or len(names) < gpus:
        found = len(names) if torch.cuda.is_available() else 0
        raise UserError(f"The work needs GPUs, {gpus:g} for each worker, but this machine has {found}.")
    if gpus < 1:
        return names * int(1 / gpus)
    whole = int(gpus)
    return [",".join(names[start : start + whole]) for start in range(0, len(names) - whole + 1, whole)]


class _Process:
    """One process, and the numbers of its pieces, in order.

    Args:
        devices: the GPUs that it sees, as in `CUDA_VISIBLE_DEVICES`; empty to leave that as it is.
    """

    def __init__(self, devices: str) -> None:
        # A forked process would inherit locks that the threads of this one hold, and could not use CUDA.
        spawn = multiprocessing.get_context("spawn")
        self.connection, other = spawn.Pipe()
        self.devices = devices
        self.has: deque[int] = deque()
        self._answered = 0
        # Shared memory: an answer of a process that is killed may never arrive.
        self._begun = spawn.RawValue("q", 0)
        self._process = spawn.Process(target=_serve, args=(other, devices, self._begun))
        self._process.start()
        other.close()

    def send(self, kind: bytes, content: Any) -> None:
        """Gives it work or a piece; if it is gone, that is noticed when its answer is read."""
        message = kind + pickle.dumps(content)
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(message)

    def answered(self) -> int:
        """Notes that its first piece is answered, and returns the number of that piece."""
        self._answered += 1
        return self.has.popleft()

    def at_work_on(self) -> int | None:
        """The number of the piece to blame if it dies: the one begun last, or the first one that waits."""
        if not self.has:
            return None
        return self.has[max(0, self._begun.value - self._answered - 1)]

    def end(self) -> str:
        """Ends it, if it has not ended, and returns its name."""
        self.connection.close()
        if self.has:
            self._process.kill()
        self._process.join(_SECONDS_TO_END)
        self._process.kill()
        self._process.join()
        name = f"process {self._process.pid} (exit status {self._process.exitcode})"
        self._process.close()
        return name


class _Processes(Workers):
    """The processes of one `map`.

    Args:
        idle: existing processes.
        wanted: the GPUs for each.
        work: the work.
        give_back: takes the processes at the end.
    """

    def __init__(
        self, idle: list[_Process], wanted: list[str], work: Work, give_back: Callable[[list[_Process]], None]
    ) -> None:
        self._free, self._work, self._give_back = list(wanted), work, give_back
        self._number = len(wanted)
        self._processes: list[_Process] = []
        for process in idle:
            if process.devices in self._free:
                self._free.remove(process.devices)
                process.send(_WORK, self._work)
                self._processes.append(process)
            else:
                process.end()

    @property
    def room(self) -> int:
        return _AT_ONCE * self._number

    def give(self, number: int, piece: Any) -> None:
        process = min(self._processes, key=lambda one: len(one.has), default=None)
        if process is None or (process.has and self._free):
            process = _Process(self._free.pop())
            process.send(_WORK, self._work)
            self._processes.append(process)
        process.has.append(number)
        process.send(_PIECE, piece)

    def outcomes(self, seconds: float) -> list[Outcome]:
        by_connection: dict[Any, _Process] = {process.connection: process for process in self._processes}
        return [
            outcome
            for connection in wait(list(by_connection), seconds)
            for outcome in self._heard_of(by_connection[connection])
        ]

    def _heard_of(self, process: _Process) -> list[Outcome]:
        try:
            answer = Answer(*process.connection.recv())
        except (EOFError, OSError):
            self._processes.remove(process)
            self._free.append(process.devices)
            blamed, name = process.at_work_on(), process.end()
            return [Outcome(number, None, name if number == blamed else "") for number in process.has]
        return [Outcome(process.answered(), answer)]

    def close(self, *, is_over: bool) -> None:
        if is_over:
            for process in self._processes:
                process.send(_REST, None)
            self._give_back(self._processes)
            return
        for process in self._processes:
            process.end()


def _serve(connection: Connection, devices: str, begun: Any) -> None:
    """The loop of a process: takes work and pieces, and answers."""
    signals.leave_to_the_starter()
    if devices:
        os.environ[_DEVICES] = devices
    leave_cores_to_workers()
    messages: SimpleQueue[bytes] = SimpleQueue()
    answers: SimpleQueue[bytes] = SimpleQueue()
    # Neither side ever waits for the other to read.
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    threading.Thread(target=_speak, args=(connection, answers), daemon=True).start()
    bench: Bench | None = None
    while True:
        message = messages.get()
        kind, read = message[:1], partial(pickle.loads, memoryview(message)[1:])
        if kind == _PIECE and bench is not None:
            begun.value += 1
            answers.put(_pickled(bench.answer(read)))
        else:
            bench = Bench(read) if kind == _WORK else None


def _pickled(answer: Answer) -> bytes:
    try:
        return pickle.dumps(tuple(answer))
    except Exception as error:
        return pickle.dumps((None, error_as_data(error)))


def _listen(connection: Connection, messages: SimpleQueue[bytes]) -> None:
    try:
        while True:
            messages.put(connection.recv_bytes())
    except (EOFError, OSError):
        # The starter is gone, or has no more work. Nobody needs the current result.
        os._exit(0)


def _speak(connection: Connection, answers: SimpleQueue[bytes]) -> None:
    with suppress(OSError):
        while True:
            connection.send_bytes(answers.get())
