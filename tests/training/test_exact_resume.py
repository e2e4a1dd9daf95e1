"""Every architecture continues to the bit; among them those of which another trainer silently loses weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from conftest import SmallDatasets
from started_training import tensors, weights_digest
from trainings import entries, numbers_dataset, train_here, train_on
from transformers import Dinov2Config

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.building import build_model, load_recipe
from gpu_pipelines.tasks.checkpoint_state import frozen_weights_sha256
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

LAST = "step-00000006"
AVERAGE = {"ema_decay": 0.9}


@pytest.mark.parametrize(
    ("model", "data", "changes", "accelerator"),
    [
        pytest.param("vit-micro", "images", {}, "cpu:2", marks=pytest.mark.slow),
        pytest.param("swin-micro", "images", {}, "cpu:1", marks=pytest.mark.slow),
        pytest.param("swin-micro", "images", {}, "cpu:2", marks=pytest.mark.slow),
        pytest.param("resnet-micro", "images", {}, "cpu:2", marks=pytest.mark.slow),
        pytest.param("resnet-micro", "images", AVERAGE, "cpu:2", marks=pytest.mark.slow),
        pytest.param(
            "resnet-micro", "images", {"ema_decay": 0.9, "parallelism": "fsdp"}, "cpu:2", marks=pytest.mark.slow
        ),
        pytest.param("convnext-micro", "images", {"parallelism": "fsdp"}, "cpu:2", marks=pytest.mark.slow),
        pytest.param("gpt2-micro", "lm", {"micro_batch_size": 3}, "cpu:2", marks=pytest.mark.slow),
        pytest.param("llama-micro", "lm", {"lora_rank": 4}, "cpu:2", marks=pytest.mark.slow),
        pytest.param("mixtral-micro", "lm", {"parallelism": "fsdp"}, "cpu:2", marks=pytest.mark.slow),
        pytest.param("bert-micro", "texts", {"precision": "bf16"}, "cpu:2", marks=pytest.mark.slow),
    ],
)
def test_an_architecture_continues_to_the_bit(
    datasets: SmallDatasets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    data: str,
    changes: dict,
    accelerator: str,
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", accelerator)
    settings = TrainingSettings(model=model, max_steps=6, checkpoint_every_steps=3, global_batch_size=12, **changes)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train_model(settings, datasets[data], str(whole))
    shutil.copytree(whole, cut)
    (cut / LAST / "checkpoint.json").unlink()
    train_model(settings, datasets[data], str(cut))
    assert weights_digest(cut / LAST) == weights_digest(whole / LAST)
    assert entries(cut, "loss") == entries(whole, "loss")
    before, after = tensors(whole / "step-00000003"), tensors(whole / LAST)
    moved = [name for name in after if name.startswith("model.") and (after[name] != before[name]).any()]
    assert len(moved) >= 0.8 * sum(name.startswith("model.") for name in after), "it did train"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("mlp-small", {"micro_batch_size": 2}),
        pytest.param("resnet-micro", {}, marks=pytest.mark.slow),
        pytest.param("vit-micro", {"micro_batch_size": 2}, marks=pytest.mark.slow),
    ],
)
def test_three_processes_that_hold_the_whole_model_continue_to_the_bit(
    tmp_path: Path, request: pytest.FixtureRequest, model: str, changes: dict
) -> None:
    """Of three summands the order matters, and DDP would change it after the first step of each start."""
    small = model == "mlp-small"
    data = numbers_dataset(tmp_path) if small else request.getfixturevalue("datasets")["images"]
    settings = TrainingSettings(model=model, max_steps=6, checkpoint_every_steps=3, global_batch_size=12, **changes)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train_on((1, 3), settings, data, str(whole))
    shutil.copytree(whole, cut)
    (cut / LAST / "checkpoint.json").unlink()
    train_on((1, 3), settings, data, str(cut))
    assert weights_digest(cut / LAST) == weights_digest(whole / LAST)
    assert entries(cut, "loss") == entries(whole, "loss")


@pytest.mark.slow
def test_adapters_alone_are_saved_and_other_base_weights_are_noticed(datasets: SmallDatasets, tmp_path: Path) -> None:
    settings = TrainingSettings(
        model="llama-micro", max_steps=2, checkpoint_every_steps=2, global_batch_size=12, lora_rank=4
    )
    train_model(settings, datasets["lm"], str(tmp_path))
    held = tensors(tmp_path / "step-00000002")
    assert held
    assert all("lora_" in name for name in held)
    marker = tmp_path / "step-00000002" / "checkpoint.json"
    content = json.loads(marker.read_text())
    torch.manual_seed(settings.seed)
    model = build_model(load_recipe("", "causal_lm").for_dataset(Dataset(datasets["lm"])), asdict(settings))
    earlier = frozen_weights_sha256(model, like="of an earlier version")
    assert earlier != content["frozen_weights_sha256"] == frozen_weights_sha256(model)
    marker.write_text(json.dumps({**content, "frozen_weights_sha256": earlier}))
    train_model(settings, datasets["lm"], str(tmp_path))  # goes on, from its last step
    marker.write_text(json.dumps({**content, "frozen_weights_sha256": "0" * 64}))
    with pytest.raises(UserError, match="a different frozen weights sha256"):
        train_model(settings, datasets["lm"], str(tmp_path))


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_a_model_with_a_weight_that_the_loss_does_not_depend_on_continues_to_the_bit(
    photos: Path, tmp_path: Path, parallelism: str
) -> None:
    """As DINOv2, whose mask token is for another training."""
    shape = {"image_size": 16, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    Dinov2Config(**shape).save_pretrained(tmp_path / "model")
    settings = TrainingSettings(
        model=str(tmp_path / "model"),
        max_steps=4,
        checkpoint_every_steps=2,
        global_batch_size=8,
        parallelism=parallelism,
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_here(settings, photos, str(whole))
    for until in (2, 0):
        train_here(settings, photos, str(parts), until=until)
    assert weights_digest(whole / "step-00000004") == weights_digest(parts / "step-00000004")
