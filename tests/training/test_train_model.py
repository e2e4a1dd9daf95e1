"""Training with real processes: what a checkpoint holds, what stops a training, and how one is continued: in the same
way to the bit, in another way alike; what is kept, what is passed over."""

from __future__ import annotations

import math
import re
import shutil
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import printed_by
from started_training import tensors, weights_digest
from trainings import entries, names, numbers_dataset, train_here, train_on

from gpu_pipelines.artifacts.checkpoint import complete_checkpoints
from gpu_pipelines.errors import InvalidRequestError, UserError, root_of
from gpu_pipelines.training.checkpoints.checkpointing import superseded
from gpu_pipelines.training.metrics import Entry, MetricsLog
from gpu_pipelines.training.optimization.learning_rate import schedule
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

SETTINGS = TrainingSettings(model="vit-micro", max_steps=9, checkpoint_every_steps=3, global_batch_size=16)
LAST = "step-00000009"
#: Of a model that starts in half the time, where nothing depends on the model.
OF_NUMBERS = replace(SETTINGS, model="mlp-small")
KEEPING = replace(
    OF_NUMBERS, max_steps=8, checkpoint_every_steps=1, keep_last=2, keep_every_steps=4, learning_rate=0.05
)


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:2")


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    train_on((1, 2), SETTINGS, photos, str(directory))
    return directory


def test_checkpoints_are_written_at_every_interval_with_all_that_their_marker_must_say(trained: Path) -> None:
    checkpoints = complete_checkpoints(trained)
    assert [checkpoint.name for checkpoint in checkpoints] == ["step-00000003", "step-00000006", "step-00000009"]
    info = checkpoints[1].info
    assert (info.step, info.samples_seen, info.world_size) == (6, 96, 2)
    assert set(info.files) == {path.name for path in checkpoints[1].path.iterdir()} - {"checkpoint.json"}
    assert checkpoints[1].damaged_file() is None


# How auto chooses is held by test_precision_and_parallelism.py.
@pytest.mark.slow
@pytest.mark.usefixtures("two_processes")
def test_a_small_model_on_cpus_is_trained_by_ddp_like_any_other(photos: Path, trained: Path, tmp_path: Path) -> None:
    train_model(replace(SETTINGS, parallelism="ddp"), photos, str(tmp_path))
    assert entries(tmp_path, "loss") == entries(trained, "loss")
    last, same = (complete_checkpoints(directory)[-1].path for directory in (trained, tmp_path))
    assert weights_digest(last) == weights_digest(same)


@pytest.mark.slow
def test_a_step_is_as_large_whatever_the_number_of_processes(numbers: Path, tmp_path: Path) -> None:
    # By plain descent: AdamW would hide it if all gradients were half of what they are.
    plain = replace(OF_NUMBERS, optimizer="sgd", momentum=0.0, gradient_clip=0.0)
    for processes in (1, 2):
        train_on((1, processes), plain, numbers, str(tmp_path / str(processes)))
    assert entries(tmp_path / "2", "loss") == pytest.approx(entries(tmp_path / "1", "loss"), rel=1e-4)


def test_metrics_are_written_for_every_step_of_a_short_run(trained: Path) -> None:
    assert entries(trained, "step") == [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9]
    assert all(math.isfinite(loss) for loss in entries(trained, "loss"))
    assert len(entries(trained, "val_loss")) == 3
    for name in ("samples_per_second", "memory_gb"):
        assert all(value > 0 for value in entries(trained, name))
    assert all(0 <= share < 1 for share in entries(trained, "data_loading_share"))


def test_the_same_figures_are_in_tensorboard(trained: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss/train")] == list(range(1, 10))
    assert [event.value for event in events.Scalars("loss/val")] == pytest.approx(entries(trained, "val_loss"))
    assert {"learning_rate", "samples_per_second", "memory_gb"} <= set(events.Tags()["scalars"])


def test_tensorboard_leaves_out_what_was_written_after_the_checkpoint_that_is_continued_from(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for begins, steps, loss in ((0, range(1, 5), 1.0), (2, range(3, 6), 2.0)):
        if begins:
            # TensorBoard reads files by their names: second, host, process, and a number in which 10 comes before 9.
            time.sleep(1)
        log = MetricsLog(tmp_path, tmp_path / "events", 9, begins, is_rank_0=True)
        told = [Entry(step, 0.1, loss, 0.1, 5.0 * step) for step in steps]
        log.training(told, {"samples_per_second": 3.0, "memory_gb": 0.1}, {})
        log.close()
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    found = [(event.step, event.value, event.wall_time) for event in events.Scalars("loss/train")]
    assert found == [(1, 1.0, 5.0), (2, 1.0, 10.0), (3, 2.0, 15.0), (4, 2.0, 20.0), (5, 2.0, 25.0)]


def test_who_is_killed_while_the_log_is_cut_has_the_whole_of_it(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 1}\n{"step": 2}\n')
    with log.open() as before:
        MetricsLog(tmp_path, tmp_path / "events", 9, 1, is_rank_0=True).close()
        assert before.read() == '{"step": 1}\n{"step": 2}\n'
    assert log.read_text() == '{"step": 1}\n'


def test_the_loss_on_val_is_that_of_the_checkpoint(photos: Path, trained: Path) -> None:
    import torch

    from gpu_pipelines.artifacts.dataset import Dataset
    from gpu_pipelines.tasks.checkpoint_state import load_weights
    from gpu_pipelines.tasks.image_classification.recipe import ImageClassification

    dataset = Dataset(photos)
    recipe = ImageClassification.for_dataset(dataset)
    model = recipe.build_model(SETTINGS.model).eval()
    checkpoint = complete_checkpoints(trained)[1]
    load_weights(model, checkpoint.path)
    rows = dataset.split("val")
    with torch.no_grad():
        loss = recipe.loss(model, recipe.batch(rows.take(np.arange(len(rows))), torch.device("cpu"))).item()
    assert checkpoint.info.val_loss == pytest.approx(loss, rel=1e-4)


def test_it_imports_nothing_that_the_training_does_not_need(numbers: Path, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from trainings import TrainingSettings, train_here\n"
        f"assert train_here(TrainingSettings(model='linear', max_steps=1), {str(numbers)!r}, {str(tmp_path)!r})\n"
        "heavy = ('transformers', 'pandas', 'scipy', 'sklearn', 'kfp', 'matplotlib')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert printed_by(code, tmp_path).splitlines()[-1] == "[]"


@pytest.fixture(scope="module")
def kept(numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training on one process that has kept some of its checkpoints."""
    directory = tmp_path_factory.mktemp("kept")
    train_here(KEEPING, numbers, str(directory))
    return directory


def test_the_newest_and_the_best_checkpoints_are_kept(kept: Path) -> None:
    found = complete_checkpoints(kept)
    best = found[-1].info.best_step
    losses = entries(kept, "val_loss")
    assert losses[best - 1] == min(losses) == found[-1].info.best_val_loss
    assert {checkpoint.info.step for checkpoint in found} == {4, 7, 8, best}
    assert names(kept) == [checkpoint.name for checkpoint in found]


def test_checkpoints_of_other_data_are_not_continued(kept: Path, tmp_path: Path) -> None:
    other = numbers_dataset(tmp_path, rows=150)
    with pytest.raises(UserError, match="a different dataset fingerprint") as refused:
        train_here(KEEPING, other, str(kept))
    assert isinstance(root_of(refused.value), InvalidRequestError), "the same again does not help"
    assert "Leave out --resume" in str(refused.value)


def test_a_damaged_checkpoint_is_passed_over_and_said_so(
    numbers: Path, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, last = tmp_path / "run", "step-00000008"
    shutil.copytree(kept, directory)
    damaged = next((directory / last).glob("*.safetensors"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    train_here(KEEPING, numbers, str(directory))
    printed = capsys.readouterr().out
    assert f"passing over {last}: {damaged.name} is damaged" in printed
    assert "continuing from step-00000007" in printed
    assert weights_digest(directory / last) == weights_digest(kept / last)


def test_a_training_that_diverges_ends_with_the_step_and_what_to_do(numbers: Path, tmp_path: Path) -> None:
    settings = replace(OF_NUMBERS, learning_rate=1e30, gradient_clip=0)
    with pytest.raises(UserError, match=r"(?s)diverged.*lower learning_rate"):
        train_here(settings, numbers, str(tmp_path))


@pytest.mark.usefixtures("two_processes")
def test_a_batch_that_the_processes_cannot_share_is_refused_with_the_nearest_ones(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)63.*62 or 64"):
        train_model(TrainingSettings(global_batch_size=63), photos, str(tmp_path))


def test_the_learning_rate_warms_up_and_comes_down_to_nearly_nothing() -> None:
    rates = [schedule("cosine", step, 100, 10) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(rates) == rates[9] == 1.0
    assert all(later < earlier for earlier, later in pairwise(rates[10:]))
    assert rates[-1] < 0.001


@pytest.mark.parametrize(("kind", "middle", "end"), [("linear", 0.5, 1 / 90), ("constant", 1.0, 1.0)])
def test_other_schedules(kind: str, middle: float, end: float) -> None:
    assert schedule(kind, 10 + 45, 100, 10) == pytest.approx(middle)
    assert schedule(kind, 99, 100, 10) == pytest.approx(end)


def test_a_warm_up_longer_than_a_tenth_of_the_run_is_cut() -> None:
    assert schedule("cosine", 5, 50, 1000) <= 1.0
    assert schedule("cosine", 4, 50, 1000) == 1.0


def test_a_recipe_of_ones_own_is_trained_from_the_document(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = Path(__file__).parents[2] / "docs/recipes.md"
    code = re.search(r"```python\n(\"\"\"brightness\.py.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    (tmp_path / "brightness.py").write_text(code[1], encoding="utf-8")
    settings = replace(SETTINGS, recipe="brightness:BrightnessRecipe", model="grid-4")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert train_here(settings, photos, str(tmp_path / "run"))
    assert entries(tmp_path / "run", "loss")[-1] < entries(tmp_path / "run", "loss")[0]


def test_a_recipe_that_is_not_there_is_told(numbers: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="The recipe darkness:DarknessRecipe cannot be imported"):
        train_here(replace(OF_NUMBERS, recipe="darkness:DarknessRecipe"), numbers, str(tmp_path))


def cut_off_after_six(trained: Path, directory: Path) -> Path:
    """A copy of a training as it is found when it was killed while it wrote its last checkpoint: no marker."""
    shutil.copytree(trained, directory)
    (directory / LAST / "checkpoint.json").unlink()
    return directory


def test_a_run_cut_off_and_continued_ends_with_the_same_bits(photos: Path, trained: Path, tmp_path: Path) -> None:
    directory = cut_off_after_six(trained, tmp_path / "run")
    train_on((1, 2), SETTINGS, photos, str(directory))
    assert weights_digest(directory / LAST) == weights_digest(trained / LAST)
    assert entries(directory, "step") == entries(trained, "step")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accelerator", "changes"),
    [
        ("cpu:1", {}),
        pytest.param("cpu:4", {}, marks=pytest.mark.slow),
        pytest.param("cpu:2", {"micro_batch_size": 3}, marks=pytest.mark.slow),
        pytest.param("cpu:2", {"activation_checkpointing": True}, marks=pytest.mark.slow),
        pytest.param("cpu:4", {"parallelism": "fsdp"}, marks=pytest.mark.slow),
        pytest.param("cpu:2", {"compile_model": "on"}, marks=pytest.mark.slow),
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
    # Of each process its weights and, apart, what the optimizer keeps.
    assert len(list((tmp_path / "first" / LAST).glob("*.safetensors"))) == 4
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
