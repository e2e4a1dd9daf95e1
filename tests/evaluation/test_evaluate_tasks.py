"""Checkpoints of all kinds of tasks, with their own recipes: which is best, what is exported, what is compared."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluations import (
    SLOPES,
    classes_dataset,
    numbers_dataset,
    settings_in,
    text_dataset,
    train_classes,
    write_checkpoint,
    write_regressions,
)
from kfp import dsl

from gpu_pipelines.artifacts.checkpoint import write_configuration
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation import step
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.evaluation.statistics.bootstrap import without_interval
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.tasks.building import build_model
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel


def register(registry: str, model: Path) -> None:
    """Adds a version that passed; what it predicts behind a server is tested in tests/serving."""
    upload_model(UploadSettings(registry, "mine", smoke_test=False), model, passed=True)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return numbers_dataset(tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return text_dataset(tmp_path_factory.mktemp("counting"))


def mean_loss(dataset: Dataset, split: str, error: float) -> float:
    rows = dataset.split(split).take(np.arange(len(dataset.split(split))))
    return float(np.mean((rows["inputs"] @ (SLOPES + error) - rows["target"]) ** 2 / 2))


def test_a_task_of_ones_own_is_ranked_by_its_loss(numbers: Dataset, tmp_path: Path) -> None:
    write_regressions(tmp_path / "checkpoints", numbers, [0.5, 0.1, 0.3])
    evaluation = evaluate_checkpoints(
        settings_in(tmp_path, gates=["loss<=0.5"]), numbers.directory, tmp_path / "checkpoints", tmp_path / "best"
    )
    assert (evaluation.best, evaluation.select_by, evaluation.passed) == ("step-00000020", "loss", True)
    losses = [scored["val"]["loss"] for scored in evaluation.checkpoints]
    assert losses == pytest.approx([mean_loss(numbers, "val", error) for error in (0.5, 0.1, 0.3)], rel=1e-4)
    assert evaluation.test["metrics"]["loss"]["value"] == pytest.approx(mean_loss(numbers, "test", 0.1), rel=1e-4)
    assert evaluation.test["loss_tokens"] == evaluation.test["rows"] == 40
    assert "token_accuracy" not in evaluation.test["metrics"]
    card = (tmp_path / "best/MODEL_CARD.md").read_text()
    assert "transformers" not in card
    assert "classes" not in card


def test_the_champion_of_a_recipe_that_loads_nothing_is_loaded_from_its_safetensors(
    numbers: Dataset, tmp_path: Path
) -> None:
    settings = settings_in(tmp_path)
    for name, error, better in (("one", 0.2, True), ("two", 0.3, False), ("three", 0.1, True)):
        write_regressions(tmp_path / name, numbers, [error])
        evaluation = evaluate_checkpoints(settings, numbers.directory, tmp_path / name, tmp_path / f"best-{name}")
        assert evaluation.passed is better, evaluation.gates
        if evaluation.champion:
            assert evaluation.champion["version"] == 1
            assert evaluation.champion["metrics"]["loss"]["value"] == pytest.approx(mean_loss(numbers, "test", 0.2))
        else:
            register(settings.registry, tmp_path / f"best-{name}")


def test_a_checkpoint_that_has_diverged_is_never_the_best(numbers: Dataset, tmp_path: Path) -> None:
    write_regressions(tmp_path / "checkpoints", numbers, [math.nan, 40.0, math.inf])
    evaluation = evaluate_checkpoints(
        settings_in(tmp_path), numbers.directory, tmp_path / "checkpoints", tmp_path / "best"
    )
    assert evaluation.best == "step-00000020"
    read = Evaluation.load(tmp_path / "best")
    assert [scored["val"]["loss"] is None for scored in read.checkpoints] == [True, False, True]
    # A loss of thousands of nats is a number, its exponential is not.
    assert read.test["metrics"]["perplexity"] == {"value": None, "low": None, "high": None}
    gate = settings_in(tmp_path, gates=["perplexity<=1e9"])
    again = evaluate_checkpoints(gate, numbers.directory, tmp_path / "checkpoints", tmp_path / "again")
    assert not again.passed
    assert again.gates[0]["why"] == "perplexity is not a finite number, wanted <= 1000000000"


def test_without_any_finite_checkpoint_there_is_no_best_one(numbers: Dataset, tmp_path: Path) -> None:
    write_regressions(tmp_path / "checkpoints", numbers, [math.nan, math.nan])
    with pytest.raises(UserError, match="not a finite number for any of the 2 checkpoints"):
        evaluate_checkpoints(settings_in(tmp_path), numbers.directory, tmp_path / "checkpoints", tmp_path / "best")
    assert not (tmp_path / "best").exists()


def test_what_cannot_be_scored_is_refused_with_the_reason(
    numbers: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(directory: str, **given: Any) -> str:
        with pytest.raises(UserError) as caught:
            evaluate_checkpoints(
                settings_in(tmp_path, **given), numbers.directory, tmp_path / directory, tmp_path / "b"
            )
        return str(caught.value)

    write_regressions(tmp_path / "shape", numbers, [0.1], recipe="WrongShape")
    assert "gave the shape (4, 2); the task own_numbers is scored by (4, 3)" in refused("shape")
    write_regressions(tmp_path / "good", numbers, [0.1])
    assert "gives loss, perplexity" in refused("good", gates=["token_accuracy>=0.1"])
    assert "'accuracy'" in refused("good", gates=["accuracy>=0.1"])
    monkeypatch.setattr(Dataset, "slice_values", lambda self, split, column: ["a"] * self.manifest.rows(split))
    assert "gives loss, perplexity" in refused("good", gates=["slices.token_accuracy.min>=0.1"], slice_by="kind")
    write_regressions(tmp_path / "none", numbers, [0.1])
    write_configuration(tmp_path / "none", {"task": "own_numbers", "settings": {"model": "linear"}})
    assert "names no recipe" in refused("none")
    write_configuration(tmp_path / "none", {"task": "own_numbers"})
    assert "does not name the model" in refused("none")
    assert f"it is a folder of trainings.\n  Give one of them: {tmp_path / 'good'}," in refused("")
    (one,) = (tmp_path / "good").glob("step-*")
    assert f"is one checkpoint of a training.\n  Give the folder of all: {one.parent}." in refused(f"good/{one.name}")


# Language models


def train_counting(directory: Path, dataset: Dataset, rank: int = 0) -> None:
    """Two checkpoints of a real, short training."""
    settings = {"model": "gpt2-micro", "lora_rank": rank, "lora_alpha": 16.0, "seed": 3, "global_batch_size": 8}
    recipe = CausalLanguageModel.for_dataset(dataset)
    torch.manual_seed(3)
    model = build_model(recipe, settings)
    directory.mkdir()
    devices = {"kind": "cpu", "processes": 1}
    write_configuration(directory, {"task": "causal_lm", "settings": settings, "devices": devices})
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    batch = recipe.batch(dataset.split("train").take(np.arange(8)), torch.device("cpu"))
    for number in range(1, 21):
        optimizer.zero_grad()
        recipe.loss(model, batch).backward()
        optimizer.step()
        if number % 10 == 0:
            write_checkpoint(directory, number, model, dataset, rehearsal=True)


@pytest.mark.parametrize("rank", [0, 4])
def test_an_exported_language_model_has_the_loss_that_was_evaluated(
    counting: Dataset, tmp_path: Path, rank: int
) -> None:
    from transformers import AutoModelForCausalLM

    train_counting(tmp_path / "checkpoints", counting, rank)
    evaluation = evaluate_checkpoints(
        settings_in(tmp_path), counting.directory, tmp_path / "checkpoints", tmp_path / "best"
    )
    assert (evaluation.best, evaluation.passed) == ("step-00000020", True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "best", local_files_only=True).eval()
    rows = counting.split("test").take(np.arange(40))
    tokens = torch.from_numpy(rows["input_ids"]).long()
    with torch.no_grad():
        likelihoods = model(tokens).logits.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    scored = torch.from_numpy(rows["loss_mask"][:, 1:]).bool()
    assert evaluation.test["metrics"]["loss"]["value"] == pytest.approx(-likelihoods[scored].mean().item(), rel=1e-4)
    assert evaluation.test["loss_tokens"] == int(scored.sum())
    card = (tmp_path / "best/MODEL_CARD.md").read_text()
    assert "library_name: transformers\npipeline_tag: text-generation\n" in card
    assert "A rehearsal" in card

    registry = settings_in(tmp_path).registry
    register(registry, tmp_path / "best")
    again = evaluate_checkpoints(settings_in(tmp_path), counting.directory, tmp_path / "checkpoints", tmp_path / "two")
    assert again.champion
    theirs, ours = again.champion["metrics"]["loss"]["value"], again.test["metrics"]["loss"]["value"]
    assert theirs == pytest.approx(ours, rel=1e-5)


@pytest.mark.slow
def test_a_champion_with_another_tokenizer_is_not_compared_with(counting: Dataset, tmp_path: Path) -> None:
    train_counting(tmp_path / "checkpoints", counting)
    evaluate_checkpoints(settings_in(tmp_path), counting.directory, tmp_path / "checkpoints", tmp_path / "best")
    register(settings_in(tmp_path).registry, tmp_path / "best")
    other = text_dataset(tmp_path / "other", words=50)
    train_counting(tmp_path / "more", other)
    with pytest.raises(UserError, match="has another tokenizer than this dataset"):
        evaluate_checkpoints(settings_in(tmp_path), other.directory, tmp_path / "more", tmp_path / "two")


def test_adapters_on_a_base_that_has_changed_are_refused(counting: Dataset, tmp_path: Path) -> None:
    train_counting(tmp_path / "checkpoints", counting, rank=2)
    file = tmp_path / "checkpoints/training.json"
    content = json.loads(file.read_text())
    content["settings"]["seed"] = 4
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="whose weights have changed since the training"):
        evaluate_checkpoints(settings_in(tmp_path), counting.directory, tmp_path / "checkpoints", tmp_path / "best")


def outputs_of_step(dataset: Dataset, folder: Path) -> dict[str, dsl.Artifact]:
    """What the step writes of the checkpoints in a folder."""
    kinds: dict[str, type[dsl.Artifact]] = {
        "best_checkpoint": dsl.Model,
        "evaluation": dsl.Metrics,
        "confusion": dsl.ClassificationMetrics,
        "report": dsl.HTML,
        "benchmark_results": dsl.Artifact,
    }
    outputs = {name: kind(name=name, uri=str(folder / name)) for name, kind in kinds.items()}
    inputs = {
        "dataset": dsl.Dataset(uri=str(dataset.directory)),
        "checkpoints": dsl.Artifact(uri=str(folder / "checkpoints")),
    }
    step.run(EvaluationSettings(registry=str(folder / "registry")), **inputs, **outputs, advanced={})
    return outputs


@pytest.mark.parametrize(("most", "shown"), [(2, ["confusionMatrix"]), (1, [])])
def test_the_matrix_of_not_too_many_classes_is_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, shown: list[str]
) -> None:
    monkeypatch.setattr(step, "MATRIX_CLASSES_SENT", most)
    dataset = classes_dataset(tmp_path / "data")
    train_classes(tmp_path / "checkpoints", dataset)
    confusion = outputs_of_step(dataset, tmp_path)["confusion"]
    assert list(confusion.metadata) == shown
    assert len(json.loads(Path(confusion.uri).read_text())["rows"]) == 2


def test_the_step_writes_all_outputs_for_a_task_without_classes(numbers: Dataset, tmp_path: Path) -> None:
    write_regressions(tmp_path / "checkpoints", numbers, [40.0, 30.0])
    outputs = outputs_of_step(numbers, tmp_path)
    results = json.loads((tmp_path / "benchmark_results" / "benchmarks.json").read_text())
    assert results == {"format_version": 1, "checkpoints": {}, "champion": {}}, "there were no benchmarks"
    assert set(outputs["evaluation"].metadata) == {"test_loss"}, "a metric that is no number would fail the task"
    assert outputs["confusion"].metadata == {}
    assert json.loads((tmp_path / "confusion").read_text()) == {"labels": [], "rows": []}
    page = (tmp_path / "report").read_text()
    assert "<h2>Test</h2>" in page
    assert "–" in page
    for word in ("Confusion", "Mistakes", "By class", "nan"):
        assert word not in page


def test_the_worst_rows_of_a_task_of_another_package_are_shown_by_their_keys(numbers: Dataset, tmp_path: Path) -> None:
    write_regressions(tmp_path / "checkpoints", numbers, [40.0])
    evaluation = evaluate_checkpoints(
        settings_in(tmp_path), numbers.directory, tmp_path / "checkpoints", tmp_path / "best"
    )
    told = [{"row": 3, "source": "a.csv:4", "off by": 2}, {"row": 1, "source": "a.csv:2", "why": "no such topic"}]
    write_report(replace(evaluation, mistakes=told), numbers.directory, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<th>off by</th><th>why</th><th>row</th>" in page
    assert "no such topic" in page


def test_the_mistakes_of_a_text_classifier_are_shown_as_text(tmp_path: Path) -> None:
    dataset = classes_dataset(tmp_path / "data")
    train_classes(tmp_path / "checkpoints", dataset)
    evaluation = evaluate_checkpoints(
        settings_in(tmp_path), dataset.directory, tmp_path / "checkpoints", tmp_path / "best"
    )
    assert [gate["gate"] for gate in evaluation.gates] == ["better than the champion"]
    assert evaluation.mistakes, "labels are random"
    write_report(evaluation, dataset.directory, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    row = dataset.split("test").take(np.array([evaluation.mistakes[0]["row"]]))
    words = [f"w{token - 1}" for token in row["input_ids"][0, : row["length"][0]]]
    assert f"{' '.join(words)}<br>" in page
    assert "<h2>Confusion matrix</h2>" in page
    assert "Intervals are 95%" in page
    unknown = {name: without_interval(metric["value"]) for name, metric in evaluation.test["metrics"].items()}
    few = replace(evaluation, test={**evaluation.test, "metrics": unknown})
    write_report(few, dataset.directory, tmp_path / "report.html")
    assert "Intervals are 95%" not in (tmp_path / "report.html").read_text()
