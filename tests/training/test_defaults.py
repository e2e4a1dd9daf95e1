"""What a training takes where the user gives nothing, by the task and by whether the model is pretrained."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, ViTConfig, ViTForImageClassification

from gpu_pipelines.artifacts.dataset import Dataset, Feature
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.artifacts.image_features import ImageGeometry
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.models.loading import Models, ModelSource
from gpu_pipelines.tasks.tasks import BUILT_IN, task_named
from gpu_pipelines.training.settings import TASKS_OWN, TrainingSettings
from gpu_pipelines.training.train import train_model

ROWS, SIZE = 9, 16
DOCUMENT = Path(__file__).parents[2] / "docs/training.md"


@pytest.fixture(scope="module")
def few_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with nine rows to train on."""
    directory = tmp_path_factory.mktemp("few") / "data"
    geometry, generator = ImageGeometry(SIZE, "RGB"), np.random.default_rng(0)
    features = {"image": Feature("uint8", geometry.shape), "label": Feature("int32")}
    named = {"task": "image_classification", "source": "x", "labels": ["a", "b"]}
    with DatasetWriter(directory, features=features, preprocessing=geometry.preprocessing(), **named) as writer:
        for split, rows in (("train", ROWS), ("val", 4), ("test", 4)):
            for number in range(rows):
                image = generator.integers(0, 256, geometry.shape, dtype=np.uint8)
                writer.add(split, "x", {"image": image, "label": number % 2})
        writer.finish()
    return directory


def write_llama(directory: Path) -> Path:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=32, **shape)).save_pretrained(directory)
    return directory


def write_vit(directory: Path) -> Path:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ViTForImageClassification(ViTConfig(image_size=SIZE, patch_size=4, **shape)).save_pretrained(directory)
    return directory


def numbers(settings: TrainingSettings) -> tuple[float, ...]:
    return tuple(getattr(settings, name) for name in ("learning_rate", "epochs", "weight_decay"))


@pytest.mark.parametrize("task", BUILT_IN)
def test_models_from_scratch_are_trained_as_ever(task: str) -> None:
    for model in task_named(task).models:
        for rank in (0, 8):
            assert numbers(TrainingSettings(model=model, lora_rank=rank).resolved(task)) == (0.004, 15.0, 0.05)


def test_a_training_from_scratch_is_the_same_training_as_before_this_was_left_to_the_task() -> None:
    found = TrainingSettings().resolved("image_classification").configuration_hash()
    given = TrainingSettings(learning_rate=0.004, epochs=15.0, weight_decay=0.05).configuration_hash()
    assert found == given


def test_pretrained_weights_are_fine_tuned_and_a_configuration_alone_is_not(tmp_path: Path) -> None:
    llama = write_llama(tmp_path / "llama")
    for model in (str(llama), "organisation/llama-7b"):
        assert numbers(TrainingSettings(model=model).resolved("causal_lm")) == (2e-5, 3.0, 0.0)
        assert numbers(TrainingSettings(model=model, lora_rank=8).resolved("causal_lm")) == (2e-4, 3.0, 0.0)
        assert numbers(TrainingSettings(model=model).resolved("text_classification")) == (2e-5, 3.0, 0.01)
        assert numbers(TrainingSettings(model=model).resolved("image_classification")) == (5e-5, 3.0, 0.0)
        assert numbers(TrainingSettings(model=model).resolved("regression")) == (5e-5, 3.0, 0.0)
    (llama / "model.safetensors").unlink()
    assert numbers(TrainingSettings(model=str(llama)).resolved("causal_lm")) == (0.004, 15.0, 0.05)


def test_what_is_given_is_taken_even_if_it_is_zero() -> None:
    given = TrainingSettings(model="a/b", learning_rate=0.1, epochs=7.0, weight_decay=0.0)
    assert numbers(given.resolved("token_classification")) == (0.1, 7.0, 0.0)
    assert given.problems("token_classification") == []


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", -1.0), ("epochs", -1.0), ("weight_decay", -0.5), ("weight_decay", -2.0)]
)
def test_what_is_less_than_the_tasks_own_is_refused(name: str, value: float) -> None:
    (problem,) = TrainingSettings(**{name: value}).problems()  # type: ignore[arg-type]
    assert f"{name} is {value}" in problem
    assert f"{TASKS_OWN[name]} for the task's own" in problem


def test_fewer_rows_than_processes_are_refused_as_that(
    few_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said that 16 processes cannot share a batch of 8; one of 16, as it told to give, came to the same."""
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:16")
    with pytest.raises(UserError, match="There are 9 rows to train on and 16 processes"):
        train_model(TrainingSettings(global_batch_size=16), few_images, str(tmp_path))


def test_a_step_after_the_last_one_is_refused(few_images: Path, tmp_path: Path) -> None:
    """The later checkpoints were set aside, and nothing was trained."""
    asked = TrainingSettings(resume_from_step=7)
    assert replace(asked, max_steps=7).problems() == asked.problems() == []
    (problem,) = replace(asked, max_steps=6).problems()
    assert problem.endswith("the training has 6 steps. Give a larger max_steps, or an earlier step.")
    with pytest.raises(UserError, match=r"resume_from_step is 7, and the training has 2 steps\. Give a larger epochs"):
        train_model(replace(asked, epochs=1.0), few_images, str(tmp_path))


def test_settings_that_leave_something_open_have_no_hash() -> None:
    with pytest.raises(ValueError, match="learning_rate and weight_decay of the training are not resolved"):
        TrainingSettings(epochs=1.0).configuration_hash()


@pytest.mark.parametrize(("asked", "rows", "taken"), [(64, 9, 8), (64, 64, 64), (96, 50, 48), (12, 9, 6), (64, 1, 1)])
def test_a_step_takes_no_more_rows_than_there_are(asked: int, rows: int, taken: int) -> None:
    settings = TrainingSettings(global_batch_size=asked)
    resolved = settings.resolved("image_classification", rows)
    assert resolved.global_batch_size == taken
    assert resolved.configuration_hash() in settings.possible_hashes("image_classification")
    warned = any(f"{rows} rows" in line for line in settings.told(resolved, "image_classification", rows))
    assert warned is (asked > rows)


@pytest.mark.slow
def test_a_training_says_what_it_took_and_keeps_it_in_its_configuration(
    few_images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = TrainingSettings(model=str(write_vit(tmp_path / "vit")))
    summary = train_model(asked, few_images, str(tmp_path / "run"))
    said = capfd.readouterr().out
    of = "image_classification for pretrained weights"
    assert f"not given, so those of {of}: learning_rate 5e-05, epochs 3, weight_decay 0\n" in said
    assert "warning: global_batch_size is 64, and there are 9 rows to train on; a step takes 8\n" in said
    written = json.loads((tmp_path / "run/training.json").read_text())["settings"]
    assert summary is not None
    resolved = replace(asked.resolved("image_classification", ROWS), streaming="off")
    assert written == asdict(summary.settings) == asdict(resolved)
    assert summary.metrics[-1]["step"] == 4, "3 epochs of 9 rows, 8 to a step"
    assert max(entry["learning_rate"] for entry in summary.metrics) == pytest.approx(5e-5)
    models = Models(Dataset(few_images), written, "", torch.device("cpu"))
    assert models.load(ModelSource("checkpoint", tmp_path / "run" / summary.checkpoints[-1], "last")).labels


def test_the_document_has_the_numbers_of_each_task() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in BUILT_IN:
        task = task_named(name)
        row = re.search(rf"^\| `{name}` \|(.*)\|$", text, re.MULTILINE)
        assert row, f"docs/training.md has no row of {name}"
        cells = [cell.strip() for cell in row[1].split("|")]
        for cell, chosen in zip(cells, (task.fine_tuned, task.with_adapters), strict=True):
            assert cell == f"{chosen.learning_rate:g}, {chosen.epochs:g}, {chosen.weight_decay:g}"
