"""`gpu_pipelines.evaluate` in a program, and what a notebook shows of results."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from trainings import train_here

import gpu_pipelines
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.drift.check import DriftCheck
from gpu_pipelines.drift.comparison import Finding
from gpu_pipelines.errors import NotFoundError, UserError
from gpu_pipelines.exporting.export import Exported
from gpu_pipelines.notebook_html import MOST_ROWS, curve, link, table
from gpu_pipelines.prediction.outputs import OutputFile, Predictions
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.result import Trial, TuningResult

SETTINGS = TrainingSettings(model="mlp-small", max_steps=4, checkpoint_every_steps=2, epochs=1.0)


@pytest.fixture(scope="module")
def checkpoints(numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("checkpoints")
    train_here(SETTINGS, numbers, str(place))
    return place


class Seen(HTMLParser):
    """What of a page a reader sees, and whether all elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_checkpoints_are_evaluated_as_by_the_step(
    numbers: Path, checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = gpu_pipelines.evaluate(numbers, checkpoints, "evaluated", gates=["rmse<=1e9", "r2>=0.999"], processes=1)
    assert [each["step"] for each in found.checkpoints] == [2, 4]
    assert [gate["passed"] for gate in found.gates] == [True, False, True]
    assert not found.passed
    assert gpu_pipelines.Evaluation.load(tmp_path / "evaluated/model") == found
    read = (tmp_path / "evaluated/model/evaluation.json").read_bytes()
    RemoteFolder(f"memory://{tmp_path.name}/model").write("evaluation.json", read)
    for place in ("model", "model/evaluation.json"):
        assert gpu_pipelines.Evaluation.load(f"memory://{tmp_path.name}/{place}") == found
    with pytest.raises(NotFoundError, match=f"memory://{tmp_path.name}/none is no evaluated model"):
        gpu_pipelines.Evaluation.load(f"memory://{tmp_path.name}/none")
    assert "rmse" in (tmp_path / "evaluated/report.html").read_text()
    seen = Seen(found._repr_html_()).texts
    assert {"rmse", "r2>=0.999", "✗", "✓"} <= set(seen)
    assert f"{found.test['metrics']['rmse']['low']:,.4f}" in seen
    with pytest.raises(UserError, match=r"evaluated has model and report\.html already"):
        gpu_pipelines.evaluate(numbers, checkpoints, "evaluated")
    again = gpu_pipelines.evaluate(numbers, [str(checkpoints)], gates="rmse<=1e9", slice_by=None, processes=1)
    assert (again.passed, again.test) == (True, found.test)


def test_what_cannot_be_evaluated_is_told(numbers: Path, checkpoints: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoints to evaluate"):
        gpu_pipelines.evaluate(numbers, [])
    with pytest.raises(UserError, match=r"There is no parameter 'gate'\. Did you mean 'gates'"):
        gpu_pipelines.evaluate(numbers, checkpoints, gate=["rmse<=1"])
    with pytest.raises(UserError, match="gates takes a list of texts; got 'True'"):
        gpu_pipelines.evaluate(numbers, checkpoints, gates=True)
    with pytest.raises(UserError, match=r"There is no parameter 'regsitry'\. Did you mean 'registry'"):
        gpu_pipelines.predict("digits", "sample:digits", str(tmp_path / "predicted"), regsitry="registry")
    with pytest.raises(UserError, match=r"processes is -1\."):
        gpu_pipelines.evaluate(numbers, checkpoints, processes=-1)
    with pytest.raises(UserError, match="No model is named"):
        gpu_pipelines.predict("", "sample:digits", tmp_path / "predicted")
    with pytest.raises(UserError, match="accuracy"):
        gpu_pipelines.evaluate(numbers, checkpoints, gates=["accuracy>=0.9"])
    with pytest.raises(UserError, match=r"dataset\.json is no folder: File exists"):
        gpu_pipelines.evaluate(numbers, checkpoints, numbers / "dataset.json")
    with pytest.raises((UserError, NotFoundError)):
        gpu_pipelines.evaluate(tmp_path / "nowhere", checkpoints)


@pytest.mark.slow
def test_a_place_is_a_text_or_a_path(numbers: Path, checkpoints: Path, tmp_path: Path) -> None:
    gpu_pipelines.evaluate(numbers, checkpoints, tmp_path, processes=1)
    (tmp_path / "rows.csv").write_text("a,b\n0.1,0.2\n", encoding="utf-8")
    predicted = gpu_pipelines.predict(tmp_path / "model", tmp_path / "rows.csv", tmp_path / "scores")
    assert predicted.rows_predicted == 1
    exported = gpu_pipelines.export(tmp_path / "model", "onnx", tmp_path / "onnx", dataset=numbers)
    assert exported.place == str(tmp_path / "onnx")
    assert gpu_pipelines.open_registry(tmp_path).names() == []


def test_plans_registries_and_searches_are_shown(tmp_path: Path) -> None:
    plan = gpu_pipelines.plan("h100:8", region="us-central1", strategy="spot")
    assert {"1 × a3-highgpu-8g", "8 × h100, 80 GB each", "spot", "us-central1"} <= set(Seen(plan._repr_html_()).texts)
    assert "1 × this machine" in Seen(gpu_pipelines.plan("cpu:2")._repr_html_()).texts
    assert "champion" in Seen(gpu_pipelines.open_registry(str(tmp_path))._repr_html_()).texts
    trials = tuple(
        Trial(number, {"learning_rate": rate}, loss, 0, True, 9, 90, 1.0, ((9, 1.0),), "")
        for number, rate, loss in ((0, 0.1, None), (1, 0.2, 0.75), (2, 0.3, 0.5), (3, 0.4, 0.625))
    )
    result = TuningResult({"learning_rate": 0.3}, tmp_path, 0.5, 2, trials, 4.0, 0.1, "trials", tmp_path)
    seen = Seen(result._repr_html_()).texts
    assert seen[0] == "trial 2 of 4: loss on val 0.5000"
    assert seen.index("★") < seen.index("0.3") < seen.index("0.4")
    assert "loss on val: 0.5 to 0.75" in seen


def test_checks_predictions_and_exports_fit_a_screen() -> None:
    found = [Finding(f"x{number}", "inputs", "KS", 0.0, 0.0, 1.0, True, "1" * 99, "2" * 99) for number in range(400)]
    check = DriftCheck("drift", "drift: …", "regression", {}, "a", False, "", 9, 9, 0, {}, 9, "", 0.01, 0.1, found)
    rejected, files = {f"reason {number}": number for number in range(99)}, [OutputFile("x.jsonl", 1, "0" * 64)] * 999
    predicted = Predictions("regression", {}, "new.csv", "", 9000, 4149, rejected, {}, {"output": "scores"}, files)
    told = {"format": "onnx", "dtype": "f32", "model": "houses version 1", "metric": "rmse", "rows": 39}
    exported = Exported("onnx", {**told, "before": {"rmse": 0.1404}, "after": {"rmse": 0.1405}, "files": {}})
    assert [len(repr(each).splitlines()) for each in (check, predicted, exported)] == [10, 10, 1]
    assert "and 392 more" in repr(check)
    assert repr(predicted).startswith("Predictions of 4,149 of 9,000 rows of new.csv, in scores (999 files)\n")
    assert repr(exported).endswith("as onnx in f32 to onnx: rmse 0.1404 before, 0.1405 after, on 39 test rows")
    assert all(len(repr(each)) < 1200 for each in (check, predicted, exported))


def test_what_is_shown_is_text_and_tables_end() -> None:
    page = table(("<b>",), [["<script>alert(1)</script>"], *[[number] for number in range(MOST_ROWS + 4)]], "a & b")
    seen = Seen(page)
    assert "<script>alert(1)</script>" in seen.texts
    assert "a & b" in seen.texts
    assert seen.texts[-1] == "and 5 more"
    assert 'href="file:///a&quot;b"' in link('file:///a"b', "report")
    # One value is no curve, and none is no place.
    assert curve("x", [1.0, None]) == ""
    assert curve("x", [1.0, None, 1.0]).count("<circle") == 2
