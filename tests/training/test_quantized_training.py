"""QLoRA: adapters beside a base in four bits, killed and continued, sharded, evaluated and exported."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SmallDatasets
from started_training import run_training, tensors, weights_digest
from trainings import losses_by_placement, train_here

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.evaluation.models.loading import Models, ModelSource
from gpu_pipelines.tasks.adapters import merge_adapters
from gpu_pipelines.tasks.building import build_model
from gpu_pipelines.tasks.checkpoint_state import load_weights
from gpu_pipelines.tasks.nf4 import Nf4Linear, quantize
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(
    model="llama-micro",
    max_steps=4,
    checkpoint_every_steps=2,
    global_batch_size=8,
    lora_rank=4,
    quantize_base="nf4",
    learning_rate=0.01,
)
LAST = "step-00000004"


@pytest.mark.slow
def test_it_continues_to_the_bit_and_its_checkpoints_hold_the_adapters_alone(
    datasets: SmallDatasets, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, precision="bf16")
    train_here(settings, datasets["lm"], str(tmp_path))
    whole = weights_digest(tmp_path / LAST)
    assert all("lora_" in name for name in tensors(tmp_path / LAST))
    (tmp_path / LAST / "checkpoint.json").unlink()
    train_here(settings, datasets["lm"], str(tmp_path))
    assert weights_digest(tmp_path / LAST) == whole


def test_what_is_evaluated_and_exported_is_what_was_trained(datasets: SmallDatasets, tmp_path: Path) -> None:
    """In fp32, where training and evaluation compute alike."""
    train_here(SETTINGS, datasets["lm"], str(tmp_path))
    data = Dataset(datasets["lm"])
    settings: dict[str, Any] = {"model": SETTINGS.model, "lora_rank": 4, "lora_alpha": 16.0, "quantize_base": "nf4"}
    models = Models(data, settings, "", torch.device("cpu"))
    recipe: Any = models.recipe
    loaded = models.load(ModelSource("checkpoint", tmp_path / LAST, "it"))
    torch.manual_seed(0)
    trained = build_model(recipe, settings)
    quantize(trained)
    load_weights(trained, tmp_path / LAST)
    assert any(isinstance(module, Nf4Linear) for module in trained.modules())
    assert not any(isinstance(module, Nf4Linear) for module in loaded.model.modules())
    batch = recipe.batch(next(iter(data.split("val").columns(0, 8))), torch.device("cpu"))
    with torch.no_grad():
        wanted = recipe.predict(trained.eval(), batch)
        torch.testing.assert_close(recipe.predict(loaded.model, batch), wanted, rtol=1e-5, atol=1e-4)
        recipe.export(merge_adapters(loaded.model), tmp_path / "exported")
        exported = recipe.load_exported(tmp_path / "exported").eval()
        torch.testing.assert_close(recipe.predict(exported, batch), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_shards_train_as_the_whole(datasets: SmallDatasets, tmp_path: Path) -> None:
    whole, sharded = losses_by_placement(replace(SETTINGS, precision="bf16"), datasets["lm"], tmp_path)
    assert sharded == pytest.approx(whole, rel=2e-3)


def test_it_wants_weights_that_are_frozen() -> None:
    without = replace(SETTINGS, lora_rank=0, lora_targets="all-linear").problems("causal_lm")
    assert [problem.rpartition(" and ")[2] for problem in without] == [
        "there are no adapters. Give lora_rank, such as 16.",
        "no weights are frozen. Give lora_rank, such as 16.",
    ]
    assert SETTINGS.problems("causal_lm") == []
    assert replace(SETTINGS, lora_rank=0, freeze="layers.0.*").problems("causal_lm") == []


@pytest.mark.slow
def test_it_is_killed_twenty_times_and_ends_with_the_same_bits(datasets: SmallDatasets, tmp_path: Path) -> None:
    settings = replace(SETTINGS, precision="bf16", max_steps=200, checkpoint_every_steps=5)
    assert run_training(settings, datasets["lm"], str(tmp_path / "left alone")).status == 0
    moments, kills = random.Random(3), 0
    while kills < 20:
        lines_left = moments.randint(1, 3)

        def due(line: str) -> bool:
            nonlocal lines_left
            lines_left -= line.startswith("step ")
            return lines_left == 0

        if run_training(settings, datasets["lm"], str(tmp_path / "killed"), stop_when=due).status == 0:
            break
        kills += 1
    if kills == 20:
        assert run_training(settings, datasets["lm"], str(tmp_path / "killed")).status == 0
    assert kills == 20
    last = "step-00000200"
    assert weights_digest(tmp_path / "killed" / last) == weights_digest(tmp_path / "left alone" / last)
