"""Work in pieces on a Ray cluster: an actor for each worker that the cluster has room for, now and later.

Ray starts the workers, moves pieces and results, and knows the machines. An actor ends with its machine; its piece then
goes to another.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpu_pipelines.distributed.pieces import (
    Answer,
    Bench,
    Executor,
    Needs,
    Outcome,
    Work,
    Workers,
    leave_cores_to_workers,
)
from gpu_pipelines.distributed.ray_address import ray_endpoint
from gpu_pipelines.distributed.signals import ENDING
from gpu_pipelines.errors import AccessDeniedError, NotFoundError, UserError, first_line

_SECONDS_BETWEEN_COUNTS = 1.0
_SECONDS_BETWEEN_MESSAGES = 30.0
_SECONDS_TO_ANSWER, _SECONDS_TO_CONNECT = 2.0, 20.0
_INSTALL = 'Install it with pip install "gpu-pipelines[ray]".'


class RayExecutor(Executor):
    """An existing Ray cluster; its actors are kept from one `map` to the next.

    Args:
        address: `host:port` of its head, if this machine is part of it; `ray://host:port` of its client server, if it
            is not; `auto` for the cluster that this machine is part of; for others see `ray_address`.

    Raises:
        UserError: Ray is not installed, nobody answers at the address, or the cluster has another token.
    """

    is_cluster = True

    def __init__(self, address: str) -> None:
        self._ray, self._is_own = _connected(address)
        # A `map` takes them out; a nested one starts its own.
        self._idle: list[_Actor] = []
        self._idle_needs = Needs()

    def _workers(self, work: Work, needs: Needs, check: Callable[[], None]) -> Workers:
        if needs != self._idle_needs:
            self._end_idle()
        taken, self._idle = self._idle, []
        return _Actors(self._ray, taken, work, needs, self._idle_again)

    def _idle_again(self, actors: list[_Actor], needs: Needs) -> None:
        self._end_idle()
        self._idle, self._idle_needs = actors, needs

    def _end_idle(self) -> None:
        for actor in self._idle:
            self._ray.kill(actor.handle)
        self._idle = []

    def close(self) -> None:
        self._end_idle()
        if self._is_own:
            self._ray.shutdown()


def _connected(address: str) -> tuple[Any, bool]:
    """Ray's module, connected to a cluster, and whether the connection was made here."""
    # Anybody who reaches a cluster without a token can run anything on it.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError(f"Work on the Ray cluster {address} needs Ray.", _INSTALL) from None
    if ray.is_initialized():  # by a program that uses Ray itself
        return ray, False
    try:
        _require_answer(address)
        with _own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ray.exceptions.AuthenticationError as error:
        raise AccessDeniedError(
            f"The Ray cluster {address} does not take this machine's token: {first_line(error)}",
            "Give the token of the cluster in RAY_AUTH_TOKEN, or its file in RAY_AUTH_TOKEN_PATH; for a cluster "
            "without one, set RAY_AUTH_MODE=disabled.",
        ) from None
    except (OSError, RuntimeError, ValueError) as error:
        raise NotFoundError(
            f"No Ray cluster can be used at {address}: {first_line(error)}",
            "Check the address, the token in RAY_AUTH_TOKEN, and that this machine is part of the cluster "
            "(ray start --address=…); from outside of it, give ray://HOST:10001.",
        ) from None
    return ray, True


def _require_answer(address: str) -> None:
    """Raises an `OSError` if nobody listens: Ray itself tries for minutes."""
    endpoint = ray_endpoint(address)
    if endpoint.module and importlib.util.find_spec(endpoint.module) is None:
        raise UserError(f"{address} needs a package that is not installed.", f"Install {endpoint.package}.")
    if endpoint.host:
        socket.create_connection((endpoint.host, endpoint.port), _SECONDS_TO_CONNECT).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps this program's signal handlers, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class RayWorker:
    """The class of an actor."""

    def __init__(self) -> None:
        leave_cores_to_workers()
        self._bench: Bench | None = None

    def node(self) -> str:
        """Ray's id of its machine."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def take(self, work: bytes) -> None:
        """Takes pickled work; without any, releases the work that it had."""
        # The sender knows the token of the cluster.
        self._bench = Bench(partial(pickle.loads, work)) if work else None

    def answer(self, piece: bytes) -> Answer:
        """The answer for a pickled piece."""
        assert self._bench is not None
        return self._bench.answer(partial(pickle.loads, piece))


@dataclass
class _Actor:
    """An actor and its state.

    Attributes:
        handle: Ray's handle.
        expected: what is awaited from Ray: its machine, or an answer; None while it has nothing to do.
        node: its machine, once it has begun.
        number: number of its piece; None for none.
    """

    handle: Any
    expected: Any = None
    node: str = ""
    number: int | None = None


class _Actors(Workers):
    """The actors of one `map`: as many as the machines of the cluster have room for.

    Args:
        ray: the module.
        idle: existing actors.
        work: the work.
        needs: resources for each.
        give_back: takes the actors at the end.
    """

    def __init__(
        self, ray: Any, idle: list[_Actor], work: Work, needs: Needs, give_back: Callable[[list[_Actor], Needs], None]
    ) -> None:
        self._ray, self._needs, self._give_back = ray, needs, give_back
        # As bytes, so that a worker that cannot read it reports an error with words, like any other.
        self._work = ray.put(self._ray.cloudpickle.dumps(work))
        self._class = ray.remote(RayWorker).options(num_cpus=needs.cpus, num_gpus=needs.gpus)
        self._actors = idle
        for actor in idle:
            actor.handle.take.remote(self._work)
        self._counted = 0.0
        self._said = time.monotonic()
        self._follow_cluster()

    @property
    def room(self) -> int:
        return sum(1 for actor in self._actors if actor.node)

    def give(self, number: int, piece: Any) -> None:
        actor = next(actor for actor in self._actors if actor.node and actor.number is None)
        actor.number, actor.expected = number, actor.handle.answer.remote(self._ray.cloudpickle.dumps(piece))

    def outcomes(self, seconds: float) -> list[Outcome]:
        self._follow_cluster()
        expected = {actor.expected: actor for actor in self._actors if actor.expected is not None}
        done, _ = self._ray.wait(list(expected), num_returns=1, timeout=seconds)
        return [outcome for reference in done for outcome in self._heard_of(expected[reference])]

    def _heard_of(self, actor: _Actor) -> list[Outcome]:
        try:
            answer = self._ray.get(actor.expected)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError:
            return self._lost(actor)
        actor.expected = None
        if actor.number is None:
            actor.node = answer
            return []
        number, actor.number = actor.number, None
        return [Outcome(number, answer)]

    def _lost(self, actor: _Actor) -> list[Outcome]:
        self._actors.remove(actor)
        # An actor that cannot be reached may still live.
        self._ray.kill(actor.handle)
        if actor.number is None:
            return []
        where = next((node for node in self._ray.nodes() if node["NodeID"] == actor.node), None)
        name = where["NodeManagerAddress"] if where else actor.node
        is_node = where is None or not (where["Alive"] and _answers(name, where["NodeManagerPort"]))
        return [Outcome(actor.number, None, f"{'machine' if is_node else 'a process on'} {name}", is_node)]

    def _follow_cluster(self) -> None:
        """Starts actors for new machines; one at least, which makes an autoscaler look for a machine."""
        now = time.monotonic()
        if now - self._counted < _SECONDS_BETWEEN_COUNTS:
            return
        self._counted = now
        fit = sum(self._fit(node["Resources"]) for node in self._ray.nodes() if node["Alive"])
        for _ in range(max(1, fit) - len(self._actors)):
            actor = _Actor(self._class.remote())
            actor.expected = actor.handle.node.remote()
            actor.handle.take.remote(self._work)
            self._actors.append(actor)
        if self.room:
            self._said = now
        elif now - self._said > _SECONDS_BETWEEN_MESSAGES:
            self._said = now
            needs = f"{self._needs.cpus:g} free CPUs" + (f", {self._needs.gpus:g} free GPUs" * bool(self._needs.gpus))
            print(f"waiting for a machine of the Ray cluster with {needs}", flush=True)

    def _fit(self, resources: dict[str, float]) -> int:
        """Number of workers for which a machine has room."""
        asked = (("CPU", self._needs.cpus), ("GPU", self._needs.gpus))
        return int(min(resources.get(name, 0.0) / need for name, need in asked if need))

    def close(self, *, is_over: bool) -> None:
        begun = [actor for actor in self._actors if is_over and actor.node]
        for actor in self._actors:
            if actor in begun:
                actor.handle.take.remote(b"")
            else:
                self._ray.kill(actor.handle)
        self._give_back(begun, self._needs)


def _answers(address: str, port: int) -> bool:
    """Whether a machine lives. Ray takes seconds to notice that one does not, and a lost worker shows at once."""
    try:
        socket.create_connection((address, port), _SECONDS_TO_ANSWER).close()
    except OSError:
        return False
    return True
