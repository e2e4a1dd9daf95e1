"""The machines of a step as a Ray cluster: rank 0 is its head and does the work, the others lend their cores.

Rank 0 leaves a token, which gives the right to join, in a file that all machines see. The others read that file:

| content of the file | what another machine does |
|---|---|
| a token | it joins, once the head can be reached; one that comes late or was restarted just joins later |
| another token | rank 0 was restarted: it leaves the old cluster and joins the new one |
| an error | the work has failed: it ends with that error |
| nothing any more | the work is done: it ends |

The work of a lost machine is lost, and Ray gives it to another. If rank 0 is lost, so is the cluster, but finished work
is not: the others wait for the next rank 0.
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
from gpu_pipelines.errors import Interrupted, NodeFailedError, ProcessFailedError, UserError, as_data, from_data
from gpu_pipelines.step_environment import environment_with

Result = TypeVar("Result")

_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_OF_ONE_CONNECTION, _SECONDS_UNTIL_REPLACED = 2.0, 1.0
#: How long the head may take to start; on a loaded machine Ray itself gives up after about a minute.
_SECONDS_TO_START = 180.0
_HINT = "Check that rank 0 runs, and that no firewall keeps the ports of Ray between the machines: docs/ray.md."


class SharedFile(Protocol):
    """A file that all machines see and change conditionally: `artifacts.versioned_file.VersionedFile`."""

    def read(self) -> tuple[bytes, str]:
        """Content and version; both empty if there is none."""
        ...

    def write(self, content: bytes, version: str) -> str | None:
        """Replaces a version; returns the new version, or None if the file has another one by now."""
        ...

    def delete(self, version: str) -> None:
        """Deletes a version."""
        ...


@dataclass(frozen=True)
class RayTiming:
    """Times between checks, in seconds.

    Attributes:
        look: between two reads of the shared file.
    """

    look: float = 5.0


@dataclass(frozen=True)
class _Session:
    """The shared file's content about one start of rank 0.

    Attributes:
        token: token of its cluster; empty once the work has failed.
        failure: why it failed, in the form of `as_data`.
    """

    token: str = field(default="", repr=False)
    failure: dict[str, Any] | None = None

    @classmethod
    def read(cls, file: SharedFile) -> _Session | None:
        """The content of the file; None if it is not understood."""
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
        file: only for these machines.
        work: called on rank 0 with the address of the cluster, once its head is up.
        timing: times between checks; for tests.

    Returns:
        What `work` returns; None on a machine that is not rank 0.

    Raises:
        UserError: Ray is not installed or cannot be started, rank 0 did not come in time, or its work failed.
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
            with suppress(UserError):  # the others would wait in vain, but this error matters more
                _replace(file, _Session(failure=as_data(_told(error))))
            raise
        finally:
            _disconnect()
        file.delete(version)
        return done


def _disconnect() -> None:
    """Ends this process's part in the cluster, which would otherwise end the process with the cluster."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()


def _told(error: BaseException) -> UserError:
    return error if isinstance(error, UserError) else ProcessFailedError(f"{type(error).__name__}: {error}")


def _replace(file: SharedFile, session: _Session) -> str:
    """Writes the file whatever its content, as there is one rank 0. Returns the new version."""
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
        self._has_seen_work = False  # earlier content of the file is of earlier work
        self._joined = ""  # token of the cluster that this machine was in last
        self._refused = ""  # what `ray start` said when it failed last

    def take_part(self) -> None:
        """Lends this machine until the work is done; raises the errors of `on_ray_cluster`."""
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
        """The cluster of a reachable head; None when the work is done.

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
        """The content of the file, and why it could not be read."""
        try:
            session = _Session.read(self._file)
            if session is None and self._has_seen_work:
                # A file system without locks shows an empty file at the moment when it is replaced.
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
        """Joins a cluster, and stays in it while it exists; returns whether the work is over then.

        Raises:
            UserError: it could not be joined in time, or the work has failed.
            Interrupted: this machine was interrupted.
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
                # If the storage cannot be read for a while, that is no reason to leave.
                if unread is None:
                    if self._is_over(now):
                        return True
                    if now and now.token != session.token:
                        return False
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        if self._joined != session.token:
            self._refused = f"This machine could not join:\n  {node.last_lines()}"
        return False
