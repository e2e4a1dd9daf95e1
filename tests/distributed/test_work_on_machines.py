"""The work of a step on all its machines, which here share this one, and meet in a bucket."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import storage_emulator
from processes import Started, start_python

from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.component_interface.machines import on_machines
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.emulator.json_server import free_port

PROGRAM = """
import os, sys
from gpu_pipelines.component_interface.machines import on_machines
from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.distributed.executor import executor_for
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.ray_cluster import RayTiming
from works import Square

def work(address):
    with executor_for(address) as executor:
        return sum(square for _, (square, _) in executor.map(Square, ("", 0.05), range(100)))

if __name__ == "__main__":
    with own_process():
        cluster = Cluster.from_environment(os.environ)
        print("ended with", on_machines(cluster, sys.argv[1], work, RayTiming(look=0.5)), flush=True)
"""


def start(program: Path, ports: list[int], rank: int, place: str) -> Started:
    """A machine of a job of Vertex AI; RAY_AUTH_TOKEN is one that its user has for another cluster."""
    pools = {"workerpool0": [f"127.0.0.1:{ports[0]}"], "workerpool1": [f"127.0.0.1:{port}" for port in ports[1:]]}
    task = {"type": "workerpool0", "index": 0} if rank == 0 else {"type": "workerpool1", "index": rank - 1}
    variables = {
        "CLUSTER_SPEC": json.dumps({"cluster": pools, "task": task}),
        "RAY_AUTH_TOKEN": str(rank) * 64,
        "PYTHONPATH": str(Path(__file__).parent),
    }
    return start_python([str(program), place], program.with_suffix(f".{rank}.log"), {**os.environ, **variables})


@pytest.mark.slow
def test_machines_meet_in_a_bucket_and_leave_nothing_there(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ports = [free_port() for _ in range(3)]
    with storage_emulator("bucket") as bucket:
        machines = [start(program, ports, rank, f"{bucket}/work") for rank in range(3)]
        assert [machine.wait(240) for machine in machines] == [0, 0, 0], machines[0].output
        assert RemoteFolder(f"{bucket}/work").names() == []
    assert f"ended with {sum(number**2 for number in range(100))}" in machines[0].output
    assert all("ended with None" in machine.output for machine in machines[1:])


def test_one_machine_needs_no_cluster(tmp_path: Path) -> None:
    assert on_machines(Cluster(), str(tmp_path), lambda address: [address]) == [""]
    assert not list(tmp_path.iterdir())
