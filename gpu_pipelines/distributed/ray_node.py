"""This machine as a node of a Ray cluster: `ray start`, its ports, its token, and its end.

Token authentication is on at every node: without the token nobody can join the cluster or run code in it. The token is
in a file that only this user can read, and in no command line and no variable.

A node listens on the same ports everywhere (docs/ray.md), so that a firewall can name them:

| port | what listens |
|---|---|
| that of rank 0 (`CLUSTER_SPEC`, `MASTER_PORT`) | the head's directory of the cluster (GCS) |
| 29511, 29512 | node manager, object manager |
| 29513 to 29516 | runtime environments, agents, metrics |
| 29517 | the head's server for `ray://` |
| 29518 | the head's metrics |
| 29600 to 30599 | worker processes |

Nodes on one machine, as in tests, take free ports.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.peers import address_towards
from gpu_pipelines.errors import UserError

#: Options of `ray start` for its ports, and the port of each.
PORTS = {
    "--node-manager-port": 29511,
    "--object-manager-port": 29512,
    "--runtime-env-agent-port": 29513,
    "--dashboard-agent-grpc-port": 29514,
    "--dashboard-agent-listen-port": 29515,
    "--metrics-export-port": 29516,
}
CLIENT_PORT, METRICS_OF_HEAD_PORT = 29517, 29518
WORKER_PORTS = (29600, 30599)
#: What `ray start` prints once the node is a part of the cluster.
_STARTED = "Ray runtime started."
_RAYLET = "raylet"
_LAST_LINES = 8
#: How long its processes may take to end after SIGTERM.
_SECONDS_TO_END = 10.0
#: The kernel takes 107 bytes for a Unix socket's path; Ray adds 75 of its own below its folder.
_LONGEST_FOLDER = 32


class RayNode:
    """A `ray start` on this machine, and its processes.

    Args:
        cluster: the machines; rank 0 is the head.
        token: shared by the nodes of the cluster.

    Attributes:
        address: `host:port` at which the cluster is reached.

    Raises:
        UserError: Ray is not installed, or rank 0's name does not resolve.
    """

    def __init__(self, cluster: Cluster, token: str) -> None:
        require_ray()
        self.address = head_address(cluster)
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir=_short_folder()))
        self._token = self._folder / "token"
        self._token.touch(mode=0o600)
        self._token.write_text(token, encoding="ascii")
        self._log = self._folder / "start.log"
        command = [sys.executable, "-u", "-m", "ray.scripts.scripts", "start", "--block", *self._options(cluster)]
        with self._log.open("wb") as log:
            # Even without its dashboard the head has these, if Ray is installed with it.
            metrics = {"DASHBOARD_METRIC_PORT": "0" if shares_a_machine(cluster) else str(METRICS_OF_HEAD_PORT)}
            environment = {**os.environ, **self.variables, **metrics}
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables of the environment with which a process can talk to the cluster."""
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "",  # that of another cluster would win over the file
            "RAY_AUTH_TOKEN_PATH": str(self._token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray would give a process that requests no GPU an empty CUDA_VISIBLE_DEVICES, and warn of it.
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }

    def _options(self, cluster: Cluster) -> list[str]:
        alone = shares_a_machine(cluster)
        ports = {option: 0 if alone else port for option, port in PORTS.items()}
        options = ["--disable-usage-stats", "--temp-dir", str(self._folder)]
        if not alone:
            first, last = WORKER_PORTS
            options += ["--node-ip-address", address_towards(cluster)]
            options += ["--min-worker-port", str(first), "--max-worker-port", str(last)]
        options += [text for option, port in ports.items() for text in (option, str(port))]
        if not cluster.is_rank_0:
            return [*options, "--address", self.address]
        client = _free_port() if alone else CLIENT_PORT
        # There is nothing to scale, and no dashboard to look at.
        head = ["--head", "--port", str(cluster.rank_0_port), "--include-dashboard=false", "--no-monitor"]
        return [*options, *head, "--ray-client-server-port", str(client)]

    @property
    def has_started(self) -> bool:
        """Whether this machine is, or was, a part of the cluster."""
        return _STARTED in self._said()

    @property
    def runs(self) -> bool:
        """Whether it is a part of the cluster, or is joining it.

        `ray start` keeps running if the process that takes the work has ended by itself.
        """
        if self._process.poll() is not None:
            return False
        return not self.has_started or any(_RAYLET in _name_of(process) for process in _below(self._process.pid))

    def last_lines(self) -> str:
        """The end of the output of `ray start`."""
        lines = [line.strip() for line in self._said().splitlines() if line.strip()]
        return "\n  ".join(lines[-_LAST_LINES:]) or "It has said nothing."

    def leave(self) -> None:
        """Ends the node; others do the work that it has begun."""
        import psutil

        processes = _below(self._process.pid)
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_END)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")


def require_ray() -> None:
    """Checks that Ray is installed.

    Raises:
        UserError: it is not.
    """
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            "Several machines work together through Ray, which is not installed.",
            "Run pip install 'gpu-pipelines[ray]'; the image of the steps has it.",
        )


def head_address(cluster: Cluster) -> str:
    """`host:port` of the cluster's head; its name is resolved, because Ray compares addresses.

    Raises:
        UserError: the name does not resolve.
    """
    host, port = cluster.rank_0_address, cluster.rank_0_port
    try:
        found = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UserError(f"The name {host} of rank 0 does not resolve: {error}.", "Check MASTER_ADDR.") from None
    return f"[{found}]:{port}" if ":" in found else f"{found}:{port}"


def shares_a_machine(cluster: Cluster) -> bool:
    """Whether the nodes are processes of this machine: rank 0 has a loopback address."""
    host = head_address(cluster).rpartition(":")[0].strip("[]")
    return ipaddress.ip_address(host).is_loopback


def _short_folder() -> str:
    folder = tempfile.gettempdir()
    return folder if len(folder) <= _LONGEST_FOLDER else "/tmp"  # noqa: S108 (made by mkdtemp, for this user alone)


def _below(process: int) -> list[Any]:
    import psutil

    try:
        return list(psutil.Process(process).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _name_of(process: Any) -> str:
    import psutil

    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])
