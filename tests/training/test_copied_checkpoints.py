"""Checkpoints in a bucket, evaluated on a disk that has no room for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainings import train_here

from gpu_pipelines.artifacts import copied_checkpoints, remote_files
from gpu_pipelines.artifacts.checkpoint import complete_checkpoints
from gpu_pipelines.artifacts.copied_checkpoints import local_copy
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.models import average
from gpu_pipelines.evaluation.models.loading import Models
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.tasks import checkpoint_state
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(model="mlp-small", max_steps=6, checkpoint_every_steps=2, global_batch_size=16)


@pytest.fixture(scope="module")
def trained(bucket: str, numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"{bucket}/trained"
    train_here(SETTINGS, numbers, uri)
    return uri


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch, trained: str) -> None:
    """A disk with room for two of the three checkpoints."""
    sizes = RemoteFolder(trained).sizes()
    one = sum(size for name, size in sizes.items() if name.startswith("step-00000002/") and "model-00001" in name)
    monkeypatch.setattr(remote_files, "free_for_temporary_files", lambda: 2 * one)


def _held(directory: Path) -> list[str]:
    """The checkpoints whose weights are on the disk."""
    return [each.name for each in complete_checkpoints(directory) if not each.damaged_file(weights_only=True)]


def test_one_checkpoint_at_a_time_is_on_a_small_disk(
    trained: str, numbers: Path, tmp_path: Path, small_disk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_files, "free_for_temporary_files", lambda: 1 << 40)
        whole = local_copy(trained, tmp_path / "whole", weights_only=True)
    part = local_copy(trained, tmp_path / "part", weights_only=True)
    assert (len(_held(whole)), len(_held(part))) == (3, 0)

    seen: list[list[str]] = []
    load = checkpoint_state.load_weights

    def looked_at(*given: object) -> None:
        seen.append(_held(part))
        load(*given)  # type: ignore[arg-type]

    settings = EvaluationSettings(average_last=2, gates="", registry=str(tmp_path / "registry"))
    first = evaluate_checkpoints(settings, numbers, whole, tmp_path / "first", 1)
    monkeypatch.setattr(f"{Models.__module__}.load_weights", looked_at)
    monkeypatch.setattr(average, "load_weights", looked_at)
    second = evaluate_checkpoints(settings, numbers, part, tmp_path / "second", 1)
    assert first.checkpoints == second.checkpoints
    assert first.test == second.test
    assert len(first.checkpoints) == 4
    assert max(map(len, seen)) == 1
    assert {name for names in seen for name in names} == {"step-00000002", "step-00000004", "step-00000006"}


def test_what_is_missing_is_passed_over_and_what_is_damaged_is_named(
    bucket: str, trained: str, numbers: Path, tmp_path: Path, small_disk: None, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, uri = RemoteFolder(trained), f"{bucket}/damaged"
    folder.download(folder.names(), tmp_path / "all")
    lost, cut = (
        next(name for name in folder.names() if name.startswith(f"step-0000000{step}/") and "model-00001" in name)
        for step in (2, 6)
    )
    (tmp_path / "all" / lost).unlink()
    (tmp_path / "all" / cut).write_bytes(b"cut off" * 4096)
    RemoteFolder(uri).upload(tmp_path / "all", [name for name in folder.names() if name != lost])
    copy = local_copy(uri, tmp_path / "copy", weights_only=True)
    settings = EvaluationSettings(gates="", registry=str(tmp_path / "registry"))
    with pytest.raises(UserError, match=rf"step-00000006 in {uri} is damaged") as raised:
        evaluate_checkpoints(settings, numbers, copy, tmp_path / "model", 1)
    assert f"Delete {uri}/step-00000006" in str(raised.value)
    assert "passing over step-00000002" in capfd.readouterr().out


def test_of_a_script_only_what_a_model_needs_is_copied_where_there_is_room(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("config.json", "model.safetensors", "optimizer.pt", "rng_state_0.pth", "global_step9/rank.pt", "extra.pt")
    for name in names:
        path = tmp_path / "left" / "checkpoint-9" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345678")
    left = RemoteFolder(f"{bucket}/script")
    left.upload(tmp_path / "left", [f"checkpoint-9/{name}" for name in names])

    def copied(name: str, *, weights_only: bool) -> set[str]:
        copy = local_copy(left.uri, tmp_path / name, foreign=True, weights_only=weights_only)
        return {path.relative_to(copy / "checkpoint-9").as_posix() for path in copy.rglob("*") if path.is_file()}

    assert copied("model", weights_only=True) == {"config.json", "model.safetensors", "extra.pt"}
    assert copied("all", weights_only=False) == set(names)
    monkeypatch.setattr(copied_checkpoints, "free_for_temporary_files", lambda: 47)
    copied("fits", weights_only=True)
    with pytest.raises(UserError, match=r"have 0\.0 GB, and the disk has 0\.0 GB free"):
        copied("too-large", weights_only=False)
    with pytest.raises(UserError, match="gs://no-such-bucket/x cannot be listed: there is no such bucket"):
        local_copy("gs://no-such-bucket/x", tmp_path / "none", foreign=True)
