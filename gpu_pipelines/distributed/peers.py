"""Messages between the nodes of a step: that they are there and alive, and how they ended.

All of them go through one `TCPStore` on rank 0, at the address that torchrun's rendezvous and the workers' process
groups use as well, so that one port between the nodes is enough.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.waiting import Waiting
from gpu_pipelines.errors import (
    ConnectionLostError,
    NodeLostError,
    UserError,
    as_data,
    distance_from_cause,
    first_line,
    from_data,
)

RUNNING, STOPPING, INTERRUPTED, FAILED, DONE = "running", "stopping", "interrupted", "failed", "done"
_FINAL = (INTERRUPTED, FAILED, DONE)
_SECONDS_OF_ONE_CONNECTION = 2.0


@dataclass(frozen=True)
class Timing:
    """Waiting times of the launcher, in seconds.

    Attributes:
        silence: a node that was not heard of for so long is given up.
        stop: workers that were interrupted are killed after so long. Spot machines give notice of 30 s.
        end: the same for workers whose checkpoint would be of no use, because another node has failed.
        beat: between two signs of life.
        settle: a silent node counts as dead after so long if there is another sign of it: a worker here that failed.
    """

    silence: float = 30.0
    stop: float = 28.0
    end: float = 5.0
    beat: float = 1.0
    settle: float = 5.0


@dataclass(frozen=True)
class NodeState:
    """The state of a node, as its launcher reports it.

    Attributes:
        state: running, stopping (interrupted, its workers are saving), interrupted, failed or done.
        message: progress, or who told it to stop.
        signalled: whether it was interrupted by a signal to itself.
        failure: why it failed, in the form of `as_data`.
        at: when it failed, in seconds since the epoch by that node's clock.
        attempt: number of times that its processes had been started again.
    """

    state: str = RUNNING
    message: str = ""
    signalled: bool = False
    failure: dict[str, Any] | None = None
    at: float = 0.0
    attempt: int = 0

    @property
    def error(self) -> UserError | None:
        """Why it failed; None if it did not."""
        if self.state != FAILED:
            return None
        found = from_data(self.failure)
        return found if isinstance(found, UserError) else UserError(self.message)

    @property
    def distance(self) -> int:
        """How likely its failure is a consequence of another one: lower values are nearer to the cause."""
        return distance_from_cause(self.error)


def failed(error: UserError, at: float | None = None) -> NodeState:
    """The state of a node that has failed.

    Args:
        error: why.
        at: when, in seconds since the epoch; left out, now.
    """
    return NodeState(FAILED, failure=as_data(error), at=time.time() if at is None else at)


class Peers:
    """The launchers of the other nodes. One thread exchanges signs of life and states; see `Timing`."""

    def __init__(self, cluster: Cluster, store: Any, addresses: list[str], timing: Timing) -> None:
        self.cluster = cluster
        self._store = store
        self._addresses = addresses
        self._timing = timing
        self._own = NodeState()
        self._attempt = 0
        self._states = {rank: NodeState() for rank in range(cluster.nodes)}
        self._beats: dict[int, bytes] = {}
        now = time.monotonic()
        self._changed = dict.fromkeys(range(cluster.nodes), now)
        self._exchanged = now
        self._cut = False
        self._awake, self._sent, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._exchange_until_ended, daemon=True, name="peers")
        self._thread.start()

    def name_of(self, rank: int) -> str:
        """A node in messages."""
        return f"node {rank} ({self._addresses[rank]})"

    def lost(self, rank: int, seconds: float, why: str) -> NodeLostError:
        """The error about a node that is silent."""
        return NodeLostError(f"{self.name_of(rank)} has not been heard from for {seconds:.0f} s. {why}")

    @property
    def states(self) -> dict[int, NodeState]:
        """The state of every other node, as last heard."""
        return {rank: self._state_of(rank) for rank in self._states if rank != self.cluster.node_rank}

    def _state_of(self, rank: int) -> NodeState:
        """The state of a node in this attempt. The end of an earlier attempt does not count; an interruption does."""
        state = self._states[rank]
        if state.attempt < self._attempt and state.state in (FAILED, DONE):
            return NodeState()
        if state.attempt > self._attempt:
            return failed(ConnectionLostError("Its processes were started again."))
        return state

    def report(self, state: NodeState) -> None:
        """Reports the state of this node; waits a moment, so that the others know before any consequence."""
        self._own = replace(state, attempt=self._attempt)
        self._sent.clear()
        self._awake.set()
        self._sent.wait(2 * self._timing.beat)

    def begin_again(self) -> None:
        """Begins another attempt of all nodes."""
        self._attempt += 1
        self.report(NodeState())

    def agree_to_begin_again(self, is_wanted: bool) -> bool:
        """Whether all nodes begin again after a failed attempt: rank 0 decides.

        Args:
            is_wanted: whether this node wants it. If so, it waits for rank 0's decision.
        """
        said = f"again/{self._attempt}"
        with suppress(RuntimeError):  # the store is gone, and rank 0 with it
            if self.cluster.is_rank_0:
                self._store.set(said, "yes" if is_wanted else "no")
                return is_wanted
            deadline = time.monotonic() + 6 * self._timing.settle
            while is_wanted and not self._cut and time.monotonic() < deadline:
                if self._store.check([said]):
                    return bool(self._store.get(said) == b"yes")
                time.sleep(self._timing.beat / 4)
        return False

    def silent(self, seconds: float) -> dict[int, float]:
        """The nodes that have not ended and were not heard of for `seconds`, and the duration for each."""
        now = time.monotonic()
        if self._cut or now - self._exchanged > seconds:
            # The store is gone or does not answer, so rank 0 is. Nothing can be known about the others.
            rank_0_ended = self._state_of(0).state in _FINAL
            return {} if rank_0_ended or self.cluster.is_rank_0 else {0: now - self._exchanged}
        since = {rank: self._exchanged - self._changed[rank] for rank in self.states}
        return {
            rank: silence
            for rank, silence in since.items()
            if silence > seconds and self._state_of(rank).state not in _FINAL
        }

    @property
    def have_ended(self) -> bool:
        """Whether every other node has ended, in whatever way."""
        if self._cut and self._state_of(0).state in _FINAL:
            return True  # rank 0 leaves last
        gone = self.silent(self._timing.settle)
        return all(state.state in _FINAL or rank in gone for rank, state in self.states.items()) or 0 in gone

    def leave(self) -> None:
        """Ends the exchange. Rank 0, which has the store, waits until the others have read how the nodes ended."""
        with suppress(RuntimeError):
            if not self._cut and time.monotonic() - self._exchanged < self._timing.settle:
                if self.cluster.is_rank_0:
                    self._store.set("closed", "1")
                    self._wait_for_readers()
                else:
                    self._store.set(f"left/{self.cluster.node_rank}", "1")
        self._ended.set()
        self._awake.set()

    def _wait_for_readers(self) -> None:
        deadline = time.monotonic() + 3 * self._timing.settle
        while time.monotonic() < deadline:
            gone = self.silent(self._timing.settle)
            waiting = [f"left/{rank}" for rank in self.states if rank not in gone]
            if not waiting or self._store.check(waiting):
                return
            time.sleep(self._timing.beat / 4)

    def _exchange_until_ended(self) -> None:
        beat = 0
        while not self._ended.is_set():
            beat += 1
            try:
                self._exchange(beat)
            except RuntimeError:
                self._cut = True
                self._sent.set()
                return
            self._awake.wait(self._timing.beat)
            self._awake.clear()

    def _exchange(self, beat: int) -> None:
        """One round; returns when the store has all reports. Blocks for ever if the network is cut."""
        rank, said = self.cluster.node_rank, self._own
        self._store.set(f"state/{rank}", json.dumps(asdict(said)))
        self._store.set(f"beat/{rank}", str(beat))
        ranks = range(self.cluster.nodes)
        answers = self._store.multi_get([f"beat/{rank}" for rank in ranks] + [f"state/{rank}" for rank in ranks])
        now = time.monotonic()
        for rank, heard in zip(ranks, answers[: self.cluster.nodes], strict=True):
            if heard != self._beats.get(rank):
                self._beats[rank] = heard
                self._changed[rank] = now
        for rank, state in zip(ranks, answers[self.cluster.nodes :], strict=True):
            self._states[rank] = NodeState(**json.loads(state))
        self._exchanged = now
        if said is self._own:
            self._sent.set()


def join(cluster: Cluster, processes: int, timing: Timing, check: Callable[[], None]) -> Peers:
    """Waits until all nodes have joined.

    Args:
        cluster: of several nodes.
        processes: number of processes that this node starts.
        timing: waiting times of the exchange that begins then.
        check: called repeatedly while waiting; raises to end it.

    Raises:
        UserError: not all came in time, rank 0 cannot be reached, or the nodes differ.
    """
    waiting = Waiting(cluster.join_seconds, check)
    while True:
        store = _own_store(cluster, waiting) if cluster.is_rank_0 else _connected_store(cluster, waiting)
        if not _is_first(cluster, store, waiting):
            continue
        try:
            return Peers(cluster, store, _meet(cluster, processes, store, waiting), timing)
        except RuntimeError:
            pass  # rank 0 has gone while this node waited; it, or a new one, may come back
        except BaseException:
            # So that this node can join the waiting ones when it is started again.
            with suppress(RuntimeError):
                store.delete_key(f"node/{cluster.node_rank}")
                store.add(f"joined/{cluster.node_rank}", -1)
            raise
        time.sleep(timing.beat)


def _own_store(cluster: Cluster, waiting: Waiting) -> Any:
    from torch.distributed import PrefixStore, TCPStore

    host, port = cluster.rank_0_address, cluster.rank_0_port
    while True:
        try:
            socket.getaddrinfo(host, port)
            break
        except OSError:
            waiting.for_(f"the name {host} to resolve on rank 0 itself", "Check MASTER_ADDR.")
    try:
        # multi_tenant: torchrun's rendezvous in this process will use the same server.
        store = TCPStore(
            host, port, None, True, timedelta(seconds=30), wait_for_workers=False, multi_tenant=True
        )  # fmt: skip
    except RuntimeError as error:
        reason = "it is taken" if "EADDRINUSE" in str(error) else first_line(error)
        raise UserError(
            f"Rank 0 cannot listen on port {port}: {reason}.", "Set MASTER_PORT to a free one on all nodes."
        ) from None
    return PrefixStore("gpu-pipelines", store)


def _connected_store(cluster: Cluster, waiting: Waiting) -> Any:
    from torch.distributed import PrefixStore, TCPStore

    host, port = cluster.rank_0_address, cluster.rank_0_port
    hint = "Check that rank 0 runs, its name resolves on this node, and no firewall keeps the port."
    while True:
        try:
            # TCPStore prints C++ stack traces while it tries; a plain connection does not.
            socket.create_connection((host, port), timeout=_SECONDS_OF_ONE_CONNECTION).close()
            store = TCPStore(host, port, None, False, timedelta(seconds=30), wait_for_workers=False)
            return PrefixStore("gpu-pipelines", store)
        except (OSError, RuntimeError):
            waiting.for_(f"rank 0 at {host}:{port}", hint)


def _is_first(cluster: Cluster, store: Any, waiting: Waiting) -> bool:
    """Whether no other node has this rank in a run that has not ended."""
    rank = cluster.node_rank
    with suppress(RuntimeError):
        if not store.check(["closed"]):
            if store.add(f"joined/{rank}", 1) == 1:
                return True
            store.add(f"joined/{rank}", -1)
    waiting.for_(
        f"the run that still has a {cluster.name_of(rank)} to end",
        "Each node needs a rank of its own; a node that was restarted can come back when all are.",
    )
    return False


def _meet(cluster: Cluster, processes: int, store: Any, waiting: Waiting) -> list[str]:
    """Waits until all nodes have joined, and returns the address of each."""
    rank = cluster.node_rank
    own = {"address": address_towards(cluster), "processes": processes, "nodes": cluster.nodes}
    store.set(f"state/{rank}", json.dumps(asdict(NodeState())))
    store.set(f"beat/{rank}", "0")
    store.set(f"node/{rank}", json.dumps(own))
    keys = [f"node/{other}" for other in range(cluster.nodes)]
    while missing := [other for other, key in enumerate(keys) if not store.check([key])]:
        names = ", ".join(cluster.name_of(other) for other in missing)
        hint = f"Check that they were started and reach {cluster.rank_0_address}:{cluster.rank_0_port}."
        waiting.for_(names, hint)
    nodes = [json.loads(store.get(key)) for key in keys]
    for what in ("nodes", "processes"):
        for other, node in enumerate(nodes):
            if node[what] != nodes[0][what]:
                raise UserError(
                    f"Node 0 has {nodes[0][what]} {what}, but {cluster.name_of(other)} has {node[what]}.",
                    "All nodes need the same command, the same variables and the same devices.",
                )
    return [node["address"] for node in nodes]


def address_towards(cluster: Cluster) -> str:
    """This node's own address towards the other nodes; rank 0's name if it cannot be found."""
    target = cluster.rank_0_address
    if cluster.is_rank_0 and cluster.nodes > 1 and cluster.addresses:
        target = cluster.addresses[1].rpartition(":")[0].strip("[]")
    with suppress(OSError, IndexError):
        family, kind, _, _, place = socket.getaddrinfo(target, cluster.rank_0_port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # Connecting a UDP socket sends nothing; it only looks up the route.
            probe.connect(place)
            return str(probe.getsockname()[0])
    return cluster.rank_0_address


def interface_of(address: str) -> str | None:
    """The name of the network interface that has an address, such as "eth0"; None if none has."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    return None
