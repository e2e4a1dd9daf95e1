"""Checkpoints in a format of the user's own, scored by a function of the user's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluations import numbers_dataset, settings_in

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.exported_model import require_exported_model
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.exporting.export import export_model
from gpu_pipelines.exporting.settings import ExportSettings
from gpu_pipelines.registry.upload import UploadSettings, upload_model

SCORE = '''
import json
from beside import read

def score(checkpoint, dataset, split):
    """A checkpoint is a file with a number, or a folder with such a file."""
    assert (dataset / "dataset.json").is_file()
    value = read(checkpoint / "weights.bin" if checkpoint.is_dir() else checkpoint)
    return {"skill": value, "word_error_rate": 100 - value + (split == "test")}

def fails(checkpoint, dataset, split):
    weights = {}
    return {"skill": weights["head"]}

def fails_below(checkpoint, dataset, split):
    return {"skill": json.loads("{")}

def exits(checkpoint, dataset, split):
    raise SystemExit(3)

def nothing(checkpoint, dataset, split):
    print("scored")

def texts(checkpoint, dataset, split):
    return {"skill": "0.5"}

def diverged(checkpoint, dataset, split):
    return {"skill": float("nan")}

def changing(checkpoint, dataset, split):
    return {f"skill_on_{split}": 1.0}

def by_tensor(checkpoint, dataset, split):
    import torch
    import numpy
    return {"skill": torch.tensor(0.5), "n": numpy.int64(3)}
'''
FUNCTIONS_LINE = SCORE.splitlines().index('    return {"skill": weights["head"]}') + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset, checkpoints `epoch-1` to `epoch-10`, the eighth the best, and the module with the functions."""
    numbers_dataset(tmp_path / "data", task="speech")
    for number in range(1, 11):
        (tmp_path / f"checkpoints/epoch-{number}").mkdir(parents=True)
        value = 50 - abs(8 - number)
        (tmp_path / f"checkpoints/epoch-{number}/weights.bin").write_text(str(value))
    (tmp_path / "scoring.py").write_text(SCORE)
    (tmp_path / "beside.py").write_text("def read(file):\n    return float(file.read_text())\n")
    return tmp_path


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("beside", "scoring"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def evaluate(folder: Path, function: str = "score", out: str = "best", **given: Any) -> Evaluation:
    settings = settings_in(folder, **{"scoring_function": f"{folder}/scoring.py:{function}", **given})
    return evaluate_checkpoints(settings, folder / "data", folder / "checkpoints", folder / out)


def refused(folder: Path, function: str = "score", **given: Any) -> str:
    with pytest.raises(UserError) as caught:
        evaluate(folder, function, **given)
    return str(caught.value)


def test_the_best_folder_is_exported_as_it_is(folder: Path) -> None:
    evaluation = evaluate(folder, gates=["word_error_rate<=51"])
    assert [scored["step"] for scored in evaluation.checkpoints] == list(range(1, 11)), "by number, not by name"
    assert (evaluation.best, evaluation.select_by, evaluation.passed) == ("epoch-8", "skill", True)
    assert evaluation.test["metrics"]["word_error_rate"] == {"value": 51.0, "low": None, "high": None}
    assert (folder / "best/weights.bin").read_text() == "50"
    card = (folder / "best/MODEL_CARD.md").read_text()
    assert "transformers" not in card
    assert "scoring.py:score" in card
    require_exported_model(folder / "best")
    assert Evaluation.load(folder / "best") == evaluation


@pytest.mark.parametrize(
    ("select_by", "best"), [("skill", "epoch-8"), ("-word_error_rate", "epoch-8"), ("word_error_rate", "epoch-1")]
)
def test_a_minus_means_that_less_is_better(folder: Path, select_by: str, best: str) -> None:
    assert evaluate(folder, select_by=select_by).best == best


def test_a_checkpoint_may_be_one_file_and_a_champion_is_scored_by_the_same_function(folder: Path) -> None:
    settings = UploadSettings(str(folder / "registry"), "mine")
    (folder / "checkpoints/checkpoint-0099.bin").write_text("70")
    first = evaluate(folder)
    assert first.best == "checkpoint-0099.bin"
    assert sorted(path.name for path in (folder / "best").iterdir()) == [
        "MODEL_CARD.md",
        "checkpoint-0099.bin",
        "evaluation.json",
    ]
    upload_model(settings, folder / "best", passed=True)
    (folder / "checkpoints/checkpoint-0099.bin").unlink()
    second = evaluate(folder, out="second")
    assert second.champion is not None
    assert (second.champion["version"], second.champion["metrics"]) == (1, first.test["metrics"])
    assert second.champion["differences"]["skill"] == {"value": -20, "low": None, "high": None}
    assert not second.passed
    upload_model(settings, folder / "second", passed=True)
    third = evaluate(folder, out="third", select_by="-word_error_rate")
    assert third.champion is not None
    assert third.champion["metrics"]["skill"]["value"] == 50, "a folder is read where it was registered"
    assert not third.passed
    assert third.gates[0]["why"].endswith("on the same 40 test rows: no better; no interval is known")


def test_a_function_can_be_named_by_its_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    assert evaluate(folder, scoring_function="scoring:score").best == "epoch-8"


def test_tensors_and_numpys_numbers_are_numbers(folder: Path) -> None:
    metrics = evaluate(folder, "by_tensor").test["metrics"]
    assert {name: metric["value"] for name, metric in metrics.items()} == {"skill": 0.5, "n": 3.0}


def test_an_error_of_the_function_is_told_with_its_own_line(folder: Path) -> None:
    text = refused(folder, "fails")
    assert text == (
        f"{folder}/scoring.py:fails failed on epoch-1: KeyError: 'head'\n"
        f'  {folder}/scoring.py:{FUNCTIONS_LINE}: return {{"skill": weights["head"]}}'
    )
    below = refused(folder, "fails_below")
    assert "JSONDecodeError" in below
    assert 'return {"skill": json.loads("{")}' in below, "not the line of the library"
    assert "SystemExit: 3" in refused(folder, "exits")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nothing", "returned 'None' for epoch-1"),
        ("texts", "Let it return a dict of numbers by metric"),
        ("diverged", "skill on val is not a finite number for any of the 10 checkpoints"),
        ("changing", "returned skill_on_test for epoch-1, before that skill_on_val"),
        ("scroe", "has no function scroe.\n  Did you mean 'score'?"),
    ],
)
def test_what_is_no_score_is_refused(folder: Path, function: str, message: str) -> None:
    assert message in refused(folder, function)


@pytest.mark.parametrize("given", [{"select_by": "skil"}, {"gates": ["skil>=1"]}, {"select_by": "-skil"}])
def test_a_metric_that_is_not_returned_is_noticed_after_the_first_checkpoint(
    folder: Path, given: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    text = refused(folder, **given)
    assert "There is no metric 'skil'" in text
    assert "Did you mean 'skill'?" in text
    assert "checkpoint 1/10" not in capfd.readouterr().out


def test_what_cannot_be_imported_is_told_with_its_place(folder: Path) -> None:
    (folder / "scoring.py").write_text("import beside\n\n1 / 0\n")
    assert f"ZeroDivisionError: division by zero\n  {folder}/scoring.py:3: 1 / 0" in refused(folder)
    (folder / "scoring.py").write_text("def score(:\n")
    assert f"{folder}/scoring.py:1: def score(:" in refused(folder)
    assert "No module named 'no_such_module'" in refused(folder, scoring_function="no_such_module:score")
    (folder / "scoring.py").unlink()
    assert "There is no file" in refused(folder)


@pytest.mark.parametrize(
    "names",
    [
        ["epoch=0-step=6.ckpt", "epoch=0-step=12.ckpt", "epoch=1-step=18-val_loss=0.31.ckpt"],
        ["epoch=2.ckpt", "epoch=10.ckpt"],
        ["checkpoint_2", "checkpoint_10"],
    ],
)
def test_checkpoints_have_the_names_that_lightning_and_accelerate_give_them(names: list[str], folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    for name in [*names, "last.ckpt"]:
        (own / name).write_text("50")
    settings = settings_in(folder, scoring_function=f"{folder}/scoring.py:score")
    evaluation = evaluate_checkpoints(settings, folder / "data", own, folder / "best")
    assert [scored["name"] for scored in evaluation.checkpoints] == names, "in the order of the training"
    assert (folder / "best" / evaluation.best).read_text() == "50"


def test_what_is_no_checkpoint_is_passed_over_or_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "checkpoints/checkpoint-last").mkdir()
    (folder / "checkpoints/notes.txt").write_text("")
    assert len(evaluate(folder).checkpoints) == 10
    assert "passing over checkpoint-last" in capfd.readouterr().out
    (folder / "checkpoints/epoch-8/evaluation.json").write_text("{}")
    assert "has files named evaluation.json" in refused(folder, out="other")
    (folder / "orbax/20").mkdir(parents=True)
    settings = settings_in(folder, scoring_function=f"{folder}/scoring.py:score")
    with pytest.raises(UserError, match=r"has no checkpoints: the training left only 20 there\.(.|\n)*Rename"):
        evaluate_checkpoints(settings, folder / "data", folder / "orbax", folder / "out")


def test_the_report_shows_the_metrics_of_the_function(folder: Path) -> None:
    write_report(evaluate(folder), folder / "data", folder / "report.html")
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "word_error_rate" in page
    assert "interval" not in page.partition("<!-- sections -->")[2]


def test_names_of_functions_are_checked_before_anything_runs(tmp_path: Path) -> None:
    for good in ("package.module:function", "module:f", "dir with space/file.py:f", "./a-b.py:f"):
        assert EvaluationSettings(scoring_function=good).problems("causal_lm") == []
    for wrong in ("module", "file.py", "module.f()", "a-b:f", "file.py:", ":f", "gs://bucket/file.txt:f"):
        assert len(EvaluationSettings(scoring_function=wrong).problems("causal_lm")) == 1, wrong
    absent = EvaluationSettings(scoring_function=f"{tmp_path}/absent.py:f")
    assert "There is no file" in absent.problems_here()[0]
    assert EvaluationSettings(scoring_function="module:f", gates=["bleu>=0.3"], select_by="-wer").problems("x") == []
    assert json.dumps(EvaluationSettings().gates) == "[]"


def test_a_model_without_files_is_no_exported_model(folder: Path) -> None:
    evaluate(folder)
    (folder / "best/weights.bin").unlink()
    with pytest.raises(UserError, match="has no files but"):
        require_exported_model(folder / "best")


def test_a_champion_that_a_function_scored_is_not_compared_by_a_recipe(folder: Path) -> None:
    from evaluations import write_regressions

    evaluate(folder)
    upload_model(UploadSettings(str(folder / "registry"), "mine"), folder / "best", passed=True)
    write_regressions(folder / "own", Dataset(folder / "data"), [0.1])
    with pytest.raises(UserError, match=r"was scored by .*scoring\.py:score"):
        evaluate_checkpoints(settings_in(folder), folder / "data", folder / "own", folder / "second")


def test_a_model_that_a_function_scored_is_not_exported(folder: Path) -> None:
    evaluate(folder)
    with pytest.raises(UserError, match="so the format of its files is not known here") as refused:
        export_model(folder / "best", "mine version 1", Dataset(folder / "data"), ExportSettings("onnx", "out"))
    assert "scoring_function" not in str(refused.value), "nobody can give one to an export"
