"""Small models on CPUs: all weights in one tensor, and the same training as with DDP, clipping and AdamW one by one."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from started_training import run_training
from torch import nn
from trainings import entries, photos_dataset

from gpu_pipelines.tasks.checkpoint_state import StateCopy, load_state, save_state, training_state
from gpu_pipelines.training.flat_adamw import LARGEST, FlatAdamW, can_be_flat
from gpu_pipelines.training.optimization import make_optimizer
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

SETTINGS = TrainingSettings(model="vit-micro", max_steps=6, checkpoint_every_steps=3, global_batch_size=16)
CPU = torch.device("cpu")

RECIPES = """
from torch import nn
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification

class Forgotten(ImageClassification):
    def build_model(self, name):
        model = super().build_model(name)
        model.forgotten = nn.Linear(3, 3)
        return model
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos_dataset(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def small_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 7, bias=False))
    model[3].weight = model[0].weight  # tied, as in language models
    return model


def backward(model: nn.Module, step: int) -> None:
    rows = torch.arange(5).add(step).remainder(7)
    nn.functional.cross_entropy(model(rows), rows.flip(0)).backward()


def step_one_by_one(model: nn.Module, optimizer: torch.optim.Optimizer, clip: float) -> None:
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize("clip", [0.0, 0.05, 100.0])
def test_steps_are_those_of_adamw_after_clipping(alone: None, clip: float) -> None:
    model = small_model()
    other = deepcopy(model)
    settings = TrainingSettings(learning_rate=0.05, weight_decay=0.3)
    flat, plain = (make_optimizer(each, settings, flat=each is model) for each in (model, other))
    assert isinstance(flat, FlatAdamW)
    for step in range(8):
        for group in (*flat.param_groups, *plain.param_groups):
            group["lr"] = 0.05 / (1 + step)
        backward(model, step)
        backward(other, step)
        flat.exchange(clip, meanwhile=lambda: None)
        flat.step()
        step_one_by_one(other, plain, clip)
        assert same(model, other)
    assert not same(model, small_model()), "it did train"
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("flat_first", [True, False])
def test_either_continues_from_a_checkpoint_of_the_other(alone: None, tmp_path: Path, flat_first: bool) -> None:
    settings = TrainingSettings(learning_rate=0.05)
    models = [small_model(), small_model()]
    optimizers = [make_optimizer(model, settings, flat=flat) for model, flat in zip(models, (True, False), strict=True)]
    sides = list(zip(models, optimizers, strict=True))
    (model, optimizer), (later_model, later) = sides if flat_first else sides[::-1]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        backward(model, number)
        if isinstance(optimizer, FlatAdamW):
            optimizer.exchange(1.0, meanwhile=lambda: None)
            optimizer.step()
        else:
            step_one_by_one(model, optimizer, 1.0)

    for number in range(3):
        step(model, optimizer, number)
    save_state(StateCopy(training_state(model, optimizer)).take(), tmp_path)
    load_state(training_state(later_model, later), tmp_path)
    assert same(model, later_model)
    for number in range(3, 6):
        step(model, optimizer, number)
        step(later_model, later, number)
    assert same(model, later_model)


def test_what_ddp_is_needed_for_does_not_get_it() -> None:
    assert can_be_flat(small_model(), CPU)
    assert can_be_flat(nn.Sequential(nn.Linear(9_000, 1_000).requires_grad_(False), nn.Linear(1_000, 3)), CPU)
    assert not can_be_flat(small_model(), torch.device("cuda", 0))
    assert not can_be_flat(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), CPU), "DDP keeps its statistics alike"
    assert not can_be_flat(small_model().to(torch.bfloat16), CPU)
    assert not can_be_flat(nn.Linear(LARGEST // 4, 1), CPU)


def test_a_training_is_the_same_as_with_ddp(photos: Path, tmp_path: Path) -> None:
    train_model(SETTINGS, photos, str(tmp_path / "flat"))
    train_model(replace(SETTINGS, parallelism="ddp"), photos, str(tmp_path / "ddp"))
    for name in ("loss", "val_loss"):
        flat, ddp = entries(tmp_path / "flat", name), entries(tmp_path / "ddp", name)
        assert flat == pytest.approx(ddp, rel=1e-4)
        assert flat != ddp, "they were trained in two ways, so that the last bits differ"


@pytest.mark.parametrize("parallelism", ["auto", pytest.param("ddp", marks=pytest.mark.slow)])
def test_weights_that_the_loss_does_not_depend_on_are_named(photos: Path, tmp_path: Path, parallelism: str) -> None:
    (tmp_path / "recipes.py").write_text(RECIPES, encoding="utf-8")
    settings = replace(SETTINGS, recipe="recipes:Forgotten", parallelism=parallelism)
    ended = run_training(settings, photos, str(tmp_path / "run"), environment={"PYTHONPATH": str(tmp_path)})
    assert ended.status == 1
    assert "no gradient, because the loss does not depend on them: forgotten.bias, forgotten.weight" in ended.text
    assert "requires_grad_(False)" in ended.text
    assert "Traceback" not in ended.text
