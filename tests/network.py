"""Two network namespaces with a cable between them, as two machines."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import Started, start_python

ADDRESSES = ("10.77.0.1", "10.77.0.2")
# Sums are in another order with more threads. Left to the launcher, it would be the cores over the processes of a node.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class Network:
    """Starts programs on the two machines, and cuts the cable."""

    def __init__(self, holders: list[int], folder: Path) -> None:
        self._holders = holders
        self._folder = folder
        self._nodes: list[Started] = []

    def start(self, machine: int, arguments: list[str], environment: Mapping[str, str]) -> Started:
        """Runs Python on a machine with no variables but a few and those given."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        log = self._folder / f"machine-{machine}-{len(self._nodes)}.log"
        inside = _inside(self._holders[machine])
        self._nodes.append(start_python(arguments, log, {**kept, **ONE_THREAD, **environment}, inside, self._folder))
        return self._nodes[-1]

    def slow_down(self, megabits: int) -> None:
        """Lets both send at most so many Mbit per second."""
        for holder in self._holders:
            limit = f"tc qdisc add dev eth0 root tbf rate {megabits}mbit burst 64kb latency 400ms"
            _run(*_inside(holder), *limit.split())

    def cut(self) -> None:
        _run(*_inside(self._holders[0]), "ip", "link", "set", "eth0", "down")

    def listening(self, machine: int) -> set[int]:
        """The ports on which programs of a machine can be reached from the other."""
        sockets = _run(*_inside(self._holders[machine]), "ss", "--listening", "--tcp", "--numeric", "--no-header")
        places = [line.split()[3].rsplit(":", 1) for line in sockets.splitlines()]
        return {int(port) for host, port in places if not host.strip("[]").removeprefix("::ffff:").startswith("127.")}

    def end(self) -> None:
        for node in self._nodes:
            if node.process.poll() is None:
                node.kill_tree()
                node.process.wait()


def _inside(holder: int) -> list[str]:
    return ["nsenter", "--target", str(holder), "--user", "--net", "--preserve-credentials"]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(
            f"This test needs network namespaces of its own (unprivileged ones are enough) and iproute2; here, "
            f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}"
        )
    return done.stdout


@contextmanager
def two_machines(folder: Path) -> Iterator[Network]:
    """Two namespaces, below a user namespace so that no rights are needed, with an address each."""
    _run("unshare", "--user", "--map-root-user", "--net", "true")
    first = subprocess.Popen(["unshare", "--user", "--map-root-user", "--net", "sleep", "infinity"])
    second = None
    try:
        _await_sleep(first)
        second = subprocess.Popen(
            f"nsenter --target {first.pid} --user --preserve-credentials unshare --net sleep infinity".split()
        )
        _await_sleep(second)
        holders = [first.pid, second.pid]
        _run(*_inside(first.pid), *f"ip link add eth0 type veth peer name eth0 netns {second.pid}".split())
        for holder, address in zip(holders, ADDRESSES, strict=True):
            _run(*_inside(holder), "ip", "address", "add", f"{address}/24", "dev", "eth0")
            _run(*_inside(holder), "ip", "link", "set", "eth0", "up")
            _run(*_inside(holder), "ip", "link", "set", "lo", "up")
        network = Network(holders, folder)
        try:
            yield network
        finally:
            network.end()
    finally:
        for holder in (first, second):
            if holder:
                holder.kill()
                holder.wait()


def _await_sleep(process: subprocess.Popen[bytes]) -> None:
    """Waits until the namespaces are made and the program in them runs."""
    deadline = time.monotonic() + 10
    while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail("Network namespaces could not be made here.")
        time.sleep(0.02)
