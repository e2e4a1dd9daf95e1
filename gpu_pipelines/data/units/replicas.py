"""The machines that prepare one dataset together: who they are, how far they are, and whether they live."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_pipelines.distributed import peers as nodes
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.peers import NodeState, Peers, Timing, failed, join
from gpu_pipelines.distributed.signals import Signalled, noted
from gpu_pipelines.errors import Interrupted, NodeFailedError, ProcessFailedError, UserError

#: What a machine has done when it waits for the others, in order.
PHASES = ("surveyed", "planned", "indexed", "judged", "written")
_SECONDS_BETWEEN_LOOKS = 0.25


class Replicas:
    """This machine among those that prepare the same dataset.

    Args:
        cluster: the machines.
        timing: how long to wait for a sign of life.
        signalled: whether this machine was interrupted.
    """

    def __init__(self, cluster: Cluster, timing: Timing, signalled: Signalled) -> None:
        self.rank, self.nodes = cluster.node_rank, cluster.nodes
        self._timing = timing
        self._peers: Peers | None = None
        self._signalled = signalled
        self._looked = 0.0

    @property
    def is_rank_0(self) -> bool:
        return self.rank == 0

    def joined(self, peers: Peers) -> None:
        """All machines are there."""
        self._peers = peers

    def check(self) -> None:
        """To be called again and again during the work.

        Raises:
            Interrupted: this machine or another was interrupted.
            UserError: another has failed or vanished.
        """
        if self._signalled:
            raise Interrupted(f"stopped by {self._signalled.name}; what is done is kept")
        now = time.monotonic()
        if self._peers is None or now - self._looked < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        states = self._peers.states
        for rank, state in states.items():
            if state.state == nodes.INTERRUPTED:
                raise Interrupted(f"{self._peers.name_of(rank)} was interrupted; what is done is kept")
        failures = [(state.distance, state.at, rank) for rank, state in states.items() if state.error]
        if failures:
            rank = min(failures)[-1]
            cause = states[rank].error
            raise NodeFailedError(f"{self._peers.name_of(rank)} failed: {cause}") from cause
        for rank, seconds in self._peers.silent(self._timing.silence).items():
            why = "Its machine or its network is gone, or its memory was full."
            raise self._peers.lost(rank, seconds, why, "Run the same again to continue.")

    def reach(self, phase: str) -> None:
        """Says that this machine has come so far, and waits for all others.

        Args:
            phase: one of `PHASES`.

        Raises:
            Interrupted, UserError: as `check`.
        """
        if self._peers is None:
            self.check()
            return
        self._peers.report(NodeState(message=phase))
        while any(not _has_reached(state, phase) for state in self._peers.states.values()):
            self.check()
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _has_reached(state: NodeState, phase: str) -> bool:
    if state.state == nodes.DONE:
        return True
    return state.message in PHASES and PHASES.index(state.message) >= PHASES.index(phase)


@contextmanager
def replicas_of(cluster: Cluster, timing: Timing | None = None) -> Iterator[Replicas]:
    """Waits until all machines are there, and tells them at the end how it went here.

    Args:
        cluster: the machines; every one runs the same.
        timing: how long to wait for what; for tests.

    Raises:
        UserError: not all came in time, or rank 0 cannot be reached.
    """
    with noted() as signalled:
        replicas = Replicas(cluster, timing or Timing(), signalled)
        if cluster.nodes == 1:
            yield replicas
            return
        peers = join(cluster, 1, timing or Timing(), replicas.check)
        replicas.joined(peers)
        try:
            yield replicas
            peers.report(NodeState(nodes.DONE))
        except BaseException as error:
            peers.report(_end_by(error))
            raise
        finally:
            peers.leave()


def _end_by(error: BaseException) -> NodeState:
    if isinstance(error, (Interrupted, KeyboardInterrupt)):
        return NodeState(nodes.INTERRUPTED, str(error))
    return failed(error if isinstance(error, UserError) else ProcessFailedError(f"{type(error).__name__}: {error}"))
