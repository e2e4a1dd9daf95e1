"""Checkpoints of several trainings in one evaluation."""

import json
from pathlib import Path
from typing import Any

import pytest
from evaluations import (
    images_dataset,
    numbers_dataset,
    settings_in,
    train_checkpoint,
    write_brightness,
    write_regressions,
)
from kfp import dsl, local

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.step import run as evaluate
from gpu_pipelines.evaluation.trainings import differing, names_of
from gpu_pipelines.registry.upload import UploadSettings, upload_model

OUTPUTS = {
    "best_checkpoint": dsl.Model,
    "evaluation": dsl.Metrics,
    "confusion": dsl.ClassificationMetrics,
    "report": dsl.HTML,
    "benchmark_results": dsl.Artifact,
}
SCORING = """
import json
def score(checkpoint, dataset, split):
    return {"value": json.loads(checkpoint.read_text())[split]}
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return images_dataset(tmp_path_factory.mktemp("images") / "data")


def artifact(path: Path, kind: Any = dsl.Artifact) -> Any:
    return kind(name=path.name, uri=str(path))


def outputs_in(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    return {name: artifact(folder / name, kind) for name, kind in OUTPUTS.items()}


def test_trainings_of_different_architectures_are_ranked_together_each_by_its_own_recipe(
    images: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / turn / "train-model" / "checkpoints" for turn in ("beside", "turn-0", "turn-1")]
    for folder in folders:
        folder.parent.mkdir(parents=True)
    train_checkpoint(folders[0], images, "image_classification", "convnext-micro")
    train_checkpoint(folders[1], images, "image_classification", "vit-micro")
    write_brightness(folders[2], images)
    outputs = outputs_in(tmp_path / "out")
    dataset = artifact(images.directory, dsl.Dataset)
    beside, *collected = map(artifact, folders)
    evaluate(
        settings_in(tmp_path, gates=["accuracy>=0.95"]),
        dataset=dataset,
        checkpoints=beside,
        collected=collected,
        **outputs,
        advanced={},
    )
    best = tmp_path / "out" / "best_checkpoint"
    found = Evaluation.load(best)
    assert [scored["name"] for scored in found.checkpoints] == [
        "beside/step-00000001",
        "turn-0/step-00000001",
        "turn-1/step-00000001",
    ]
    assert (found.best, found.passed) == ("turn-1/step-00000001", True)
    assert found.configuration["settings"]["recipe"] == "evaluations:OwnImages"
    assert [each["settings"]["model"] for each in found.trainings] == ["convnext-micro", "vit-micro", "mean"]
    alone = evaluate_checkpoints(settings_in(tmp_path), images.directory, folders[0], tmp_path / "alone")
    assert alone.checkpoints[0]["val"] == found.checkpoints[0]["val"], "as if it had been evaluated alone"
    assert (alone.best, alone.trainings) == ("step-00000001", [])
    page = (tmp_path / "out" / "report").read_text()
    assert "model=vit-micro" in page
    assert "training turn-0: model=vit-micro" in capsys.readouterr().out
    settings = UploadSettings(str(tmp_path / "registry"), smoke_test=False)
    assert upload_model(settings, best, found.passed).aliases == ("challenger", "champion")


def test_averages_stay_within_a_training(tmp_path: Path) -> None:
    numbers = numbers_dataset(tmp_path / "data")
    write_regressions(tmp_path / "one", numbers, [0.5, -0.3])
    write_regressions(tmp_path / "two", numbers, [0.3, 0.4, -0.4])
    found = evaluate_checkpoints(
        settings_in(tmp_path, average_last=2),
        numbers.directory,
        {"one": tmp_path / "one", "two": tmp_path / "two"},
        tmp_path / "best",
    )
    averages = {each["name"]: each["averages"] for each in found.checkpoints if "averages" in each}
    assert averages == {
        "one/average-of-last-2": ["one/step-00000010", "one/step-00000020"],
        "two/average-of-last-2": ["two/step-00000020", "two/step-00000030"],
    }
    assert found.best == "two/average-of-last-2", "0.4 and -0.4 cancel each other"
    assert found.test["metrics"]["loss"]["value"] < 1e-9


def test_a_training_on_other_data_or_for_another_task_is_refused_by_its_name(images: Dataset, tmp_path: Path) -> None:
    write_brightness(tmp_path / "good", images)
    other = images_dataset(tmp_path / "other-data", shuffled=True)
    write_brightness(tmp_path / "other", other)
    numbers = numbers_dataset(tmp_path / "numbers-data")
    write_regressions(tmp_path / "numbers", numbers, [0.5])
    for name, said in (("other", "other/step-00000001 was trained on another"), ("numbers", "numbers is for own_num")):
        with pytest.raises(UserError, match=said):
            evaluate_checkpoints(
                settings_in(tmp_path),
                images.directory,
                {"good": tmp_path / "good", name: tmp_path / name},
                tmp_path / "best",
            )
    assert not (tmp_path / "best").exists()


def test_a_function_scores_the_checkpoints_of_all_trainings(images: Dataset, tmp_path: Path) -> None:
    (tmp_path / "scoring.py").write_text(SCORING)
    for name, value in (("linear", 0.7), ("forest", 0.8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "step-1.json").write_text(json.dumps({"val": value, "test": value}))
    settings = settings_in(tmp_path, scoring_function=f"{tmp_path}/scoring.py:score", gates=["value>=0.75"])
    folders = {name: tmp_path / name for name in ("linear", "forest")}
    found = evaluate_checkpoints(settings, images.directory, folders, tmp_path / "best")
    assert (found.best, found.passed) == ("forest/step-1.json", True)
    upload_model(UploadSettings(settings.registry, smoke_test=False), tmp_path / "best", found.passed)
    again = evaluate_checkpoints(settings, images.directory, folders, tmp_path / "again")
    assert again.champion is not None
    assert again.champion["metrics"]["value"]["value"] == 0.8, "the one file of the champion was scored"


def test_checkpoints_of_a_rehearsed_script_are_told_by_their_artifact(images: Dataset, tmp_path: Path) -> None:
    """They have no checkpoint.json that could say it."""
    (tmp_path / "scoring.py").write_text(SCORING)
    for name, value in (("rehearsed", 0.9), ("real", 0.8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "step-1").write_text(json.dumps({"val": value, "test": value}))
    settings = settings_in(tmp_path, scoring_function=f"{tmp_path}/scoring.py:score")
    rehearsed, real = artifact(tmp_path / "rehearsed"), artifact(tmp_path / "real")
    rehearsed.metadata["rehearsal"] = True
    for name, more in (("alone", None), ("both", real)):
        outputs = outputs_in(tmp_path / name)
        evaluate(
            settings,
            dataset=artifact(images.directory),
            checkpoints=rehearsed,
            more_checkpoints=more,
            **outputs,
            advanced={},
        )
        assert outputs["best_checkpoint"].metadata["rehearsal"] is True
        assert "A rehearsal" in (tmp_path / name / "best_checkpoint" / "MODEL_CARD.md").read_text()
    outputs = outputs_in(tmp_path / "other")
    evaluate(settings, dataset=artifact(images.directory), checkpoints=real, **outputs, advanced={})
    assert outputs["best_checkpoint"].metadata["rehearsal"] is False


def test_nothing_to_evaluate_is_said(images: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate(settings_in(tmp_path), dataset=artifact(images.directory), **outputs_in(tmp_path / "out"), advanced={})
    assert "dsl.Collected" in capsys.readouterr().err


def test_trainings_are_named_after_what_differs_in_their_places() -> None:
    bucket = "gs://bucket/root/123/job"
    assert names_of([f"{bucket}/train-model_-81/checkpoints", f"{bucket}/train-model-2_77/checkpoints"]) == [
        "train-model",
        "train-model-2",
    ]
    assert names_of([f"{bucket}/train-model_-81/checkpoints", f"{bucket}/train-model_77/checkpoints"]) == [
        "train-model_-81",
        "train-model_77",
    ]
    assert names_of(["/c/train-model", "/c/train-model-2/a1", "/c/train-model-2/b2"]) == [
        "train-model",
        "train-model-2-a1",
        "train-model-2-b2",
    ]
    assert names_of(["/c", "/c/d"]) == ["training-1", "training-2"]
    assert differing({"a": {"model": "x", "seed": 0}, "b": {"model": "y", "seed": 0}}) == {
        "a": {"model": "x"},
        "b": {"model": "y"},
    }


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def train_elsewhere(folder: str, checkpoints: dsl.Output[dsl.Artifact]) -> None:
    import shutil

    shutil.copytree(folder, checkpoints.path)


@pytest.mark.filterwarnings("ignore:Task:UserWarning", "ignore:You may be attemping:RuntimeWarning")
def test_a_loop_of_trainings_is_collected_by_kfp_and_ranked_with_one_beside_it(
    images: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_pipelines.components import evaluate_checkpoints

    thresholds = {"good": 0.45, "bad": 0.1, "worse": 0.9}
    for name, threshold in thresholds.items():
        write_brightness(tmp_path / name, images, threshold)

    @dsl.pipeline(name="several")
    def several() -> None:
        dataset = dsl.importer(artifact_uri=str(images.directory), artifact_class=dsl.Dataset)
        beside = train_elsewhere(folder=str(tmp_path / "bad"))
        with dsl.ParallelFor([str(tmp_path / "worse"), str(tmp_path / "good")], parallelism=1) as folder:
            trained = train_elsewhere(folder=folder)
        evaluate_checkpoints(
            dataset=dataset.output,
            checkpoints=beside.outputs["checkpoints"],
            collected=dsl.Collected(trained.outputs["checkpoints"]),
            registry=str(tmp_path / "registry"),
        )

    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:1")
    # The recipe of the checkpoints.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "root"))
    several()
    (best,) = (tmp_path / "root").glob("*/evaluate-checkpoints/best_checkpoint")
    found = Evaluation.load(best)
    beside, worse, good = [each["name"] for each in found.trainings]
    assert beside == "train-elsewhere"
    # KFP numbers the loops of a process.
    assert (worse[-12:], good[-12:]) == ("-iteration-0", "-iteration-1")
    assert found.best == f"{good}/step-00000001"
