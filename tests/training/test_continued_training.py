"""Continuing a training: in the same way to the bit, in another way alike; what is kept, what is passed over."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from started_training import tensors, weights_digest
from trainings import entries, names, photos_dataset

from gpu_pipelines.artifacts.checkpoint import complete_checkpoints
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.checkpointing import superseded
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

SETTINGS = TrainingSettings(model="vit-micro", max_steps=9, checkpoint_every_steps=3, global_batch_size=16)
LAST = "step-00000009"


@pytest.fixture(autouse=True, scope="module")
def one_process() -> None:
    """The trainings here are of two processes, each of which writes its part of a checkpoint."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos_dataset(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    train_model(SETTINGS, photos, str(directory))
    return directory


def cut_off_after_six(trained: Path, directory: Path) -> Path:
    """A copy of a training as it is found when it was killed while it wrote its last checkpoint: no marker."""
    shutil.copytree(trained, directory)
    (directory / LAST / "checkpoint.json").unlink()
    return directory


def test_a_run_cut_off_and_continued_ends_with_the_same_bits(photos: Path, trained: Path, tmp_path: Path) -> None:
    directory = cut_off_after_six(trained, tmp_path / "run")
    train_model(SETTINGS, photos, str(directory))
    assert weights_digest(directory / LAST) == weights_digest(trained / LAST)
    assert entries(directory, "step") == entries(trained, "step")


def test_a_damaged_checkpoint_is_passed_over_and_said_so(
    photos: Path, trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(trained, directory)
    damaged = next((directory / LAST).glob("*.safetensors"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    train_model(SETTINGS, photos, str(directory))
    printed = capfd.readouterr().out
    assert f"passing over {LAST}: {damaged.name} is damaged" in printed
    assert "continuing from step-00000006" in printed
    assert weights_digest(directory / LAST) == weights_digest(trained / LAST)


@pytest.mark.parametrize(
    ("accelerator", "changes"),
    [
        ("cpu:1", {}),
        pytest.param("cpu:4", {}, marks=pytest.mark.slow),
        pytest.param("cpu:2", {"micro_batch_size": 3}, marks=pytest.mark.slow),
        pytest.param("cpu:2", {"activation_checkpointing": True}, marks=pytest.mark.slow),
        pytest.param("cpu:4", {"parallelism": "fsdp"}, marks=pytest.mark.slow),
        pytest.param("cpu:2", {"compile_model": True}, marks=pytest.mark.slow),
    ],
    ids=["2 to 1", "2 to 4", "micro-batches", "recomputed activations", "DDP to FSDP", "compiled"],
)
def test_a_run_continued_in_another_way_comes_to_the_same(
    photos: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accelerator: str, changes: dict
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", accelerator)
    directory = cut_off_after_six(trained, tmp_path / "run")
    train_model(replace(SETTINGS, **changes), photos, str(directory))
    assert entries(directory, "loss") == pytest.approx(entries(trained, "loss"), rel=1e-3)
    assert entries(directory, "val_loss") == pytest.approx(entries(trained, "val_loss"), rel=1e-3)


@pytest.mark.slow
def test_a_sharded_run_is_exact_too_and_continues_on_one_process(
    photos: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded = replace(SETTINGS, parallelism="fsdp", micro_batch_size=4)
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:2")
    train_model(sharded, photos, str(tmp_path / "first"))
    assert len(list((tmp_path / "first" / LAST).glob("*.safetensors"))) == 2
    again = cut_off_after_six(tmp_path / "first", tmp_path / "again")
    train_model(sharded, photos, str(again))
    assert weights_digest(again / LAST) == weights_digest(tmp_path / "first" / LAST)
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:1")
    alone = cut_off_after_six(tmp_path / "first", tmp_path / "alone")
    train_model(SETTINGS, photos, str(alone))
    held, wanted = tensors(alone / LAST), tensors(trained / LAST)
    assert held.keys() == wanted.keys()
    weights = [name for name in wanted if name.startswith("model.")]
    assert all(held[name].numpy() == pytest.approx(wanted[name].numpy(), abs=2e-3) for name in weights)


def test_checkpoints_of_other_data_are_not_continued(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:1")
    other = photos_dataset(tmp_path, image_size=24)
    with pytest.raises(UserError, match="another dataset fingerprint"):
        train_model(SETTINGS, other, str(trained))


def test_the_newest_and_the_best_checkpoints_are_kept(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:1")
    settings = replace(SETTINGS, max_steps=8, checkpoint_every_steps=1, keep_last=2, keep_every_steps=4)
    train_model(replace(settings, learning_rate=0.05), photos, str(tmp_path))
    found = complete_checkpoints(tmp_path)
    best = found[-1].info.best_step
    losses = entries(tmp_path, "val_loss")
    assert losses[best - 1] == min(losses) == found[-1].info.best_val_loss
    assert {checkpoint.info.step for checkpoint in found} == {4, 7, 8, best}
    assert names(tmp_path) == [checkpoint.name for checkpoint in found]


@pytest.mark.parametrize(
    ("steps", "keep_last", "every", "best", "deleted"),
    [
        ([1, 2, 3], 0, 0, None, []),
        ([1, 2, 3], 1, 0, None, [1, 2]),
        ([1, 2, 3], 1, 0, 1, [2]),
        ([1, 2, 3, 4], 1, 2, 1, [3]),
        ([3], 1, 0, None, []),
        ([1, 2, 3], 9, 0, None, []),
    ],
)
def test_which_checkpoints_are_superseded(
    steps: list[int], keep_last: int, every: int, best: int | None, deleted: list[int]
) -> None:
    assert superseded(dict.fromkeys(steps, True), keep_last, every, best) == deleted


def test_a_checkpoint_of_an_interruption_is_kept_until_there_is_a_newer_one() -> None:
    assert superseded({3: True, 5: False}, 0, 0, None) == []
    assert superseded({3: True, 5: False, 6: True}, 0, 0, None) == [5]
    assert superseded({3: True, 5: False, 6: True}, 2, 0, None) == [5]


@pytest.mark.slow
def test_training_stops_when_the_loss_on_val_no_longer_falls_and_stays_stopped(
    photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = replace(
        SETTINGS,
        max_steps=40,
        checkpoint_every_steps=2,
        early_stopping_patience=2,
        learning_rate=0.5,
        learning_rate_schedule="constant",
    )
    train_model(settings, photos, str(tmp_path))
    losses = entries(tmp_path, "val_loss")
    stopped_at = complete_checkpoints(tmp_path)[-1].info.step
    best = losses.index(min(losses)) * 2 + 2
    assert stopped_at == best + 4 < 40
    assert f"lowest, {min(losses):.4f}, at step {best}" in capfd.readouterr().out
    train_model(settings, photos, str(tmp_path))
    assert entries(tmp_path, "val_loss") == losses
