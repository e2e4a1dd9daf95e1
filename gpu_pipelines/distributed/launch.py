"""Starts the processes of a training with torchrun's own launcher, on one node or several, and supervises them.

torchrun's launcher runs in a thread of its own: parts of it wait in C++, where no signal would reach Python, and the
supervising thread must always be able to act. This module adds to torchrun:

- SIGTERM or SIGINT makes the workers save their state and the step end as `Interrupted`, on all nodes;
- a node that vanishes ends the others, instead of keeping them waiting;
- all nodes end with the same reason, the first one;
- devices that are idle for long end it like a signal, but with an error;
- a process that was killed, or lost its device or its connection, is restarted with all others, on all nodes.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from gpu_pipelines.distributed import peers as nodes
from gpu_pipelines.distributed.idleness import Idleness
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.peers import NodeState, Peers, Timing, address_towards, failed, interface_of, join
from gpu_pipelines.distributed.processes import LOOPBACK, SECONDS_BETWEEN_LOOKS, Program, Torchrun, Workers
from gpu_pipelines.distributed.restarts import Restarts
from gpu_pipelines.distributed.signals import Signalled, noted
from gpu_pipelines.errors import (
    INTERRUPTED,
    ConnectionLostError,
    IdleError,
    Interrupted,
    NodeFailedError,
    ProcessFailedError,
    ProcessKilledError,
    UserError,
    distance_from_cause,
    first_line,
)
from gpu_pipelines.processors import cores

_SECONDS_WITHOUT_PROCESSES = 2.0
_BY_THEMSELVES = "the processes ended early"
_GONE = "Its machine, its network or its launcher is gone."
_KILLED_BY = (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS)


def launch(
    arguments: list[str],
    *,
    processes: int,
    cluster: Cluster,
    timing: Timing | None = None,
    restarts: int = 0,
    idleness: Idleness | None = None,
) -> None:
    """Runs one Python program in several processes with torchrun's variables, and waits for its end.

    Args:
        arguments: arguments of the Python interpreter, such as `["-m", "package.module", "--steps", "10"]`.
        processes: number of processes to start on this node.
        cluster: the nodes; every one calls this function with the same arguments.
        timing: waiting times; for tests.
        restarts: most restarts of the processes of all nodes within an hour, after one was killed or lost its device or
            its connection.
        idleness: watches the devices; None if they may be idle.

    Raises:
        UserError: a process failed, a node failed, did not come, or vanished.
        IdleError: the devices were idle; the processes were asked to save their state.
        Interrupted: this node or another was interrupted, and its processes ended.
    """
    # As many threads as cores in total; torchrun's own default is one for each process.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))

    def workers(attempt: int) -> Workers:
        return Torchrun(arguments, processes, cluster, attempt)

    _watch_over(workers, processes, cluster, timing or Timing(), Restarts(restarts), idleness)


def run_program(
    command: list[str],
    environment: Mapping[str, str],
    *,
    cluster: Cluster,
    timing: Timing | None = None,
    idleness: Idleness | None = None,
) -> None:
    """Runs one program on this node, while every other node runs its own, and waits for all to end.

    Args:
        command: the program and its arguments.
        environment: all variables that the program gets.
        cluster: the nodes; the launchers meet at rank 0's port.
        timing: waiting times; for tests.
        idleness: watches the devices; None if they may be idle.

    Raises:
        UserError: the program cannot be started or failed, or the program of another node failed.
        IdleError: the devices were idle; the program was asked to save its state.
        Interrupted: this node or another was interrupted, or the program says that it was.
    """
    _watch_over(lambda _: Program(command, environment), 1, cluster, timing or Timing(), Restarts(0), idleness)


def _watch_over(
    make: Callable[[int], Workers],
    processes: int,
    cluster: Cluster,
    timing: Timing,
    restarts: Restarts,
    idleness: Idleness | None,
) -> None:
    with noted() as signalled, tempfile.TemporaryDirectory(prefix="launch-") as logs:
        peers = None
        _prepare_network(cluster)
        if cluster.nodes > 1:
            peers = join(cluster, processes, timing, lambda: _require_no(signalled))
        try:
            for attempt in itertools.count():
                place = Path(logs) / str(attempt)
                place.mkdir()
                if idleness:
                    idleness.begin()
                workers = make(attempt)
                supervision = _Supervision(workers, peers, signalled, timing, idleness)
                if _is_done(workers, supervision, place, peers, signalled, restarts):
                    return
        finally:
            if peers:
                peers.leave()


def _is_done(
    workers: Workers,
    supervision: _Supervision,
    logs: Path,
    peers: Peers | None,
    signalled: Signalled,
    restarts: Restarts,
) -> bool:
    """Runs the workers to their end; False if they are to be started again, on all nodes."""
    workers.start(logs)
    try:
        supervision.run()
    except (UserError, Interrupted) as error:
        workers.kill()
        again = isinstance(error, UserError) and not signalled and restarts.are_worth(error)
        if peers:
            again = peers.agree_to_begin_again(again)
        if not again:
            raise
        print(f"warning: {first_line(error)} All processes are started again: {restarts.note()}.", flush=True)
        if peers:
            peers.begin_again()
        return False
    finally:
        workers.kill()
    return True


def _require_no(signalled: Signalled) -> None:
    if signalled:
        raise Interrupted(f"stopped by {signalled.name} before the training began")


def _prepare_network(cluster: Cluster) -> None:
    """Makes Gloo use the interface that leads to the other nodes; on a single node, the loopback.

    By default it resolves the host's name, which may fail or give the address of another machine.
    """
    alone = cluster.nodes == 1
    interface = interface_of(LOOPBACK if alone else address_towards(cluster))
    if interface and (alone or interface != "lo" or cluster.rank_0_address.startswith("127.")):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


class _Supervision:
    """Waits for the workers of this node and the others to end, and decides how it all ended."""

    def __init__(
        self,
        workers: Workers,
        peers: Peers | None,
        signalled: Signalled,
        timing: Timing,
        idleness: Idleness | None = None,
    ) -> None:
        self._workers, self._peers, self._signalled, self._timing = workers, peers, signalled, timing
        self._idleness = idleness
        self._idle: IdleError | None = None  # why they were stopped, if they were idle
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
                    own = self._interrupted()
                    self._peers.report(own)
            elif time.monotonic() > patience:
                break
            time.sleep(SECONDS_BETWEEN_LOOKS)
        self._raise(own)

    def _wait_for_workers(self) -> None:
        alive = time.monotonic()
        while self._workers.running:
            self._look()
            if not (self._stopped_by or self._given_up) or self._workers.processes():
                alive = time.monotonic()
            elif time.monotonic() - alive > _SECONDS_WITHOUT_PROCESSES:
                return  # torchrun's launcher waits for other nodes itself
            self._workers.wait()

    def _look(self) -> None:
        """Reacts to events here and on other nodes."""
        now = time.monotonic()
        if not (self._stopped_by or self._given_up):
            echo = self._has_failed_elsewhere()
            if echo or self._is_lost_elsewhere():
                # A failure there often follows from one here: a process that is ending must not seem to be stopped.
                self._given_up, self._ask_from = True, now + (self._timing.settle if echo else 0.0)
                self._deadline = self._ask_from + self._timing.end
            elif by := self._who_stopped() or self._what_is_idle():
                self._stopped_by, self._deadline = by, now + self._timing.stop
                print(f"{by}: its processes save their state and end", flush=True)
                if self._peers:
                    self._peers.report(NodeState(nodes.STOPPING, by, signalled=bool(self._signalled)))
        if self._stopped_by or (self._given_up and (now >= self._ask_from or self._signalled)):
            self._workers.ask_to_stop()
        if now > self._deadline:
            self._workers.kill()

    def _who_stopped(self) -> str:
        if self._signalled:
            return f"stopped by {self._signalled.name}"
        for rank, state in self._peers.states.items() if self._peers else ():
            if state.state in (nodes.STOPPING, nodes.INTERRUPTED):
                return f"{self._name_of(rank)} was interrupted" if state.signalled else state.message
        return ""

    def _what_is_idle(self) -> str:
        self._idle = self._idleness.look(self._workers.processes) if self._idleness else None
        return self._idle.problem.rstrip(".") if self._idle else ""

    def _has_failed_elsewhere(self) -> bool:
        """Whether another node has failed, so that this one cannot continue."""
        states = self._peers.states.values() if self._peers else ()
        return any(state.state == nodes.FAILED for state in states)

    def _is_lost_elsewhere(self) -> bool:
        """Whether another node has vanished, so that this one cannot continue."""
        return bool(self._peers and self._peers.silent(self._timing.silence))

    def _own_end(self) -> NodeState:
        """The end of this node, as far as it can tell by itself."""
        if self._idle:
            return failed(self._idle)
        error = self._workers.error
        failures = list(getattr(error, "failures", {}).items())
        first = min((failure.timestamp for _, failure in failures), default=0.0)
        began = [(rank, failure) for rank, failure in failures if failure.timestamp == first]
        left = {rank: self._workers.error_of(failure.local_rank) for rank, failure in failures}
        said = [each for failure in failures if _is_said(each := left[failure[0]])]
        codes = {failure.exitcode for _, failure in began}
        # torchrun's launcher also sends SIGTERM to a process that is ending with an error.
        ended = bool(began) and all(
            failure.exitcode == INTERRUPTED or (failure.exitcode == -signal.SIGTERM and left[rank] is None)
            for rank, failure in began
        )
        if not said and (self._stopped_by or ended):
            self._stopped_by = self._stopped_by or self._who_stopped() or _BY_THEMSELVES
            return self._interrupted()
        if said or (began and not (self._given_up and codes <= {INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL})):
            errors = said or [self._error(*each, left[each[0]]) for each in began]
            return failed(min(errors, key=distance_from_cause), first)
        if self._given_up:
            return failed(ConnectionLostError("It was ended."))
        if error is None:
            return NodeState(nodes.DONE)
        reason = str(error).partition("\n")[0] or type(error).__name__
        return failed(ProcessFailedError(f"The processes could not be started: {reason}"))

    def _interrupted(self) -> NodeState:
        return NodeState(nodes.INTERRUPTED, self._stopped_by, signalled=bool(self._signalled))

    def _error(self, rank: int, failure: Any, left: UserError | Interrupted | None) -> UserError:
        """The error of a process that left no message for the user, with its last lines."""
        lines = self._workers.last_lines(failure.local_rank) or ["Its own output is above."]
        text = "\n  ".join([f"Process {rank} of the training ended with {self._ending(failure)}.", *lines])
        if failure.exitcode in _KILLED_BY:
            return ProcessKilledError(text)
        return ConnectionLostError(text) if isinstance(left, ConnectionLostError) else ProcessFailedError(text)

    def _ending(self, failure: Any) -> str:
        if failure.exitcode == -signal.SIGKILL:
            return f"SIGKILL{self._workers.killed_at(failure.local_rank)}"
        return f"signal {-failure.exitcode}" if failure.exitcode < 0 else f"exit status {failure.exitcode}"

    def _raise(self, own: NodeState) -> None:
        """Raises what ended the training; nothing if it went to its end everywhere."""
        causes = [(own.distance, own.at, -1, own.error)] if own.error else []
        if self._peers:
            causes += [
                (state.distance, state.at, rank, self._failed_there(rank, state.error))
                for rank, state in self._peers.states.items()
                if state.error
            ]
            # If a worker failed here as well, its broken connection is a second sign that the other node is gone.
            alone = own.error is not None and not self._given_up
            silent = self._peers.silent(self._timing.settle if alone else self._timing.silence)
            lost = [self._peers.lost(rank, seconds, _GONE) for rank, seconds in silent.items()]
            causes += [(distance_from_cause(each), 0.0, rank, each) for rank, each in zip(silent, lost, strict=True)]
        # The cause may only be known by now: workers hear of it from each other, before their launchers do.
        known = self._stopped_by not in ("", _BY_THEMSELVES)
        stopped = self._stopped_by if known else self._who_stopped() or self._stopped_by
        if stopped and not any(distance == 0 for distance, *_ in causes):
            raise Interrupted(stopped)
        if causes:
            raise min(causes, key=lambda cause: cause[:3])[-1]

    def _failed_there(self, rank: int, error: UserError) -> UserError:
        failed_there = NodeFailedError(f"{self._name_of(rank)} failed: {error}")
        failed_there.__cause__ = error
        return failed_there

    def _name_of(self, rank: int) -> str:
        return self._peers.name_of(rank) if self._peers else f"node {rank}"


def _is_said(error: UserError | Interrupted | None) -> TypeGuard[UserError]:
    """Whether a process itself has said what is wrong, so that it is the cause."""
    return isinstance(error, UserError) and distance_from_cause(error) == 0
