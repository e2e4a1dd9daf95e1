"""Launching with real processes: on one machine, and on two with a network between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Forked
from network import ADDRESSES, ONE_THREAD, Network, two_machines
from processes import Started

NODE = """
import os, sys
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.launch import launch
from gpu_pipelines.distributed.peers import Timing
from gpu_pipelines.component_interface.step import own_process

with own_process():
    changed = {name.lower(): float(os.environ[name]) for name in ("SILENCE", "STOP", "END") if name in os.environ}
    timing = Timing(**changed)
    cluster = Cluster.from_environment(os.environ)
    processes, restarts = (int(os.environ.get(name, default)) for name, default in (("PROCESSES", 1), ("RESTARTS", 0)))
    launch(sys.argv[1:], processes=processes, cluster=cluster, timing=timing, restarts=restarts)
    print("launch returned")
"""

# Adds up the ranks, then trains, so to speak: one all-reduce after another until told to stop, as the engine does.
WORKER = """
import atexit, json, os, signal, sys, time
from gpu_pipelines.garbage import collect_rarely
collect_rarely()
import torch
import torch.distributed as dist

def linger():
    dist.destroy_process_group()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(3)

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
store, rank, world = next(iter(dist.rendezvous("env://")))
run = os.environ["TORCHELASTIC_RUN_ID"]  # as the engine does: what was there before must not be met
dist.init_process_group("gloo", store=dist.PrefixStore(run, store), rank=rank, world_size=world)
total = torch.tensor(float(rank))
dist.all_reduce(total)
said = {"rank": rank, "node": int(os.environ["GROUP_RANK"]), "of": dist.get_world_size(), "total": total.item()}
sys.stdout.write(json.dumps(said) + "\\n")  # in one piece: several processes write to the same place
for step in range(int(sys.argv[1])):
    if os.environ.get("KILL_AT") == f"{rank}:{step}" and not (run.endswith("-1") and "ONCE" in os.environ):
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("FAIL_AT") == f"{rank}:{step}":
        if "LINGERS" in os.environ:
            atexit.register(linger)
        raise ValueError("the loss is not finite")
    stop = torch.tensor(float(bool(told)))
    dist.all_reduce(stop)
    if stop:
        print("saved")
        if os.environ.get("ABORTS") == str(rank):
            os.abort()
        break
    time.sleep(0.05)
dist.destroy_process_group()
sys.exit(75 if told or stop else 0)
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    (tmp_path / "node.py").write_text(NODE)
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path


@pytest.fixture
def network(programs: Path) -> Iterator[Network]:
    with two_machines(programs) as machines:
        yield machines


def vertex(machine: int) -> dict[str, str]:
    """`CLUSTER_SPEC` of one of two replicas, with the Reduction Server in the third pool."""
    pools = {
        "workerpool0": [f"{ADDRESSES[0]}:2222"],
        "workerpool1": [f"{ADDRESSES[1]}:2222"],
        "workerpool2": ["10.77.0.9:2222"],
    }
    return {
        "CLUSTER_SPEC": json.dumps(
            {"cluster": pools, "environment": "cloud", "task": {"type": f"workerpool{machine}", "index": 0}}
        )
    }


def start(network: Network, steps: int, **environment: str) -> list[Started]:
    return [
        network.start(machine, ["node.py", "worker.py", str(steps)], {**vertex(machine), **environment})
        for machine in (0, 1)
    ]


def started(nodes: list[Started]) -> list[dict[str, float]]:
    """What the first worker of each node printed, once all have begun."""
    for node in nodes:
        node.await_line('"total"')
    return [json.loads(next(line for line in node.output.splitlines() if '"total"' in line)) for node in nodes]


@pytest.mark.slow
def test_one_machine_trains_though_its_name_does_not_resolve(programs: Path) -> None:
    renamed = ["sh", "-c", 'hostname no-such-host.invalid && exec "$@"', "sh"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--uts", *renamed, sys.executable, "-u", "node.py", "worker.py", "3"],
        env={"PATH": os.environ["PATH"], "PROCESSES": "2", **ONE_THREAD},
        cwd=programs,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines() if '"total"' in line]
    assert sorted((entry["rank"], entry["of"], entry["total"]) for entry in said) == [(0, 2, 1.0), (1, 2, 1.0)]


@pytest.mark.slow
def test_two_nodes_train_together_and_rank_0_is_on_the_first(network: Network) -> None:
    nodes = start(network, 3, PROCESSES="2")
    assert [node.wait(60) for node in nodes] == [0, 0], nodes[0].output + nodes[1].output
    for machine, node in enumerate(nodes):
        said = [json.loads(line) for line in node.output.splitlines() if '"total"' in line]
        assert sorted(entry["rank"] for entry in said) == [2 * machine, 2 * machine + 1]
        assert all((entry["node"], entry["of"], entry["total"]) == (machine, 4, 6.0) for entry in said)
        assert "launch returned" in node.output


@pytest.mark.slow
def test_an_error_on_one_node_ends_both_with_its_reason(network: Network) -> None:
    nodes = start(network, 10_000, FAIL_AT="1:5")
    assert [node.wait(60) for node in nodes] == [1, 1], nodes[0].output + nodes[1].output
    assert "error: Process 1 of the training ended with exit status 1." in nodes[1].output
    assert "error: node 1 (10.77.0.2) failed: Process 1 of the training ended with exit status 1." in nodes[0].output
    assert nodes[0].output.rstrip().endswith("ValueError: the loss is not finite")


@pytest.mark.slow
def test_an_error_is_told_from_an_interruption_though_its_process_takes_long_to_end(network: Network) -> None:
    nodes = start(network, 10_000, FAIL_AT="1:5", LINGERS="1")
    assert [node.wait(60) for node in nodes] == [1, 1], nodes[0].output + nodes[1].output
    assert nodes[0].output.rstrip().endswith("ValueError: the loss is not finite")


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_node_whose_processes_are_all_killed_ends_the_other(network: Network, killed: int) -> None:
    nodes = start(network, 10_000)
    started(nodes)
    nodes[killed].kill_tree()
    began = time.monotonic()
    assert nodes[1 - killed].wait(40) == 1
    assert time.monotonic() - began < 20
    assert f"error: node {killed} ({ADDRESSES[killed]}) has not been heard from" in nodes[1 - killed].output


@pytest.mark.slow
def test_a_cut_network_ends_both_nodes(network: Network) -> None:
    nodes = start(network, 10_000, SILENCE="3", END="1")
    started(nodes)
    network.cut()
    began = time.monotonic()
    assert [node.wait(40) for node in nodes] == [1, 1]
    assert time.monotonic() - began < 15
    for machine, node in enumerate(nodes):
        other = 1 - machine
        assert f"error: node {other} ({ADDRESSES[other]}) has not been heard from for" in node.output


@pytest.mark.slow
@pytest.mark.parametrize("told", [0, 1])
def test_a_node_that_is_told_to_stop_ends_both_as_interrupted(network: Network, told: int) -> None:
    nodes = start(network, 10_000)
    started(nodes)
    os.kill(nodes[told].process.pid, signal.SIGTERM)
    assert [node.wait(40) for node in nodes] == [75, 75], nodes[0].output + nodes[1].output
    assert all("saved" in node.output for node in nodes)
    ending = "; run the same command again to continue"
    assert f"interrupted: stopped by SIGTERM{ending}" in nodes[told].output
    assert f"interrupted: node {told} ({ADDRESSES[told]}) was interrupted{ending}" in nodes[1 - told].output


@pytest.mark.slow
def test_a_worker_that_breaks_down_while_another_node_stops_is_no_failure(network: Network) -> None:
    nodes = start(network, 10_000, ABORTS="1")
    started(nodes)
    os.kill(nodes[0].process.pid, signal.SIGTERM)
    assert [node.wait(40) for node in nodes] == [75, 75], nodes[0].output + nodes[1].output


@pytest.mark.slow
def test_a_node_that_does_not_come_is_named(network: Network) -> None:
    first = network.start(0, ["node.py", "worker.py", "1"], {**vertex(0), "GPU_PIPELINES_JOIN_TIMEOUT": "12"})
    other = network.start(
        1, ["node.py", "worker.py", "1"], {**vertex(0), "CLUSTER_SPEC": "", "GPU_PIPELINES_JOIN_TIMEOUT": "12"}
        | {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.77.0.7", "MASTER_PORT": "2222"}
    )  # fmt: skip
    assert first.wait(60) == 1
    assert "waiting for node 1 (10.77.0.2), " in first.output
    assert "error: Waited 12 s for node 1 (10.77.0.2)." in first.output
    assert other.wait(60) == 1
    assert "error: Waited 12 s for rank 0 at 10.77.0.7:2222." in other.output


def on_this_machine(programs: Path, *arguments: str, **environment: str) -> Forked:
    variables = {**os.environ, "PROCESSES": "2", "OMP_NUM_THREADS": "1", **environment}
    return Forked("node.py", arguments, variables, merged=True, cwd=programs)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_lets_the_workers_save_and_more_of_them_change_nothing(programs: Path, number: int) -> None:
    process = on_this_machine(programs, "worker.py", "10000")
    while '"total"' not in process.stdout.readline():
        assert process.poll() is None
    for _ in range(5):
        process.send_signal(number)
        time.sleep(0.02)
    out, _ = process.communicate(timeout=40)
    assert process.returncode == 75, out
    assert out.count("saved") == 2
    assert "Traceback" not in out


def test_workers_that_do_not_stop_are_killed_in_time(programs: Path) -> None:
    (programs / "deaf.py").write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "sys.stdout.write('begun\\n')\ntime.sleep(600)\n"
    )
    process = on_this_machine(programs, "deaf.py", STOP="2")
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    out, _ = process.communicate(timeout=40)
    assert process.returncode == 75, out
    assert time.monotonic() - began < 10


def test_workers_that_stop_by_themselves_were_interrupted(programs: Path) -> None:
    (programs / "stops.py").write_text("import sys\nsys.exit(75)\n")
    out, _ = (process := on_this_machine(programs, "stops.py")).communicate(timeout=40)
    assert process.returncode == 75, out
    assert "interrupted: the processes ended early; run the same command again to continue" in out


def test_a_worker_that_fails_is_named_with_its_last_lines(programs: Path) -> None:
    (programs / "fails.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n    raise ValueError('no such column')\n"
        "time.sleep(600)\n"
    )  # fmt: skip
    out, _ = (process := on_this_machine(programs, "fails.py")).communicate(timeout=40)
    assert process.returncode == 1
    assert "error: Process 1 of the training ended with exit status 1." in out
    assert out.rstrip().endswith("ValueError: no such column")
    assert "Traceback" in out  # the worker's own
    assert "torch/distributed/elastic" not in out


AGAIN = "All processes are started again"


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["0", "1"])
def test_a_process_that_is_killed_is_started_again_with_those_of_all_nodes(network: Network, killed: str) -> None:
    nodes = start(network, 8, KILL_AT=f"{killed}:5", ONCE="1", RESTARTS="2")
    assert [node.wait(100) for node in nodes] == [0, 0], nodes[0].output + nodes[1].output
    for node in nodes:
        assert node.output.count(AGAIN) == 1
        assert node.output.count('"total": 1.0') == 2
        assert "launch returned" in node.output
    assert "ended with SIGKILL" in nodes[int(killed)].output


@pytest.mark.slow
def test_a_process_that_is_killed_again_and_again_ends_all_with_its_message(network: Network) -> None:
    nodes = start(network, 8, KILL_AT="1:5", RESTARTS="1")
    assert [node.wait(100) for node in nodes] == [1, 1], nodes[0].output + nodes[1].output
    assert [node.output.count(AGAIN) for node in nodes] == [1, 1]
    assert "error: Process 1 of the training ended with SIGKILL (often: the machine ran out" in nodes[1].output
    assert "error: node 1 (10.77.0.2) failed: Process 1 of the training ended with SIGKILL" in nodes[0].output


@pytest.mark.slow
def test_an_error_of_the_program_is_not_tried_again(network: Network) -> None:
    nodes = start(network, 10_000, FAIL_AT="1:5", RESTARTS="2")
    assert [node.wait(60) for node in nodes] == [1, 1], nodes[0].output + nodes[1].output
    assert not any(AGAIN in node.output for node in nodes)


@pytest.mark.slow
def test_a_node_that_is_stopped_while_another_fails_is_not_started_again(network: Network) -> None:
    nodes = start(network, 10_000, KILL_AT="1:60", RESTARTS="2")
    started(nodes)
    nodes[0].process.terminate()
    assert [node.wait(60) for node in nodes] == [75, 75], nodes[0].output + nodes[1].output
    assert not any(AGAIN in node.output for node in nodes)
