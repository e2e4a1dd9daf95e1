"""A model that is sharded within a node and replicated between nodes: what is saved of it, and how it continues."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from started_training import tensors, weights_digest
from trainings import entries, train_on

from gpu_pipelines.artifacts.checkpoint import complete_checkpoints
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(
    model="mlp-small",
    parallelism="hsdp",
    max_steps=6,
    checkpoint_every_steps=3,
    global_batch_size=16,
    ema_decay=0.9,
    gradient_clip=0.5,
)
TWO_BY_TWO = (2, 2)
HALF, LAST = "step-00000003", "step-00000006"


@pytest.fixture(scope="module")
def whole(numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a training on two nodes leaves that was not interrupted."""
    directory = tmp_path_factory.mktemp("whole")
    train_on(TWO_BY_TWO, SETTINGS, numbers, str(directory))
    return directory


def cut_off(whole: Path, directory: Path) -> Path:
    """As if the training had been killed before the marker of its last checkpoint."""
    shutil.copytree(whole, directory)
    (directory / LAST / "checkpoint.json").unlink()
    return directory


@pytest.mark.slow
def test_the_first_replica_writes_alone(whole: Path) -> None:
    files = sorted(path.name for path in (whole / LAST).glob("*.safetensors"))
    assert [name.partition("-model-")[0] for name in files] == ["shard-00001"] * 2 + ["shard-00002"] * 2
    assert all(checkpoint.damaged_file() is None for checkpoint in complete_checkpoints(whole))
    assert json.loads((whole / LAST / "checkpoint.json").read_text())["world_size"] == 4
    sharded = [name for name in tensors(whole / LAST) if " from " in name]
    assert any(name.startswith("model.") for name in sharded), "it was not sharded"
    assert any(name.startswith("optimizer.") for name in sharded)


@pytest.mark.slow
def test_it_continues_to_the_bit(numbers: Path, whole: Path, tmp_path: Path) -> None:
    cut = cut_off(whole, tmp_path / "cut")
    logs = train_on(TWO_BY_TWO, SETTINGS, numbers, str(cut))
    assert f"continuing from {HALF}" in logs[0]
    assert "continuing" not in logs[1]
    assert weights_digest(cut / LAST) == weights_digest(whole / LAST) != weights_digest(whole / HALF)
    assert entries(cut, "loss") == entries(whole, "loss")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "parallelism"), [((1, 2), "fsdp"), ((1, 1), "ddp"), ((4, 1), "hsdp")], ids=["fsdp", "ddp", "replicas"]
)
def test_another_number_of_processes_goes_on_with_it(
    numbers: Path, whole: Path, tmp_path: Path, shape: tuple[int, int], parallelism: str
) -> None:
    cut = cut_off(whole, tmp_path / "cut")
    logs = train_on(shape, replace(SETTINGS, parallelism=parallelism), numbers, str(cut))
    assert f"continuing from {HALF}" in logs[0]
    there, here = whole_tensors(whole / LAST), whole_tensors(cut / LAST)
    assert there.keys() == here.keys()
    for name, tensor in there.items():
        torch.testing.assert_close(here[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def whole_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint by name, the parts of each put together."""
    parts: dict[str, list[tuple[list[int], torch.Tensor]]] = {}
    for key, tensor in tensors(checkpoint).items():
        name, _, place = key.partition(" from ")
        parts.setdefault(name, []).append((json.loads(place) if place else [0] * tensor.dim(), tensor))
    together = {}
    for name, found in parts.items():
        dimensions = range(found[0][1].dim())
        size = [max(place[d] + part.shape[d] for place, part in found) for d in dimensions]
        together[name] = torch.zeros(size, dtype=found[0][1].dtype)
        for place, part in found:
            slices = tuple(slice(at, at + length) for at, length in zip(place, part.shape, strict=True))
            together[name][slices] = part
    return together
