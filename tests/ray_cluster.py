"""A Ray cluster on this machine: each node is a `ray start` of its own, with its own ports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from processes import Started

from gpu_pipelines.emulator.json_server import free_port

#: Of all clusters of the tests: a process that has read its token keeps it.
TOKEN = "0123456789abcdef" * 3
ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
_STARTED, _TOO_SLOW = "Ray runtime started", "The current node timed out during startup"
_TRIES = 3
#: Its processes for what no test looks at, each of which takes a second to start, are left out.
_LIMITS = [
    "--object-store-memory=100000000", "--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats",
    "--include-log-monitor=false",
]  # fmt: skip


class RayCluster:
    """Nodes that are started and killed.

    Args:
        folder: gets logs; its path is short, as those of sockets have to be.
        cpus: of the head.
        environment: variables of the nodes; None for those of the test.
    """

    def __init__(self, folder: Path, cpus: int, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = os.environ if environment is None else environment
        self.nodes: list[Started] = []
        self._cpus = cpus
        try:
            self.head = self._started(self._begin_head)
            self.head.await_line("block forever")  # after the address
        except BaseException:
            self.close()
            raise
        self.address = self.head.output.split("--address='")[1].split("'")[0]

    def _begin_head(self) -> Started:
        return self._start(
            "--head", f"--port={free_port()}", f"--num-cpus={self._cpus}", f"--temp-dir={self._folder}/s",
            "--include-dashboard=false", "--no-monitor", f"--ray-client-server-port={free_port()}",
        )  # fmt: skip

    def begin(self, cpus: int = 1) -> Started:
        """Begins a node; `await_node` waits for it."""
        return self._start(f"--address={self.address}", f"--num-cpus={cpus}")

    @staticmethod
    def await_node(node: Started) -> None:
        node.await_line(_STARTED)

    def add(self, number: int = 1) -> list[Started]:
        """Starts nodes one after the other and waits until they are there."""
        return [self._started(self.begin) for _ in range(number)]

    def _started(self, begin: Callable[[], Started]) -> Started:
        """A node that is there. Ray gives one 30 s, which is too little on a busy machine; then it is tried again."""
        for _ in range(_TRIES):
            node = begin()
            ended = node.await_line_or_end(_STARTED)
            if not (ended and _TOO_SLOW in node.output):
                break
            self.nodes.remove(node)
        self.await_node(node)
        return node

    def kill(self, node: Started) -> None:
        """Kills all processes of a node with SIGKILL, as a machine that is taken away."""
        node.kill_tree()
        node.process.wait()
        self.nodes.remove(node)

    def close(self) -> None:
        for node in self.nodes:
            node.kill_tree()
            node.process.wait()

    def _start(self, *arguments: str) -> Started:
        log = self._folder / f"{time.monotonic_ns()}.log"
        path = [*sys.path, os.environ.get("PYTHONPATH", "")]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(Path(sys.executable).with_name("ray")), "start", "--block", *arguments, *_LIMITS],
                env={**self._environment, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, path))},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self.nodes.append(Started(process, log))
        return self.nodes[-1]


@contextmanager
def ray_cluster(nodes: int = 1, cpus_of_head: int = 1) -> Iterator[RayCluster]:
    """A cluster of so many nodes, the head among them, each of one CPU but for the head."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    os.environ.update(ENVIRONMENT)
    cluster = None
    try:
        cluster = RayCluster(folder, cpus_of_head)
        cluster.add(nodes - 1)
        yield cluster
    finally:
        if cluster:
            cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


def workers_of(node: Started) -> list[Any]:
    """The processes of a node that do work."""
    children = psutil.Process(node.process.pid).children(recursive=True)
    return [child for child in children if "RayWorker" in " ".join(child.cmdline())]
