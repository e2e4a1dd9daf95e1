"""Starts the processes of a training with torchrun's own launcher, on one node or several, and watches over them.

The launcher of torchrun runs in a thread of its own: parts of it wait in C++, where no signal would reach Python, and
the thread that watches must always be able to act. What this adds to torchrun:

- SIGTERM or SIGINT makes the workers save their state and the step end as `Interrupted`, on all nodes;
- a node that vanishes ends the others instead of leaving them waiting;
- all nodes end with the same reason, the first one.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gpu_pipelines.distributed import peers as nodes
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.peers import NodeState, Peers, Timing, address_towards, interface_of, join
from gpu_pipelines.errors import INTERRUPTED, NOT_HEARD_OF, Interrupted, UserError
from gpu_pipelines.training.worker import USER_ERROR

_RUN = "train_model"
_LOOPBACK = "127.0.0.1"
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_WITHOUT_PROCESSES = 2.0
_LAST_LINES = 8
_BY_SIGNAL = "stopped by "
_BY_THEMSELVES = "the processes ended early"
_GONE = "Its machine, its network or its launcher is gone."

# Severity of a failure: what a worker says itself; a process that was killed; any other end; an end that is likely the
# consequence of another one's, because a connection broke.
_SAID, _LOST, _KILLED, _ENDED, _CUT_OFF = range(5)
_BROKEN_CONNECTION = ("onnection closed", "onnection reset", "roken pipe", "remote process", "DistBackendError")


def launch(arguments: list[str], *, processes: int, cluster: Cluster, timing: Timing | None = None) -> None:
    """Runs one Python program in several processes with torchrun's variables, and waits for its end.

    Args:
        arguments: of the Python interpreter, such as `["-m", "package.module", "--steps", "10"]`.
        processes: how many to start on this node.
        cluster: the nodes; every one calls this function with the same arguments.
        timing: how long to wait for what; for tests.

    Raises:
        UserError: a process failed, a node failed, did not come, or vanished.
        Interrupted: this node or another was told to stop, and its processes ended.
    """
    # As many threads as cores in all; torchrun's own default is one for each process.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    _watch_over(_Torchrun(arguments, processes, cluster), processes, cluster, timing or Timing())


def run_program(
    command: list[str], environment: Mapping[str, str], *, cluster: Cluster, timing: Timing | None = None
) -> None:
    """Runs one program on this node, while every other node runs its own, and waits for the end of all.

    Args:
        command: the program and its arguments.
        environment: all variables that the program gets.
        cluster: the nodes; the launchers meet at the chief's port.
        timing: how long to wait for what; for tests.

    Raises:
        UserError: the program cannot be started or failed, or that of another node.
        Interrupted: this node or another was told to stop, or the program says that it was.
    """
    _watch_over(_Program(command, environment), 1, cluster, timing or Timing())


def _watch_over(workers: _Workers, processes: int, cluster: Cluster, timing: Timing) -> None:
    with _signals() as told, tempfile.TemporaryDirectory(prefix="launch-") as logs:
        peers = None
        _prepare_network(cluster)
        if cluster.nodes > 1:
            peers = join(cluster, processes, timing, told.check)
        workers.start(Path(logs))
        try:
            _Supervision(workers, peers, told, timing).run()
        finally:
            workers.kill()
            if peers:
                peers.leave()


class _Told:
    """Whether this process was told to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal = ""

    def handle(self, number: int, frame: FrameType | None) -> None:
        # Only noted: an exception from here would strike the launcher anywhere, and a second signal its cleaning up.
        self.signal = signal.Signals(number).name

    def check(self) -> None:
        if self.signal:
            raise Interrupted(f"stopped by {self.signal} before the training began")


@contextmanager
def _signals() -> Iterator[_Told]:
    """Notes SIGTERM and SIGINT while the block runs, as far as this is the main thread, where signals arrive."""
    told = _Told()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = {number: signal.signal(number, told.handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare_network(cluster: Cluster) -> None:
    """Lets Gloo use the interface that leads to the other nodes; on a single node, the loopback.

    By default it resolves the host's name, which may fail or give the address of another machine.
    """
    alone = cluster.nodes == 1
    interface = interface_of(_LOOPBACK if alone else address_towards(cluster))
    if interface and (alone or interface != "lo" or cluster.chief_address.startswith("127.")):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


class _Workers(ABC):
    """The processes of this node; a thread starts them and waits for them."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._asked: set[int] = set()

    def start(self, logs: Path) -> None:
        """Starts them; what they write to stderr is kept below `logs` as well."""
        import psutil

        self._logs = logs
        self._own = psutil.Process()
        self._before = {child.pid for child in self._own.children()}
        self._thread = threading.Thread(target=self._run_and_note, daemon=True, name="workers")
        self._thread.start()

    def _run_and_note(self) -> None:
        try:
            self._run()
        except Exception as error:  # what it was is looked at by the thread that watches
            self.error = error

    @abstractmethod
    def _run(self) -> None:
        """Returns when all have ended well; else raises, with the attribute `failures` where processes failed."""

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(_SECONDS_BETWEEN_LOOKS)

    def ask_to_stop(self) -> None:
        """Sends SIGTERM to every process that has not got it yet."""
        for child in self.processes():
            if child.pid not in self._asked:
                self._asked.add(child.pid)
                child.terminate()

    def kill(self) -> None:
        """Ends what is left of the processes and of those that they have started."""
        import psutil

        for child in self.processes():
            for process in (*child.children(recursive=True), child):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def processes(self) -> list[Any]:
        """Those that run, as psutil knows them."""
        return [child for child in self._own.children() if child.pid not in self._before]

    def last_lines(self, local_rank: int) -> list[str]:
        """The end of what a process has written to stderr."""
        return [line for line in self._stderr(local_rank).splitlines() if line.strip()][-_LAST_LINES:]

    def has_traceback(self, local_rank: int) -> bool:
        """Whether a process has written that it ends with an exception."""
        return "Traceback (most recent call last)" in self._stderr(local_rank)

    def _stderr(self, local_rank: int) -> str:
        for file in self._logs.glob(f"**/{local_rank}/stderr.log"):
            return file.read_text(encoding="utf-8", errors="replace")
        return ""


class _Torchrun(_Workers):
    """Python processes that torchrun's launcher starts."""

    def __init__(self, arguments: list[str], processes: int, cluster: Cluster) -> None:
        super().__init__()
        self._arguments, self._processes, self._cluster = arguments, processes, cluster

    def _run(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        # Its warnings are that it gets no signals in this thread, and each signal that it sends itself.
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
        several = self._cluster.nodes > 1
        host = f"[{self._cluster.chief_address}]" if ":" in self._cluster.chief_address else self._cluster.chief_address
        config = LaunchConfig(
            min_nodes=self._cluster.nodes,
            max_nodes=self._cluster.nodes,
            nproc_per_node=self._processes,
            rdzv_backend="static" if several else "c10d",
            rdzv_endpoint=f"{host}:{self._cluster.chief_port}" if several else f"{_LOOPBACK}:0",
            # Without it the processes would meet at the host's name, and try for minutes to resolve it.
            local_addr=None if several else _LOOPBACK,
            rdzv_configs={"timeout": 60, **({"rank": self._cluster.node_rank} if several else {})},
            run_id=_RUN,
            role="rank",
            max_restarts=0,
            monitor_interval=_SECONDS_BETWEEN_LOOKS,
            logs_specs=DefaultLogsSpecs(log_dir=str(self._logs), tee=Std.ERR),
            log_line_prefix_template="[rank ${rank}] ",
        )
        elastic_launch(config, sys.executable)("-u", *self._arguments)


@dataclass(frozen=True)
class _ProgramFailure:
    """What torchrun's launcher would say of a process that failed."""

    exitcode: int
    timestamp: float
    local_rank: int = 0
    message: str = ""


class _ProgramError(Exception):
    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.failures = {0: _ProgramFailure(exit_code, time.time())}


class _Program(_Workers):
    """One process that runs any program."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        super().__init__()
        self._command, self._environment = command, dict(environment)

    def _run(self) -> None:
        log = self._logs / "0" / "stderr.log"
        log.parent.mkdir()
        process = subprocess.Popen(self._command, env=self._environment, stderr=subprocess.PIPE, start_new_session=True)
        assert process.stderr
        with log.open("wb", buffering=0) as copy:
            while chunk := process.stderr.read1(65_536):  # type: ignore[attr-defined]
                copy.write(chunk)
                sys.stderr.write(chunk.decode("utf-8", "replace"))
                sys.stderr.flush()
        if code := process.wait():
            raise _ProgramError(code)


class _Supervision:
    """Waits for the end of the workers, and of those of the other nodes, and decides how it all ended."""

    def __init__(self, workers: _Workers, peers: Peers | None, told: _Told, timing: Timing) -> None:
        self._workers, self._peers, self._told, self._timing = workers, peers, told, timing
        self._stopped_by = ""  # why the workers were asked to save their state and end
        self._given_up = False  # whether they were ended because another node has failed
        self._ask_from = 0.0  # until then they may end by themselves
        self._deadline = math.inf  # when those that are left are killed

    def run(self) -> None:
        """Returns when the training went to its end everywhere; raises what `launch` raises."""
        self._wait_for_workers()
        own = self._own_end()
        if not self._peers:
            self._raise(own)
            return
        self._peers.report(own)
        patience = time.monotonic() + 3 * self._timing.settle
        while not (self._peers.have_ended or self._given_up):
            if own.state == nodes.DONE:
                self._look()
                if self._stopped_by:
                    own = NodeState(nodes.INTERRUPTED, self._stopped_by)
                    self._peers.report(own)
            elif time.monotonic() > patience:
                break
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        self._raise(own)

    def _wait_for_workers(self) -> None:
        alive = time.monotonic()
        while self._workers.running:
            self._look()
            if self._workers.processes() or not (self._stopped_by or self._given_up):
                alive = time.monotonic()
            elif time.monotonic() - alive > _SECONDS_WITHOUT_PROCESSES:
                return  # torchrun's launcher itself waits for other nodes
            self._workers.wait()

    def _look(self) -> None:
        """Acts on what has happened since, here and on other nodes."""
        now = time.monotonic()
        if not (self._stopped_by or self._given_up):
            failed = self._has_failed_elsewhere()
            if failed or self._is_lost_elsewhere():
                # A failure there is often the echo of one here: a process that is ending must not seem to be stopped.
                self._given_up, self._ask_from = True, now + (self._timing.settle if failed else 0.0)
                self._deadline = self._ask_from + self._timing.end
            elif by := self._who_stopped():
                self._stopped_by, self._deadline = by, now + self._timing.stop
                print(f"{by}: its processes save their state and end", flush=True)
                if self._peers:
                    self._peers.report(NodeState(nodes.STOPPING, by))
        if self._stopped_by or (self._given_up and (now >= self._ask_from or self._told.signal)):
            self._workers.ask_to_stop()
        if now > self._deadline:
            self._workers.kill()

    def _who_stopped(self) -> str:
        if self._told.signal:
            return f"{_BY_SIGNAL}{self._told.signal}"
        for rank, state in self._peers.states.items() if self._peers else ():
            if state.state in (nodes.STOPPING, nodes.INTERRUPTED):
                first = state.message.startswith(_BY_SIGNAL)
                return f"{self._name_of(rank)} was told to stop" if first else state.message
        return ""

    def _has_failed_elsewhere(self) -> bool:
        """Whether another node has failed, so that this one cannot go on."""
        states = self._peers.states.values() if self._peers else ()
        return any(state.state == nodes.FAILED for state in states)

    def _is_lost_elsewhere(self) -> bool:
        """Whether another node has vanished, so that this one cannot go on."""
        return bool(self._peers and self._peers.silent(self._timing.silence))

    def _own_end(self) -> NodeState:
        """How this node ended, as far as it can tell by itself."""
        error = self._workers.error
        failures = list(getattr(error, "failures", {}).items())
        first = min((failure.timestamp for _, failure in failures), default=0.0)
        began = [(rank, failure) for rank, failure in failures if failure.timestamp == first]
        said = [(rank, failure) for rank, failure in failures if _said(failure)]
        codes = {failure.exitcode for _, failure in began}
        ended = bool(began) and all(self._was_ended(failure) for _, failure in began)
        if not said and (self._stopped_by or ended):
            self._stopped_by = self._stopped_by or self._who_stopped() or _BY_THEMSELVES
            return NodeState(nodes.INTERRUPTED, self._stopped_by)
        if said or (began and not (self._given_up and codes <= {INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL})):
            return self._failure(*(said or began)[0])
        if self._given_up:
            return NodeState(nodes.FAILED, "It was ended.", _CUT_OFF, time.time())
        if error is None:
            return NodeState(nodes.DONE)
        reason = str(error).partition("\n")[0] or type(error).__name__
        return NodeState(nodes.FAILED, f"The processes could not be started: {reason}", _ENDED, time.time())

    def _was_ended(self, failure: Any) -> bool:
        """Whether a process was told to stop; torchrun's launcher also tells one that is ending with an error."""
        if failure.exitcode == -signal.SIGTERM:
            return not self._workers.has_traceback(failure.local_rank)
        return bool(failure.exitcode == INTERRUPTED)

    def _failure(self, rank: int, failure: Any) -> NodeState:
        if said := _said(failure):
            return NodeState(nodes.FAILED, said, _SAID, failure.timestamp)
        lines = self._workers.last_lines(failure.local_rank)
        problem = f"Process {rank} of the training ended with {_ending(failure.exitcode)}."
        details = lines or ["Its own output is above."]
        return NodeState(
            nodes.FAILED, "\n  ".join([problem, *details]), _severity(failure.exitcode, lines), failure.timestamp
        )

    def _raise(self, own: NodeState) -> None:
        """Raises what ended the training; nothing if it went to its end everywhere."""
        causes = [(own.severity, own.at, own.message)] if own.state == nodes.FAILED else []
        if self._peers:
            causes += [
                (state.severity, state.at, f"{self._name_of(rank)} failed: {state.message}")
                for rank, state in self._peers.states.items()
                if state.state == nodes.FAILED
            ]
            # Where a worker failed here as well, its broken connection is a second sign that the other node is gone.
            alone = own.state == nodes.FAILED and not self._given_up
            silent = self._peers.silent(self._timing.settle if alone else self._timing.silence)
            causes += [
                (_LOST, 0.0, f"{self._name_of(rank)} {NOT_HEARD_OF} for {seconds:.0f} s. {_GONE}")
                for rank, seconds in silent.items()
            ]
        # Who it was may only be known by now: workers hear of it from each other, before their launchers do.
        known = self._stopped_by not in ("", _BY_THEMSELVES)
        stopped = self._stopped_by if known else self._who_stopped() or self._stopped_by
        if stopped and not any(severity == _SAID for severity, *_ in causes):
            raise Interrupted(stopped)
        if causes:
            raise UserError(min(causes)[-1])

    def _name_of(self, rank: int) -> str:
        return self._peers.name_of(rank) if self._peers else f"node {rank}"


def _said(failure: Any) -> str:
    """The error that a worker has left for the user, if it has."""
    message = failure.message
    return message.removeprefix(USER_ERROR) if isinstance(message, str) and message.startswith(USER_ERROR) else ""


def _severity(exit_code: int, lines: list[str]) -> int:
    if exit_code in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS):
        return _KILLED
    return _CUT_OFF if any(sign in line for line in lines for sign in _BROKEN_CONNECTION) else _ENDED


def _ending(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "SIGKILL (often: the machine ran out of memory; try a smaller global_batch_size)"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit status {exit_code}"
