"""The machines of a step as a Ray cluster: rank 0 is its head and does the work with it, the others lend their cores.

Rank 0 leaves a token in a file that all machines see, and with it the right to join. The others look into that file:

| what the file says | what another machine does |
|---|---|
| a token | it joins, as soon as the head can be reached; one that comes late or was restarted just joins later |
| another token | rank 0 was restarted: it leaves the old cluster and joins the new one |
| an error | the work has failed: it ends with that error |
| nothing any more | the work is done: it ends |

A machine that is lost costs what it was doing, which Ray gives to another. Rank 0 costs the cluster, but not what is
done: the others wait for the next rank 0.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from gpu_pipelines.distributed.members import Cluster, split_address
from gpu_pipelines.distributed.peers import address_towards
from gpu_pipelines.distributed.ray_node import RayNode, head_address, require_ray
from gpu_pipelines.distributed.signals import Signalled, noted
from gpu_pipelines.distributed.waiting import Waiting
from gpu_pipelines.errors import (
    Interrupted,
    NodeFailedError,
    ProcessFailedError,
    UserError,
    as_data,
    from_data,
)
from gpu_pipelines.step_environment import environment_with

Result = TypeVar("Result")

_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_OF_ONE_CONNECTION, _SECONDS_UNTIL_REPLACED = 2.0, 1.0
#: How long the head may take to start; on a loaded machine Ray itself gives up after a minute or so.
_SECONDS_TO_START = 180.0
_HINT = "Check that rank 0 runs, and that no firewall keeps the ports of Ray between the machines: docs/ray.md."


class SharedFile(Protocol):
    """A file that all machines see and change under a condition: `artifacts.versioned_file.VersionedFile`."""

    def read(self) -> tuple[bytes, str]:
        """Content and version; both empty where there is none."""
        ...

    def write(self, content: bytes, version: str) -> str | None:
        """Replaces a version; the new version, or None if the file is of another one by now."""
        ...

    def delete(self, version: str) -> None:
        """Deletes a version."""
        ...


@dataclass(frozen=True)
class RayTiming:
    """How often machines look at what, in seconds.

    Attributes:
        look: between two looks into the shared file.
    """

    look: float = 5.0


@dataclass(frozen=True)
class _Session:
    """What the shared file says of one start of rank 0.

    Attributes:
        token: of its cluster; empty once the work has failed.
        failure: why it has, as `as_data` describes it.
    """

    token: str = field(default="", repr=False)
    failure: dict[str, Any] | None = None

    @classmethod
    def read(cls, file: SharedFile) -> _Session | None:
        """What it says; None if nothing that is understood."""
        try:
            found = json.loads(file.read()[0] or b"{}")
            return cls(str(found["token"]), found["failure"])
        except (ValueError, KeyError, TypeError):
            return None

    def dumps(self) -> bytes:
        return json.dumps({"token": self.token, "failure": self.failure}).encode()


def on_ray_cluster(
    cluster: Cluster, file: SharedFile, work: Callable[[str], Result], timing: RayTiming | None = None
) -> Result | None:
    """Does some work with all machines of a step; every one calls this function.

    Args:
        cluster: the machines, two or more.
        file: of these machines alone.
        work: is called on rank 0 with the address of the cluster, as soon as its head is there.
        timing: how often to look at what; for tests.

    Returns:
        What `work` returns; None on a machine that is not rank 0.

    Raises:
        UserError: Ray is not installed or cannot be started, rank 0 was not there in time, or its work has failed.
        Interrupted: this machine was interrupted.
    """
    require_ray()
    if cluster.is_rank_0:
        return _lead(cluster, file, work)
    with noted() as signalled:
        _Member(cluster, file, timing or RayTiming(), signalled).take_part()
    return None


def _lead(cluster: Cluster, file: SharedFile, work: Callable[[str], Result]) -> Result:
    session = _Session(secrets.token_hex(32))
    with _head(cluster, session.token) as node, environment_with(node.variables):
        version = _replace(file, session)
        print(f"Ray: {cluster.name_of(0)} is the head of {cluster.nodes} machines, at {node.address}", flush=True)
        try:
            done = work(node.address)
        except (Interrupted, KeyboardInterrupt):
            raise  # the others wait for this machine to come back
        except BaseException as error:
            with suppress(UserError):  # the others would wait in vain, but what went wrong is said here
                _replace(file, _Session(failure=as_data(_told(error))))
            raise
        finally:
            _disconnect()
        file.delete(version)
        return done


def _disconnect() -> None:
    """Ends this process's part in the cluster, which would end the process when the cluster does."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()


def _told(error: BaseException) -> UserError:
    return error if isinstance(error, UserError) else ProcessFailedError(f"{type(error).__name__}: {error}")


def _replace(file: SharedFile, session: _Session) -> str:
    """Writes the file whatever it says; there is one rank 0. Returns the new version."""
    while True:
        if version := file.write(session.dumps(), file.read()[1]):
            return version


@contextmanager
def _head(cluster: Cluster, token: str) -> Iterator[RayNode]:
    """The head of the cluster, once it has started."""
    with noted() as signalled:
        node = RayNode(cluster, token)
        try:
            deadline = time.monotonic() + _SECONDS_TO_START
            while not node.has_started:
                if signalled:
                    raise Interrupted(f"stopped by {signalled.name} before the work began")
                if not node.runs or time.monotonic() > deadline:
                    raise UserError(
                        f"The head of the Ray cluster could not start at {node.address}:\n  {node.last_lines()}",
                        "Check whether another program uses the port, and whether the machine has memory left.",
                    )
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        except BaseException:
            node.leave()
            raise
    try:
        yield node
    finally:
        node.leave()


class _Member:
    """A machine that is not rank 0."""

    def __init__(self, cluster: Cluster, file: SharedFile, timing: RayTiming, signalled: Signalled) -> None:
        self._cluster, self._file, self._timing, self._signalled = cluster, file, timing, signalled
        self._has_seen_work = False  # what the file says before is of a work before
        self._joined = ""  # token of the cluster that this machine was in last
        self._refused = ""  # what `ray start` said when it failed last

    def take_part(self) -> None:
        """Lends this machine until the work is done; raises what `on_ray_cluster` raises."""
        waiting = self._waiting()
        while session := self._await_session(waiting):
            node = RayNode(self._cluster, session.token)
            try:
                is_over = self._lend(node, session, waiting)
            finally:
                node.leave()
            if is_over:
                return
            if self._joined == session.token:
                waiting = self._waiting()
                print(f"Ray: {self._name} has lost the head and waits for it", flush=True)

    @property
    def _name(self) -> str:
        return f"node {self._cluster.node_rank} ({address_towards(self._cluster)})"

    def _waiting(self) -> Waiting:
        return Waiting(self._cluster.join_seconds, self._require_no_signal)

    def _require_no_signal(self) -> None:
        if self._signalled:
            raise Interrupted(f"stopped by {self._signalled.name}; what is done is kept")

    def _await_session(self, waiting: Waiting) -> _Session | None:
        """The cluster of a head that can be reached; None when the work is done.

        Raises:
            UserError: the time is over, or the work has failed.
        """
        while True:
            session, unread = self._look()
            if unread is None and self._is_over(session):
                return None
            if session and session.token and self._is_reachable():
                return session
            place = f"{self._cluster.rank_0_address}:{self._cluster.rank_0_port}"
            told = "\n  ".join(text for text in (str(unread or ""), self._refused, _HINT) if text)
            waiting.for_(f"{self._cluster.name_of(0)} to be the head of a Ray cluster at {place}", told)

    def _look(self) -> tuple[_Session | None, UserError | None]:
        """What the file says, and why it could not be read."""
        try:
            session = _Session.read(self._file)
            if session is None and self._has_seen_work:
                # A file system without locks shows an empty file for the moment in which it is replaced.
                time.sleep(_SECONDS_UNTIL_REPLACED)
                session = _Session.read(self._file)
        except UserError as error:
            return None, error
        self._has_seen_work = self._has_seen_work or bool(session and session.token)
        return session, None

    def _is_over(self, session: _Session | None) -> bool:
        """Whether the work of this step is done.

        Raises:
            NodeFailedError: it has failed.
        """
        if not self._has_seen_work:
            return False
        if session is None:
            return True
        cause = from_data(session.failure)
        if cause is not None:
            raise NodeFailedError(f"{self._cluster.name_of(0)} failed: {cause}") from cause
        return False

    def _is_reachable(self) -> bool:
        try:
            host, port = split_address(head_address(self._cluster))
            socket.create_connection((host, port), timeout=_SECONDS_OF_ONE_CONNECTION).close()
        except (OSError, UserError):
            return False
        return True

    def _lend(self, node: RayNode, session: _Session, waiting: Waiting) -> bool:
        """Joins a cluster, and stays in it as long as it is there; whether the work is over then.

        Raises:
            UserError: it could not be joined in time, or the work has failed.
            Interrupted: this machine was.
        """
        looked = time.monotonic()
        while node.runs:
            self._require_no_signal()
            if self._joined != session.token and node.has_started:
                self._joined, self._refused = session.token, ""
                print(f"Ray: {self._name} has joined the cluster of {self._cluster.name_of(0)}", flush=True)
            elif self._joined != session.token:
                told = self._refused or node.last_lines()
                waiting.for_(f"the Ray cluster of {self._cluster.name_of(0)} to take this machine", told)
            if time.monotonic() - looked > self._timing.look:
                looked = time.monotonic()
                now, unread = self._look()
                # Storage that cannot be read for a while is no reason to leave.
                if unread is None:
                    if self._is_over(now):
                        return True
                    if now and now.token != session.token:
                        return False
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        if self._joined != session.token:
            self._refused = f"This machine could not join:\n  {node.last_lines()}"
        return False
