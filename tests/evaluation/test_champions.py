"""A model beside champions of other recipes, damaged ones, and ones that knew other data."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evaluations import (
    classes_dataset,
    images_dataset,
    numbers_dataset,
    settings_in,
    train_checkpoint,
    write_brightness,
    write_regressions,
)

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.documents import sha256_of_file
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.dag.placement import EVALUATES
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.registry import DirectoryRegistry, RegisteredVersion, open_registry
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.targets.local.runner.digests import state_of_steps

BUILT_IN, OWN = "", "Own"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return images_dataset(tmp_path_factory.mktemp("images") / "data")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return classes_dataset(tmp_path_factory.mktemp("texts") / "data")


def evaluate(folder: Path, dataset: Dataset, name: str, **given: Any) -> Evaluation:
    """Of the checkpoints in the folder of a name; what is exported goes beside them."""
    settings = settings_in(folder, **{"gates": ["log_loss<=1e9"] if dataset.manifest.labels else [], **given})
    return evaluate_checkpoints(settings, dataset.directory, folder / name, folder / f"best-{name}")


def register(folder: Path, name: str, passed: bool = True) -> RegisteredVersion:
    settings = UploadSettings(settings_in(folder).registry, "mine", smoke_test=False)
    return upload_model(settings, folder / f"best-{name}", passed)


def gate_of(evaluation: Evaluation, name: str = "better than the champion") -> dict[str, Any]:
    return next(gate for gate in evaluation.gates if gate["gate"] == name)


def page_of(folder: Path, dataset: Dataset, evaluation: Evaluation) -> str:
    write_report(evaluation, dataset.directory, folder / "report.html")
    return (folder / "report.html").read_text()


# Models of different recipes


@pytest.mark.parametrize("recipes", [(OWN, BUILT_IN), (BUILT_IN, OWN)])
@pytest.mark.parametrize(
    ("task", "built_in"), [("image_classification", "vit-micro"), ("text_classification", "bert-micro")]
)
def test_each_models_rows_are_made_by_its_own_recipe(
    images: Dataset, texts: Dataset, tmp_path: Path, task: str, built_in: str, recipes: tuple[str, str]
) -> None:
    dataset, own = (images, "OwnImages") if task == "image_classification" else (texts, "OwnTexts")
    found = []
    for name, recipe in zip(("champion", "model"), recipes, strict=True):
        train_checkpoint(tmp_path / name, dataset, task, built_in, own if recipe else "")
        found.append(evaluate(tmp_path, dataset, name))
        if name == "champion":
            register(tmp_path, name)
    champion, model = found
    assert model.champion is not None
    assert model.champion["metrics"] == champion.test["metrics"], "as when it was the model itself"
    assert model.test["metrics"] != champion.test["metrics"]
    assert model.shift is not None
    assert not any(check["moved"] for check in model.shift["checks"])


def test_a_champion_of_an_own_recipe_may_have_its_weights_in_several_files(images: Dataset, tmp_path: Path) -> None:
    train_checkpoint(tmp_path / "champion", images, "image_classification", "tied", "InSeveralFiles")
    champion = evaluate(tmp_path, images, "champion")
    files = sorted(path.name for path in (tmp_path / "best-champion").glob("*.safetensors"))
    assert len(files) > 1
    place = Path(register(tmp_path, "champion").place)
    assert sorted(path.name for path in place.glob("*.safetensors")) == files
    train_checkpoint(tmp_path / "model", images, "image_classification", "vit-micro")
    model = evaluate(tmp_path, images, "model")
    assert model.champion is not None
    assert model.champion["metrics"] == champion.test["metrics"]


@pytest.mark.parametrize("flaw", ["not importable", "reads other data", "fails on the rows"])
def test_a_champion_whose_recipe_cannot_score_these_rows_stays_and_the_report_says_why(
    images: Dataset, tmp_path: Path, flaw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_brightness(tmp_path / "champion", images, recipe="FailsOnRows" if "rows" in flaw else "OwnImages")
    evaluate(tmp_path, images, "champion")
    dataset, why = images, "IndexError: channel 3 is out of range"
    if flaw == "not importable":
        file = tmp_path / "best-champion/evaluation.json"
        content = json.loads(file.read_text())
        content["configuration"]["settings"]["recipe"] = "gone_since:Recipe"
        file.write_text(json.dumps(content))
        why = "The recipe gone_since:Recipe cannot be imported"
    elif flaw == "reads other data":
        dataset, why = images_dataset(tmp_path / "more", ("dark", "bright", "brighter")), "it does not fit the model"
    register(tmp_path, "champion")
    monkeypatch.setenv("FAIL", "") if "rows" in flaw else None
    train_checkpoint(tmp_path / "model", dataset, "image_classification", "linear", "OwnImages")
    for given in ({}, {"gates": ["better_than_champion by 0.01"]}):
        shutil.rmtree(tmp_path / "best-model", ignore_errors=True)
        evaluation = evaluate(tmp_path, dataset, "model", **given)
        assert not evaluation.passed
        gate = next(gate for gate in evaluation.gates if "champion" in gate["gate"])
        assert "version 1 could not be compared with, and stays" in gate["why"]
        assert why in gate["why"]
    assert evaluation.champion is not None
    assert evaluation.champion.keys() == {"version", "digest", "metrics", "not_compared"}
    page = page_of(tmp_path, dataset, evaluation)
    assert "Not compared." in page
    assert "models alias mine champion NUMBER" in page
    assert register(tmp_path, "model", evaluation.passed).aliases == ("challenger",)


@pytest.mark.parametrize("by", ["its recipe", "a function"])
def test_a_champion_that_nobody_has_evaluated_and_that_cannot_be_scored_stays(
    images: Dataset, tmp_path: Path, by: str
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"weights")
    (tmp_path / "scoring.py").write_text(
        "import json\ndef score(path, *_): return {'value': json.loads(path.read_text())}"
    )
    given: dict[str, Any] = {}
    if by == "a function":
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "step-1").write_text("0.5")
        given = {"scoring_function": f"{tmp_path}/scoring.py:score", "gates": []}
    else:
        write_brightness(tmp_path / "model", images)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (tmp_path / "model.onnx").rename(foreign / "model.onnx")
    settings = UploadSettings(settings_in(tmp_path).registry, "mine", smoke_test=False)
    assert upload_model(settings, foreign, passed=True).aliases == ("challenger", "champion")
    evaluation = evaluate(tmp_path, images, "model", **given)
    assert not evaluation.passed
    assert "registered without an evaluation" in gate_of(evaluation)["why"]
    assert "models alias mine champion NUMBER" in page_of(tmp_path, images, evaluation)
    assert register(tmp_path, "model", evaluation.passed).aliases == ("challenger",)


def test_a_champion_that_a_function_cannot_read_stays(images: Dataset, tmp_path: Path) -> None:
    write_brightness(tmp_path / "model", images)
    evaluate(tmp_path, images, "model")
    assert register(tmp_path, "model", True).aliases == ("challenger", "champion")
    (tmp_path / "scoring.py").write_text("def score(path, *_): return {'value': float(path.read_text())}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "step-1").write_text("0.5")
    evaluation = evaluate(tmp_path, images, "other", scoring_function=f"{tmp_path}/scoring.py:score", gates=[])
    assert not evaluation.passed
    assert "score failed on the champion, mine version 1: IsADirectoryError" in gate_of(evaluation)["why"]
    assert register(tmp_path, "other", evaluation.passed).aliases == ("challenger",)


# Damaged champions


@pytest.mark.parametrize("damage", ["overwritten", "truncated"])
def test_a_damaged_champion_is_not_scored_and_not_replaced(images: Dataset, tmp_path: Path, damage: str) -> None:
    write_brightness(tmp_path / "champion", images)
    evaluate(tmp_path, images, "champion")
    champion = register(tmp_path, "champion")
    weights = champion.path / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1000] + bytes(1000) if damage == "overwritten" else content[:-1000])
    write_brightness(tmp_path / "model", images, threshold=0.44)
    evaluation = evaluate(tmp_path, images, "model")
    assert not evaluation.passed
    why = f"Version 1 of 'mine' in {champion.place} is damaged: model.safetensors is not as it was uploaded"
    assert why in gate_of(evaluation)["why"]
    assert why in page_of(tmp_path, images, evaluation).replace("&#39;", "'")
    assert register(tmp_path, "model", evaluation.passed).aliases == ("challenger",)


@pytest.mark.parametrize(
    ("file", "newer"), [("evaluation.json", True), ("version.json", True), ("version.json", False)]
)
def test_a_champion_whose_documents_cannot_be_read_is_not_scored_and_not_replaced(
    images: Dataset, tmp_path: Path, file: str, newer: bool
) -> None:
    write_brightness(tmp_path / "champion", images)
    evaluate(tmp_path, images, "champion")
    champion = register(tmp_path, "champion")
    if not newer:
        (champion.path / file).write_text('{"format_version": 1, "files": {')
        why = f"Version 1 of 'mine' in {champion.place} is damaged: version.json cannot be read"
    else:
        # As a newer version of this project has registered it.
        content = {**json.loads((champion.path / file).read_text()), "format_version": 2}
        (champion.path / file).write_text(json.dumps(content))
        if file == "evaluation.json":
            info = json.loads((champion.path / "version.json").read_text())
            info["files"][file] = sha256_of_file(champion.path / file)
            (champion.path / "version.json").write_text(json.dumps(info))
        why = f"{file} has format_version 2; this program reads up to 1"
    write_brightness(tmp_path / "model", images, threshold=0.44)
    evaluation = evaluate(tmp_path, images, "model")
    assert not evaluation.passed
    assert why in gate_of(evaluation)["why"]
    assert why in page_of(tmp_path, images, evaluation).replace("&#39;", "'")
    assert register(tmp_path, "model", evaluation.passed).aliases == ("challenger",)


def test_a_reused_comparison_is_one_with_the_champions_bytes(images: Dataset, tmp_path: Path) -> None:
    write_brightness(tmp_path / "champion", images)
    evaluate(tmp_path, images, "champion")
    champion = register(tmp_path, "champion")
    registry = settings_in(tmp_path).registry
    arguments = {"source": "sample:digits", "billing_project": "", "registry": registry, "model_name": "mine"}
    before = state_of_steps(arguments)
    assert state_of_steps(arguments) == before
    weights = champion.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    assert {step for step, key in state_of_steps(arguments).items() if key != before[step]} == {"evaluate-checkpoints"}


# Other data than the champion's


def test_shuffled_labels_do_not_replace_a_good_champion(images: Dataset, tmp_path: Path) -> None:
    write_brightness(tmp_path / "champion", images)
    first = evaluate(tmp_path, images, "champion")
    assert (first.passed, first.shift) == (True, None)
    assert first.test["metrics"]["accuracy"]["value"] > 0.95
    register(tmp_path, "champion")
    shuffled = images_dataset(tmp_path / "data", shuffled=True)
    # One that takes all images for bright ones, and is better than the champion by the luck of these rows.
    write_brightness(tmp_path / "model", shuffled, threshold=-9.0)
    kept = ["macro_recall>=0"]
    evaluation = evaluate(tmp_path, shuffled, "model", gates=kept, select_by="log_loss")
    assert not evaluation.passed
    why = gate_of(evaluation, "the data of the champion")["why"]
    assert "the data is not what version 1 was evaluated on: its accuracy was" in why
    assert "The data since then" in page_of(tmp_path, shuffled, evaluation)
    meant = evaluate(tmp_path, shuffled, "model", gates=kept, select_by="log_loss", accept_shift=True)
    assert gate_of(meant, "the data of the champion")["passed"]


def test_a_task_without_classes_is_guarded_by_its_loss(tmp_path: Path) -> None:
    numbers = numbers_dataset(tmp_path / "data")
    write_regressions(tmp_path / "champion", numbers, [0.1])
    evaluate(tmp_path, numbers, "champion")
    version = register(tmp_path, "champion")
    file = version.path / "evaluation.json"
    content = json.loads(file.read_text())
    loss = content["test"]["metrics"]["loss"]
    content["test"]["metrics"]["loss"] = {name: value / 20 for name, value in loss.items()}
    file.write_text(json.dumps(content))
    info = json.loads((version.path / "version.json").read_text())
    del info["files"]
    (version.path / "version.json").write_text(json.dumps(info))
    write_regressions(tmp_path / "model", numbers, [0.05])
    evaluation = evaluate(tmp_path, numbers, "model")
    assert [gate["passed"] for gate in evaluation.gates] == [True, False]
    assert "its loss was" in gate_of(evaluation, "the data of the champion")["why"]


# A fixed test set


def with_test_source(dataset: Dataset, to: Path, fingerprint: str) -> Dataset:
    shutil.copytree(dataset.directory, to)
    content = json.loads((to / "dataset.json").read_text())
    content["test_source"] = {"source": "gs://bucket/gold", "fingerprint": fingerprint}
    (to / "dataset.json").write_text(json.dumps(content))
    return Dataset(to)


def test_a_fixed_test_set_is_recorded_and_told_from_another(images: Dataset, tmp_path: Path) -> None:
    gold = with_test_source(images, tmp_path / "gold", "a" * 64)
    write_brightness(tmp_path / "champion", gold)
    assert evaluate(tmp_path, gold, "champion").test_source == {"source": "gs://bucket/gold", "fingerprint": "a" * 64}
    version = register(tmp_path, "champion")
    assert version.info["test_source"]["fingerprint"] == "a" * 64
    write_brightness(tmp_path / "model", gold, threshold=0.44)
    same = evaluate(tmp_path, gold, "model")
    other = evaluate(tmp_path, with_test_source(images, tmp_path / "other", "b" * 64), "model")
    assert [found.champion["same_test_set"] for found in (same, other) if found.champion] == [True, False]
    assert "registered with its score on the same one" in page_of(tmp_path, gold, same)
    assert "registered with its score on other rows" in page_of(tmp_path, gold, other)


# The default gate


def test_an_equal_model_does_not_take_the_champions_place(images: Dataset, tmp_path: Path) -> None:
    for name in ("champion", "model"):
        write_brightness(tmp_path / name, images)
        evaluation = evaluate(tmp_path, images, name)
        if name == "champion":
            register(tmp_path, name)
    assert not evaluation.passed
    assert gate_of(evaluation)["why"].endswith("no better (95% interval of the improvement 0.0000 to 0.0000)")
    again = register(tmp_path, "model", evaluation.passed)
    assert (again.number, again.added) == (1, False)
    registry = DirectoryRegistry(Path(settings_in(tmp_path).registry))
    assert replace(again, added=True) == registry.champion("mine")
    replace(evaluation, source_fingerprint="a" * 64).save(tmp_path / "best-model")
    register(tmp_path, "model", evaluation.passed)
    champion = registry.champion("mine")
    assert champion is not None
    assert "a" * 64 in champion.sources


def test_a_champion_of_the_same_number_in_another_registry_is_not_replaced(
    images: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, threshold in (("poor", 0.7), ("good", 0.45), ("middling", 0.65)):
        write_brightness(tmp_path / name, images, threshold)
    settings = UploadSettings(str(tmp_path / "other"), "mine", smoke_test=False)
    evaluate(tmp_path, images, "good")
    assert upload_model(settings, tmp_path / "best-good", passed=True).number == 1
    evaluate(tmp_path, images, "poor")
    register(tmp_path, "poor")
    evaluation = evaluate(tmp_path, images, "middling")
    assert evaluation.passed
    assert upload_model(settings, tmp_path / "best-middling", evaluation.passed).aliases == ("challenger",)
    assert f"with model_name=mine and registry={settings.registry} to compare" in capsys.readouterr().out
    assert register(tmp_path, "middling").aliases == ("challenger", "champion")


# Another registry than a directory


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "server"])
def test_a_champion_in_mlflow_is_compared_with_and_replaced_by_the_better_one_alone(
    images: Dataset, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    mlflow = request.getfixturevalue("mlflow") if kind == "server" else f"mlflow:sqlite:///{tmp_path}/models.db"
    found, versions = [], []
    for name, threshold in (("poor", 0.7), ("good", 0.45), ("worse", 0.65)):
        write_brightness(tmp_path / name, images, threshold)
        found.append(evaluate(tmp_path, images, name, registry=mlflow, model_name="compared"))
        settings = UploadSettings(mlflow, "compared", smoke_test=False)
        versions.append(upload_model(settings, tmp_path / f"best-{name}", found[-1].passed))
    poor, good, worse = found
    assert [version.aliases for version in versions] == [("challenger", "champion")] * 2 + [("challenger",)]
    assert good.champion is not None
    assert worse.champion is not None
    assert good.champion["metrics"] == poor.test["metrics"], "as when it was the model itself"
    assert worse.champion["metrics"] == good.test["metrics"]
    assert (good.champion["version"], worse.champion["version"]) == (1, 2)
    accuracies = [each.test["metrics"]["accuracy"]["value"] for each in found]
    assert accuracies[0] < accuracies[1] > accuracies[2]
    assert versions[1].has_evaluation
    assert versions[1].info["metrics"]["accuracy"] == accuracies[1]
    # What planning a run looks at, so that results of an evaluation are not taken for those beside another champion.
    arguments = {"registry": mlflow, "model_name": "compared", "source": "sample:digits"}
    before = state_of_steps(arguments)[EVALUATES]
    open_registry(mlflow).set_alias("compared", "champion", 1)
    assert state_of_steps(arguments)[EVALUATES] != before
