"""What a training keeps when it diverges, when its disk is full, and when it is interrupted during an upload."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from conftest import storage_emulator
from slow_storage import slow_storage
from started_training import TRAIN, run_training, weights_digest
from trainings import entries, names, train_here, train_on

from gpu_pipelines.artifacts.checkpoint import SET_ASIDE, complete_checkpoints
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.copied_checkpoints import local_copy
from gpu_pipelines.errors import INTERRUPTED, UserError
from gpu_pipelines.step_environment import PREEMPTION_HOURS, RESTARTS
from gpu_pipelines.training.cadence import Cadence, seconds_between_interruptions, seconds_between_saves
from gpu_pipelines.training.checkpoints.checkpointing import is_given_up
from gpu_pipelines.training.engine import Trainer
from gpu_pipelines.training.machine import interruption
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.validation import Validation

SETTINGS = TrainingSettings(model="vit-micro", max_steps=12, checkpoint_every_steps=3, global_batch_size=16)
RECIPE = """
import torch
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification


class {name}(ImageClassification):
    def loss(self, model, batch):
        loss = super().loss(model, batch)
        self.calls = getattr(self, "calls", 0) + model.training
        return {loss}
"""


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    return folder


def write_recipe(folder: Path, name: str, loss: str) -> str:
    (folder / f"{name.lower()}.py").write_text(RECIPE.format(name=name, loss=loss), encoding="utf-8")
    return f"{name.lower()}:{name}"


@pytest.mark.parametrize(("steps", "with_rows"), [(12, 12), (240, 8)], ids=["", "interrupted while it waits for rows"])
def test_gradients_that_are_no_numbers_reach_no_checkpoint(
    steps: int, with_rows: int, photos: Path, recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_rows_come", lambda _, step: step < with_rows)
    # A finite loss whose gradient is infinite: the square root of 0, from the 8th step on: the 9th pass.
    recipe = write_recipe(
        recipes, "Rooted", "loss + (torch.sqrt(loss.detach() * 0 + loss * 0) if self.calls > 8 else 0)"
    )
    with pytest.raises(UserError, match="gradients of step 8 were no numbers") as error:
        train_here(replace(SETTINGS, max_steps=steps, recipe=recipe), photos, str(tmp_path / "run"))
    assert f"checkpoint_uri={tmp_path / 'run'} and resume_from_step=6" in error.value.remedy
    assert names(tmp_path / "run") == ["step-00000003", "step-00000006"]


def test_a_checkpoint_that_is_on_its_way_when_the_training_diverges_is_kept(
    photos: Path, recipes: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(recipes, "Late", "loss if self.calls <= 8 else loss * float('nan')")
    with storage_emulator("diverged") as bucket, slow_storage(b"step-00000006/shard", seconds=2):
        with pytest.raises(UserError, match="the training has diverged") as error:
            train_here(replace(SETTINGS, recipe=recipe), photos, f"{bucket}/run")
        assert "resume_from_step=6" in error.value.remedy
        kept = complete_checkpoints(local_copy(f"{bucket}/run", tmp_path / "kept"))[-1]
    assert kept.info.step == 6
    assert kept.damaged_file() is None


def test_a_loss_on_val_that_is_no_number_is_not_saved(photos: Path, recipes: Path, tmp_path: Path) -> None:
    recipe = write_recipe(recipes, "Blind", "loss if model.training or self.calls < 5 else loss * float('nan')")
    with pytest.raises(UserError, match="loss on val was nan at step 6"):
        train_here(replace(SETTINGS, recipe=recipe), photos, str(tmp_path / "run"))
    assert names(tmp_path / "run") == ["step-00000003"]


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    train_here(SETTINGS, photos, str(directory))
    return directory


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copied"))


def test_a_checkpoint_that_had_diverged_is_passed_over(
    copied: Path, trained: Path, photos: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Versions before kept them, with no loss on val."""
    marker = copied / "step-00000012" / "checkpoint.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "val_loss": None}))
    train_here(SETTINGS, photos, str(copied))
    printed = capfd.readouterr().out
    assert "passing over step-00000012: its loss on val is not a number" in printed
    assert "continuing from step-00000009" in printed
    assert weights_digest(copied / "step-00000012") == weights_digest(trained / "step-00000012")


@pytest.mark.parametrize("content", ["", '{"format_version": 1, "step"', "{}", "[]"])
def test_a_marker_that_was_cut_off_is_passed_over(
    copied: Path, photos: Path, content: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (copied / "step-00000012" / "checkpoint.json").write_text(content)
    assert [each.info.step for each in complete_checkpoints(copied)] == [3, 6, 9]
    assert "passing over step-00000012" in capfd.readouterr().err


def test_a_log_that_was_damaged_holds_up_no_training(copied: Path, photos: Path) -> None:
    """A machine that loses its power may leave anything in a file that was not on the disk yet."""
    log = copied / "metrics.jsonl"
    whole = log.read_bytes()
    log.write_bytes(b'{"step\xd3": 1}\n{"loss": 2}\n\x00\x00\n7\n' + whole + b"\x80")
    assert train_here(SETTINGS, photos, str(copied))
    assert log.read_bytes() == whole


def test_other_parameters_are_named_and_may_go_on_from_a_step(
    copied: Path, trained: Path, photos: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lower = replace(SETTINGS, learning_rate=0.001)
    with pytest.raises(UserError, match=r"learning_rate is 0.001, there it was 0.004") as error:
        train_here(lower, photos, str(copied))
    assert "resume_from_step=12" in error.value.remedy
    assert weights_digest(copied / "step-00000012") == weights_digest(trained / "step-00000012")
    with pytest.raises(UserError, match="has no checkpoint of that step"):
        train_here(replace(lower, resume_from_step=7), photos, str(copied))

    again = replace(lower, resume_from_step=6, keep_last=2)
    train_here(again, photos, str(copied))
    printed = capfd.readouterr().out
    assert "step-00000009 is set aside" in printed
    assert "continuing from step-00000006" in printed
    written = {each.info.step: each.info for each in complete_checkpoints(copied)}
    assert {step: info.resumed_from_step for step, info in written.items()} == {6: 0, 9: 6, 12: 6}
    assert weights_digest(copied / "step-00000012") != weights_digest(trained / "step-00000012")

    # The same request again, as a retry makes it, goes on from what was written since; keep_last has left its step.
    (copied / "step-00000012" / "checkpoint.json").unlink()
    train_here(again, photos, str(copied))
    assert "continuing from step-00000009" in capfd.readouterr().out


def test_what_is_set_aside_is_not_deleted_as_unfinished(copied: Path, photos: Path) -> None:
    step = copied / "step-00000012"
    (step / "checkpoint.json").rename(step / SET_ASIDE)
    (copied / "step-00000009" / "checkpoint.json").unlink()
    CheckpointStore(str(copied), copied).delete_unfinished()
    assert names(copied) == ["step-00000003", "step-00000006", "step-00000012"]
    assert [each.info.step for each in complete_checkpoints(copied)] == [3, 6]


def test_only_what_this_project_left_unfinished_is_deleted(tmp_path: Path) -> None:
    """Another program may keep checkpoints of its own in the same folder, without our marker."""
    theirs = {"step-100/shard-00001-a.safetensors", "step-00000004/__0_0.distcp", "step-00000005/notes/model.bin"}
    ours = {"step-00000006/shard-00001-model-00001-of-00002.safetensors", "step-00000007/.checkpoint.json.x1"}
    for name in theirs | ours:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "step-00000008").mkdir()
    CheckpointStore(str(tmp_path), tmp_path).delete_unfinished()
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == theirs
    assert not (tmp_path / "step-00000008").exists()


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"global_batch_size": 8}, "global_batch_size is 8, there it was 16"),
        ({"optimizer": "sgd"}, "optimizer is 'sgd', there it was 'adamw'"),
        ({"freeze": "*bias"}, r"freeze is '\*bias', there it was ''"),
    ],
)
def test_another_model_or_optimizer_cannot_go_on(other: dict[str, Any], told: str, copied: Path, photos: Path) -> None:
    with pytest.raises(UserError, match=told) as error:
        train_here(replace(SETTINGS, **other, resume_from_step=6), photos, str(copied))
    assert "resume_from_step" not in error.value.remedy
    # What is refused changes nothing: the training itself goes on from its newest checkpoint.
    assert [each.info.step for each in complete_checkpoints(copied)] == [3, 6, 9, 12]


def test_momentum_cannot_be_taken_up_in_the_middle(photos: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, optimizer="sgd", momentum=0.0, max_steps=4, checkpoint_every_steps=2)
    train_here(settings, photos, str(tmp_path))
    with pytest.raises(UserError, match=re.escape("momentum is 0.9, there it was 0.0")):
        train_here(replace(settings, momentum=0.9, resume_from_step=2), photos, str(tmp_path))
    assert [each.info.step for each in complete_checkpoints(tmp_path)] == [2, 4]


@pytest.mark.slow
def test_a_disk_that_is_full_is_said_at_once(photos: Path, tmp_path: Path) -> None:
    """A limit on the size of files is what a full disk is to who writes; checkpoints here take 200 kB."""
    settings = replace(SETTINGS, max_steps=200, checkpoint_every_steps=50)
    command = [sys.executable, "-u", "-c", TRAIN, json.dumps(asdict(settings)), str(photos), str(tmp_path / "run")]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        # Not from the server that others are forked by, which has no such limit.
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert ended.returncode == 1
    assert "error: A checkpoint could not be written" in ended.stdout
    assert "Traceback" not in ended.stdout
    assert "step 100/200" not in ended.stdout


@pytest.mark.parametrize("parallelism", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_an_interruption_during_a_slow_upload_keeps_the_newer_state(
    photos: Path, tmp_path: Path, parallelism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload of step 3 would take two minutes, and the machine is gone in 30 s."""
    settings = replace(SETTINGS, max_steps=4000, parallelism=parallelism)
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:2" if parallelism == "fsdp" else "cpu:1")
    with storage_emulator("interrupted") as bucket, slow_storage(b"step-00000003/shard", seconds=120):
        uri = f"{bucket}/{parallelism}"
        stopped = run_training(
            settings, photos, uri, stop_when=lambda line: line.startswith("step 3/"), by=signal.SIGTERM, seconds_later=3
        )
        assert stopped.status == INTERRUPTED, stopped.text
        assert "step-00000003 is given up" in stopped.text
        kept = complete_checkpoints(local_copy(uri, tmp_path / "kept"))[-1]
        assert kept.info.step >= 6
        assert kept.damaged_file() is None
        assert f"{kept.name} is kept" in stopped.lines[-1]


def test_which_upload_is_given_up() -> None:
    assert is_given_up(left=60, again=10, time_left=25), "only the newer one can be whole in time"
    assert not is_given_up(left=5, again=10, time_left=25), "there is time for both"
    assert not is_given_up(left=20, again=40, time_left=25), "only the older one can be whole in time"
    assert not is_given_up(left=30, again=40, time_left=25), "neither: the older one has more behind it"
    assert is_given_up(left=float("inf"), again=0, time_left=25), "nothing is known of the rate"


@pytest.mark.slow
def test_memory_that_is_not_enough_is_said_with_what_to_do(photos: Path, recipes: Path, tmp_path: Path) -> None:
    recipe = write_recipe(recipes, "Hungry", "loss + (torch.empty(1 << 50).sum() if self.calls > 4 else 0)")
    ended = run_training(replace(SETTINGS, recipe=recipe), photos, str(tmp_path / "run"))
    assert ended.status == 1
    assert "error: cpu ran out of memory" in ended.text
    assert "micro_batch_size (16 rows now" in ended.text
    assert "Traceback" not in ended.text


@pytest.mark.slow
def test_a_process_killed_while_the_model_is_built_is_told_from_one_that_trains(
    photos: Path, recipes: Path, tmp_path: Path
) -> None:
    (recipes / "killed.py").write_text(
        "import os, signal\n"
        "from gpu_pipelines.tasks.image_classification.recipe import ImageClassification\n"
        "class Killed(ImageClassification):\n"
        "    def build_model(self, name):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n",
        encoding="utf-8",
    )
    once = {RESTARTS: "0"}
    ended = run_training(replace(SETTINGS, recipe="killed:Killed"), photos, str(tmp_path / "run"), environment=once)
    assert "SIGKILL while building the model (often: the machine ran out of memory" in ended.text
    assert "batch" not in ended.text.partition("SIGKILL")[2]


def test_a_long_training_says_something_soon_and_saves_in_time() -> None:
    cadence = Cadence(total=100_000, step=0, between_interruptions=3600.0)
    lines, saves = [0], []
    for step in range(1, 5_001):  # of one second each
        if cadence.line_is_due(step):
            cadence.line_written(step, float(step - lines[-1]))
            lines.append(step)
        if cadence.save_is_due:
            saves.append(step)
            cadence.saved(held_up=10.0, writing=0.0)
    assert lines[:6] == [0, 1, 5, 10, 20, 30]
    assert saves[:4] == [60, 330, 600, 870], "after the first, every sqrt(2 × 10 × 3600) = 268 s, with the next line"


def test_a_training_that_is_told_how_often_to_save_does_not_save_by_time() -> None:
    cadence = Cadence(total=100, step=0, between_interruptions=None)
    cadence.line_written(10, 1e6)
    assert not cadence.save_is_due


@pytest.mark.parametrize(
    ("held_up", "writing", "between", "expected"),
    [
        (2.0, 0.0, 10_000.0, 200.0),
        (0.001, 0.0, 10_000.0, 60.0),
        (0.001, 400.0, 10_000.0, 400.0),
        (1.0, 0.0, 1e9, 900.0),
        (60.0, 0.0, 1e9, 6000.0),
    ],
    ids=["Young", "least", "while it is written", "most", "one percent"],
)
def test_the_time_between_saves_follows_from_what_they_cost(
    held_up: float, writing: float, between: float, expected: float
) -> None:
    assert seconds_between_saves(held_up, writing, between) == pytest.approx(expected)


def test_when_a_training_is_expected_to_be_interrupted() -> None:
    alone = seconds_between_interruptions(8, 1, {})
    assert seconds_between_interruptions(16_384, 2_048, {}) == pytest.approx(54 * 24 * 3600 / 419)
    spot = {PREEMPTION_HOURS: "24"}
    assert seconds_between_interruptions(8, 1, spot) == pytest.approx(1 / (1 / alone + 1 / (24 * 3600)))
    assert seconds_between_interruptions(32, 4, spot) == pytest.approx(seconds_between_interruptions(8, 1, spot) / 4)
    with pytest.raises(UserError, match=f"{PREEMPTION_HOURS} is 'soon'"):
        seconds_between_interruptions(8, 1, {PREEMPTION_HOURS: "soon"})


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (2, 1)])
def test_saving_by_time_changes_no_bit_and_leaves_nothing(photos: Path, tmp_path: Path, shape: tuple[int, int]) -> None:
    settings = replace(SETTINGS, max_steps=16, checkpoint_every_steps=0)
    train_on(shape, settings, photos, str(tmp_path / "rarely"))
    train_on(shape, settings, photos, str(tmp_path / "often"), before="saving_often:save_often")
    begun = (tmp_path / "begun").read_text().split()
    assert "step-00000001" in begun, "it was not due"
    assert names(tmp_path / "often") == names(tmp_path / "rarely")
    assert weights_digest(tmp_path / "often/step-00000016") == weights_digest(tmp_path / "rarely/step-00000016")


def test_a_short_training_has_entries_of_the_same_steps_however_fast_it_is_and_tells_them_once_a_second() -> None:
    for seconds, together in ((0.001, 240), (0.05, 21), (0.9, 3)):
        cadence = Cadence(total=240, step=0, between_interruptions=3600.0)
        entries, lines = [], [0]
        for step in range(1, 241):
            if cadence.entry_is_due(step):
                entries.append(step)
            if cadence.line_is_due(step):
                cadence.line_written(step, (step - lines[-1]) * seconds)
                lines.append(step)
        assert entries == list(range(3, 241, 3))
        # Before its pace is known, the entries of the first steps are told at once.
        assert lines == sorted({0, 3, 6, *range(6, 240, together), 240})


@pytest.mark.parametrize("validation", [1, 3])
def test_an_interruption_does_not_wait_for_the_end_of_a_validation(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation: int
) -> None:
    """A long one took the time that the state is saved in. Its step may also be the last one."""
    given = {"max_steps": 5, "checkpoint_every_steps": 2, "global_batch_size": 16, "micro_batch_size": 2}
    settings = TrainingSettings(model="linear", **given)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train_here(settings, numbers, str(whole))
    with monkeypatch.context() as patch:
        patch.setattr(interruption, "SECONDS_BETWEEN", 0.0)
        loss, begun = Validation.loss, []

        def signalled(self: Validation, *given: Any) -> float | None:
            begun.append(self)
            if len(begun) == validation:
                signal.raise_signal(signal.SIGTERM)
            return loss(self, *given)

        patch.setattr(Validation, "loss", signalled)
        assert not train_here(settings, numbers, str(cut))
    last = complete_checkpoints(cut)[-1].info
    assert (last.step, last.interruption, last.val_loss) == ((2, 4, 5)[validation - 1], True, None)
    with (cut / "metrics.jsonl").open("a") as log:  # as of another one, killed before the marker says it
        log.write(json.dumps({"step": last.step, "epoch": 0.1, "val_loss": 9.0, "time": 1.0}) + "\n")
    written = [file.stat().st_mtime_ns for file in (cut / f"step-{last.step:08d}").glob("*.safetensors")]
    assert train_here(settings, numbers, str(cut))
    assert written == [file.stat().st_mtime_ns for file in (cut / f"step-{last.step:08d}").glob("*.safetensors")]
    kept, wanted = ([(name, weights_digest(place / name)) for name in names(place)] for place in (cut, whole))
    assert kept == wanted
    assert entries(cut, "val_loss") == entries(whole, "val_loss")
    assert not any(checkpoint.info.interruption for checkpoint in complete_checkpoints(cut))
