"""A window of steps that is profiled: its files, and that the training is the same as without."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import storage_emulator
from started_training import weights_digest
from trainings import train_here

from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.training.engine import Trainer
from gpu_pipelines.training.profiling import Profile
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(model="mlp-small", max_steps=6, checkpoint_every_steps=3, global_batch_size=16)
LAST = "step-00000006"


def updates(trace: bytes) -> int:
    """How many steps of the optimizer a trace has."""
    events = json.loads(gzip.decompress(trace))["traceEvents"]
    return sum(event.get("name") == "Optimizer.step#AdamW.step" and event.get("ph") == "X" for event in events)


@pytest.mark.parametrize(("window", "name", "count"), [("2-4", "2-00000004", 3), ("5-90", "5-00000006", 2)])
def test_the_steps_of_the_window_are_in_the_trace_and_no_others(
    numbers: Path, tmp_path: Path, window: str, name: str, count: int
) -> None:
    assert train_here(replace(SETTINGS, profile_steps=window), numbers, str(tmp_path))
    (trace,) = (tmp_path / "profile").iterdir()
    assert trace.name == f"steps-0000000{name}.trace.json.gz"
    assert updates(trace.read_bytes()) == count


def test_a_profile_changes_neither_weights_nor_what_can_be_continued(numbers: Path, tmp_path: Path) -> None:
    plain, profiled = tmp_path / "plain", tmp_path / "profiled"
    train_here(SETTINGS, numbers, str(plain))
    train_here(replace(SETTINGS, profile_steps="1-3"), numbers, str(profiled))
    (profiled / LAST / "checkpoint.json").unlink()
    train_here(replace(SETTINGS, profile_steps="5-5"), numbers, str(profiled))
    assert weights_digest(profiled / LAST) == weights_digest(plain / LAST)
    assert len(list((profiled / "profile").iterdir())) == 2
    assert not (plain / "profile").exists()


def test_no_step_begins_elsewhere_while_rank_0_writes_the_profile(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs would wait for its gradients, and no longer than 100 s."""
    done: list[str] = []
    for owner, name in ((Profile, "close"), (Trainer, "_meet"), (Trainer, "_step")):
        monkeypatch.setattr(owner, name, noted(getattr(owner, name), done))
    settings = replace(SETTINGS, max_steps=3, checkpoint_every_steps=3, profile_steps="1-2")
    train_here(settings, numbers, str(tmp_path))
    assert done[: done.index("_step", 2)] == ["_step", "_step", "close", "_meet"]


def noted(method: Callable[..., object], done: list[str]) -> Callable[..., object]:
    """A method that notes its name at its end."""

    def noting(*given: object) -> object:
        result = method(*given)
        done.append(method.__name__)
        return result

    return noting


def test_a_profile_goes_to_the_bucket_of_the_checkpoints(numbers: Path) -> None:
    with storage_emulator("checkpoints") as bucket:
        uri = f"{bucket}/profiled"
        train_here(replace(SETTINGS, profile_steps="3-3"), numbers, uri)
        assert updates(RemoteFolder(uri).read("profile/steps-00000003-00000003.trace.json.gz")) == 1


def test_a_profile_that_cannot_be_written_is_said_and_ends_nothing(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile").write_text("in its way")
    assert train_here(replace(SETTINGS, profile_steps="3-3"), numbers, str(tmp_path))
    assert "warning: the profile was not written: " in capsys.readouterr().out


@pytest.mark.parametrize("window", ["10", "12-10", "0-3", "1-101", "a-b", "1-2-3"])
def test_a_window_that_is_none_is_refused(window: str) -> None:
    (problem,) = replace(SETTINGS, profile_steps=window).problems("regression")
    assert problem.startswith(f"profile_steps is {window!r}; give the first and the last one, such as 10-12")


def test_a_window_behind_the_last_step_is_said() -> None:
    settings = replace(SETTINGS, profile_steps="7-9")
    (line,) = [line for line in settings.told(settings, "regression", 200) if "profile" in line]
    assert line == "warning: profile_steps is 7-9; of 6 steps none is profiled"
    assert not any("profile" in line for line in replace(settings, profile_steps="6-9").told(settings, "regression", 9))
