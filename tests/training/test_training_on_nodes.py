"""`train_model` on two machines: two network namespaces, each with its own address and processes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
from network import ONE_THREAD, Network, two_machines
from processes import Started
from started_training import TRAIN, run_training, weights_digest
from test_launch import vertex
from trainings import entries, names

from gpu_pipelines.errors import INTERRUPTED
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(model="vit-micro", max_steps=30, checkpoint_every_steps=10, global_batch_size=16)
LAST = "step-00000030"


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with two_machines(tmp_path) as machines:
        yield machines


def start(network: Network, settings: TrainingSettings, photos: Path, *directories: Path) -> list[Started]:
    """Trains on both machines; the second directory is that of the second machine, if they share none."""
    return [
        network.start(
            machine,
            ["-c", TRAIN, json.dumps(asdict(settings)), str(photos), str(directories[machine % len(directories)])],
            {**vertex(machine), "GPU_PIPELINES_ACCELERATOR": "cpu:1"},
        )
        for machine in (0, 1)
    ]


@pytest.mark.slow
def test_two_nodes_train_as_two_processes_of_one_and_rank_0_alone_writes(
    network: Network, photos: Path, tmp_path: Path
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    nodes = start(network, SETTINGS, photos, own, other)
    assert [node.wait(120) for node in nodes] == [0, 0], nodes[0].output + nodes[1].output
    assert [path for path in other.rglob("*") if path.is_file()] == []
    assert "step 30/30" in nodes[0].output
    assert "step" not in nodes[1].output
    of_one_machine = {**ONE_THREAD, "GPU_PIPELINES_ACCELERATOR": "cpu:2"}
    assert run_training(SETTINGS, photos, str(tmp_path / "alone"), environment=of_one_machine).status == 0
    assert weights_digest(own / LAST) == weights_digest(tmp_path / "alone" / LAST)
    # Continued, the second machine gets from the first what that has on its disk.
    (own / LAST / "checkpoint.json").unlink()
    again = start(network, SETTINGS, photos, own, other)
    assert [node.wait(120) for node in again] == [0, 0], again[0].output + again[1].output
    assert "continuing from step-00000020" in again[0].output
    assert weights_digest(own / LAST) == weights_digest(tmp_path / "alone" / LAST)
    assert [path for path in other.rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_the_rate_of_the_network_is_measured_before_the_training(
    network: Network, photos: Path, tmp_path: Path
) -> None:
    network.slow_down(megabits=80)
    nodes = start(network, replace(SETTINGS, max_steps=2), photos, tmp_path / "own")
    assert [node.wait(120) for node in nodes] == [0, 0], nodes[0].output + nodes[1].output
    said = re.search(r"all-reduce over 2 nodes: ([\d.]+) GB/s\n", nodes[0].output)
    assert said
    assert float(said[1]) == pytest.approx(0.01, rel=0.2)
    assert nodes[0].output.index(said[0]) < nodes[0].output.index("step 1/2")
    assert "all-reduce" not in nodes[1].output


@pytest.mark.slow
def test_shards_that_a_machine_does_not_see_are_an_error(network: Network, photos: Path, tmp_path: Path) -> None:
    settings, own, other = replace(SETTINGS, parallelism="fsdp", max_steps=10), tmp_path / "own", tmp_path / "other"
    nodes = start(network, settings, photos, own)
    assert [node.wait(120) for node in nodes] == [0, 0], nodes[0].output + nodes[1].output
    again = start(network, settings, photos, own, other)
    assert [node.wait(120) for node in again] == [1, 1]
    assert "cannot be read on node 1" in again[0].output
    assert "Give a gs:// checkpoint_uri" in again[0].output


@pytest.mark.slow
def test_a_sharded_training_stopped_on_one_node_continues_on_both(
    network: Network, photos: Path, tmp_path: Path
) -> None:
    settings, shared = replace(SETTINGS, parallelism="fsdp", max_steps=400), tmp_path / "shared"
    nodes = start(network, settings, photos, shared)
    nodes[0].await_line("step 10/400")
    nodes[1].process.terminate()
    assert [node.wait(60) for node in nodes] == [INTERRUPTED, INTERRUPTED], nodes[0].output + nodes[1].output
    newest = names(shared)[-1]
    assert (shared / newest / "checkpoint.json").is_file()
    shorter = start(network, settings, photos, shared)
    shorter[0].await_line(f"continuing from {newest}")
    shorter[0].await_line("loss on val")
    for node in shorter:
        node.kill_tree()
    assert len(entries(shared, "loss")) > 0


@pytest.mark.slow
def test_shards_that_rank_0_does_not_see_are_an_error(network: Network, photos: Path, tmp_path: Path) -> None:
    nodes = start(network, replace(SETTINGS, parallelism="fsdp"), photos, tmp_path / "own", tmp_path / "other")
    assert [node.wait(120) for node in nodes] == [1, 1]
    assert "is not shared by the nodes" in nodes[0].output
    assert not list((tmp_path / "own").glob("*/checkpoint.json"))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [0, 1])
def test_a_worker_that_is_killed_on_one_machine_is_started_again_on_both(
    network: Network, photos: Path, tmp_path: Path, machine: int
) -> None:
    nodes = start(network, SETTINGS, photos, tmp_path / "shared")
    nodes[0].await_line("step 20/30")
    workers = psutil.Process(nodes[machine].process.pid).children(recursive=True)
    for worker in workers:
        if "gpu_pipelines.training.worker" in " ".join(worker.cmdline()):
            worker.kill()
    assert [node.wait(120) for node in nodes] == [0, 0], nodes[0].output + nodes[1].output
    assert all(node.output.count("All processes are started again: 1 of 2") == 1 for node in nodes)
    assert "continuing from step-000000" in nodes[0].output
    of_one_machine = {**ONE_THREAD, "GPU_PIPELINES_ACCELERATOR": "cpu:2"}
    assert run_training(SETTINGS, photos, str(tmp_path / "alone"), environment=of_one_machine).status == 0
    assert weights_digest(tmp_path / "shared" / LAST) == weights_digest(tmp_path / "alone" / LAST)
