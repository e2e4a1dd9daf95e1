"""Training with real processes: what a checkpoint holds, continuing from one, and what stops a training."""

from __future__ import annotations

import hashlib
import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import write_photos

from gpu_pipelines.artifacts.checkpoint import complete_checkpoints
from gpu_pipelines.components.data_prep.prepare import prepare_data
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.training.engine import schedule
from gpu_pipelines.components.training.settings import TrainingSettings
from gpu_pipelines.components.training.train import train_model
from gpu_pipelines.errors import UserError

SETTINGS = TrainingSettings(model="vit-micro", max_steps=9, checkpoint_every_steps=3, global_batch_size=16)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    directory = folder / "dataset"
    prepare_data(PrepareSettings(source=str(write_photos(folder / "source")), image_size=16), directory)
    return directory


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    train_model(SETTINGS, photos, directory)
    return directory


def weights_digest(checkpoint: Path) -> str:
    """Hash of all tensors of a checkpoint, model and optimizer, by name."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader = dcp.FileSystemReader(checkpoint)
    entries = reader.read_metadata().state_dict_metadata
    assert all(isinstance(entry, TensorStorageMetadata) for entry in entries.values())
    import torch

    state = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items()}
    dcp.load(state, storage_reader=reader, no_dist=True)
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode() + state[name].numpy().tobytes())
    return digest.hexdigest()


def test_checkpoints_are_written_at_every_interval_with_all_that_their_marker_must_say(trained: Path) -> None:
    checkpoints = complete_checkpoints(trained)
    assert [checkpoint.name for checkpoint in checkpoints] == ["step-00000003", "step-00000006", "step-00000009"]
    info = checkpoints[1].info
    assert (info.step, info.samples_seen, info.world_size) == (6, 96, 2)
    assert set(info.files) == {path.name for path in checkpoints[1].path.iterdir()} - {"checkpoint.json"}
    assert checkpoints[1].damaged_file() is None


def test_metrics_are_written_for_every_step_of_a_short_run(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 10))
    assert all(math.isfinite(line["loss"]) and line["samples_per_second"] > 0 for line in lines)


def test_a_run_cut_off_and_continued_ends_with_the_same_bits(photos: Path, trained: Path, tmp_path: Path) -> None:
    train_model(SETTINGS, photos, tmp_path)
    # As if it had been killed while it wrote its last checkpoint but one: no marker, and nothing after it.
    (tmp_path / "step-00000006" / "checkpoint.json").unlink()
    for file in (tmp_path / "step-00000009").iterdir():
        file.unlink()
    train_model(SETTINGS, photos, tmp_path)
    assert weights_digest(tmp_path / "step-00000009") == weights_digest(trained / "step-00000009")
    lines = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(range(1, 10))


def test_a_damaged_checkpoint_is_passed_over_and_said_so(
    photos: Path, trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train_model(SETTINGS, photos, tmp_path)
    damaged = next((tmp_path / "step-00000009").glob("*.distcp"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    train_model(SETTINGS, photos, tmp_path)
    printed = capfd.readouterr().out
    assert f"passing over step-00000009: {damaged.name} is damaged" in printed
    assert "continuing from step-00000006" in printed
    assert weights_digest(tmp_path / "step-00000009") == weights_digest(trained / "step-00000009")


def test_one_process_and_two_train_alike(
    photos: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:1")
    train_model(SETTINGS, photos, tmp_path)

    def losses(directory: Path) -> list[float]:
        return [json.loads(line)["loss"] for line in (directory / "metrics.jsonl").read_text().splitlines()]

    assert losses(tmp_path) == pytest.approx(losses(trained), rel=1e-3)


def test_checkpoints_of_other_settings_are_not_continued(photos: Path, trained: Path) -> None:
    before = weights_digest(trained / "step-00000009")
    other = TrainingSettings(**{**SETTINGS.__dict__, "learning_rate": 0.1})
    with pytest.raises(UserError, match="another configuration hash"):
        train_model(other, photos, trained)
    assert weights_digest(trained / "step-00000009") == before


def test_a_training_that_diverges_ends_with_the_step_and_what_to_do(photos: Path, tmp_path: Path) -> None:
    settings = TrainingSettings(**{**SETTINGS.__dict__, "learning_rate": 1e30, "gradient_clip": 0})
    with pytest.raises(UserError, match=r"(?s)diverged.*Lower learning_rate"):
        train_model(settings, photos, tmp_path)


def test_a_batch_that_the_processes_cannot_share_is_refused_with_the_nearest_ones(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)63.*62 or 64"):
        train_model(TrainingSettings(global_batch_size=63), photos, tmp_path)


def test_the_learning_rate_warms_up_and_comes_down_to_nearly_nothing() -> None:
    rates = [schedule(step, 100, 10) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(rates) == rates[9] == 1.0
    assert all(later < earlier for earlier, later in pairwise(rates[10:]))
    assert rates[-1] < 0.001


def test_a_warm_up_longer_than_a_tenth_of_the_run_is_cut() -> None:
    assert schedule(5, 50, 1000) <= 1.0
    assert schedule(4, 50, 1000) == 1.0
