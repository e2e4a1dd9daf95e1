"""A training that goes to a step and ends there is continued to the same bits, with the schedule of the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from started_training import tensors, weights_digest
from trainings import entries, names, numbers_dataset, train_here

from gpu_pipelines.artifacts.checkpoint import complete_checkpoints
from gpu_pipelines.errors import UnfitParametersError, UserError
from gpu_pipelines.training import engine
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(model="mlp-small", max_steps=6, checkpoint_every_steps=2, global_batch_size=8)


def test_two_parts_are_the_whole_to_the_bit(tmp_path: Path) -> None:
    dataset = numbers_dataset(tmp_path)
    assert train_here(SETTINGS, dataset, str(tmp_path / "whole"))
    parts = tmp_path / "parts"
    assert train_here(SETTINGS, dataset, str(parts), until=4)
    last = complete_checkpoints(parts)[-1].info
    assert (last.step, last.interruption) == (4, False)
    assert last.val_loss == entries(parts, "val_loss")[-1]
    assert train_here(SETTINGS, dataset, str(parts))
    assert names(parts) == names(tmp_path / "whole") == ["step-00000002", "step-00000004", "step-00000006"]
    for name in names(parts):
        assert weights_digest(parts / name) == weights_digest(tmp_path / "whole" / name)
    for what in ("learning_rate", "loss", "val_loss"):
        assert entries(parts, what) == entries(tmp_path / "whole", what)
    assert train_here(SETTINGS, dataset, str(parts), until=4), "what is done already is not done again"
    assert complete_checkpoints(parts)[-1].info.step == 6


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_a_training_goes_on_where_auto_is_fp16_and_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: str
) -> None:
    """As on a T4, where there was no L4 any more: the scale of the loss, which only fp16 has, made another model."""
    dataset, place = numbers_dataset(tmp_path), tmp_path / "run"
    settings = replace(SETTINGS, parallelism=parallelism)
    for precision, until in (("fp32", 2), ("fp16", 4), ("bf16", 0)):
        monkeypatch.setattr(engine, "precision_on", lambda *_, found=precision: found)
        assert train_here(settings, dataset, str(place), until=until)
    scaled = [any("scaler." in tensor for tensor in tensors(place / name)) for name in names(place)]
    assert scaled == [False, True, False]


@pytest.mark.parametrize("until", [3, 8, -2])
def test_a_part_ends_with_a_checkpoint_of_the_whole(until: int) -> None:
    with pytest.raises(UserError, match="Give a multiple of 2 below 6"):
        SETTINGS.end_of(until, 6)


def test_a_training_that_diverges_is_told_from_other_errors(tmp_path: Path) -> None:
    settings = TrainingSettings(
        model="mlp-small", max_steps=4, global_batch_size=8, learning_rate=1e30, optimizer="sgd", gradient_clip=0
    )
    with pytest.raises(UnfitParametersError, match="diverged"):
        train_here(settings, numbers_dataset(tmp_path), str(tmp_path / "checkpoints"))
