"""The pipeline `batch_prediction` and the command `models predict`, with the model of the quickstart."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from conftest import gpu_pipelines, newest_run
from forked import Forked

import gpu_pipelines as package
from gpu_pipelines.prediction.outputs import Predictions

PIPELINE = "batch_prediction"


def lines(folder: Path) -> list[dict[str, Any]]:
    found = Predictions.load(folder)
    return [json.loads(line) for file in found.files for line in (folder / file.path).read_text().splitlines()]


def require_digits(folder: Path) -> None:
    """All 1,797 digits in the order of their files, nearly all of them right."""
    found = lines(folder)
    assert len(found) == len({row["key"] for row in found}) == 1797
    # The sample's folders are its classes.
    right = sum(row["key"].split("/")[0] == row["prediction"]["label"] for row in found)
    assert right / 1797 > 0.9
    assert [row["key"] for row in found] == sorted(row["key"] for row in found)


@pytest.mark.slow
def test_the_pipeline_runs_here_with_the_model_of_the_quickstart(digits_run: Path, tmp_path: Path) -> None:
    registry = ("-p", f"registry={digits_run / 'registry'}")
    done = gpu_pipelines("run", PIPELINE, *registry, "-p", "top_k=3", "-p", "rows_per_file=1024", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert "predicted 1,797 of 1,797 rows, rejected 0: 2 files in " in done.out
    run = newest_run(tmp_path)
    place = Path(run["artifacts"]["predictions"])
    require_digits(place)
    model = Predictions.load(place).model
    assert (model["name"], model["version"], model["aliases"]) == ("digits", 1, ["challenger", "champion"])
    report = Path(run["artifacts"]["report"]).read_text(encoding="utf-8")
    assert "Predicted classes" in report
    assert "digits version 1" in report
    assert run["metrics"]["rows_predicted"] == 1797
    assert run["key_metric"] == "rows_predicted"
    assert not list(tmp_path.glob("runs/.unfinished/*")), "what is finished is not kept"
    # Nothing of it is taken for the next run, in which the champion may be another.
    again = gpu_pipelines("run", PIPELINE, *registry, "-p", f"output={tmp_path / 'out'}", "--cache", cwd=tmp_path)
    assert again.status == 0, again.out + again.err
    assert "reused" not in again.out
    require_digits(tmp_path / "out")


def test_the_command_and_the_function_predict_without_a_pipeline(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ("--registry", str(digits_run / "registry"))
    source = ("--source", "sample:digits", "--output", "out")
    done = command("models", "predict", "digits@champion", *source, *registry, "-p", "top_k=1", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    document = json.loads(done.out)
    assert (document["rows_predicted"], document["model"]["version"]) == (1797, 1)
    assert "predicting sample:digits with digits version 1" in done.err
    require_digits(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    found = package.predict("digits", "sample:digits", "parquet", registry=registry[1], output_format="parquet")
    assert found.files[0].path == "predictions-00000-of-00001.parquet"
    assert found.labels == document["labels"]
    dated = command(
        "models", "predict", "digits", "--source", "sample:digits", "--output", "{date}", *registry, cwd=tmp_path
    )
    (folder,) = tmp_path.glob("20*")
    assert dated.out.endswith(f"1 file in {folder.name}\n"), dated.out + dated.err


@pytest.mark.slow_but_for("out")
@pytest.mark.parametrize("full", ["out", "runs"])
def test_a_full_disk_is_named(digits_run: Path, tmp_path: Path, full: str) -> None:
    (tmp_path / full).mkdir()
    given = ("models", "predict", "digits", "--source", "sample:digits", "--output", "out")
    registry, disk = ("--registry", str(digits_run / "registry")), (tmp_path / full, "32k")
    process = Forked("gpu_pipelines.cli.main", (*given, *registry), os.environ, cwd=tmp_path, disk=disk)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert f"could not be written on the disk of {tmp_path / full}" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digit@champion"], "There is no model 'digit'"),
        (["digits@best"], "has no version or alias 'best'"),
        (["digits", "-p", "top=1"], "There is no parameter 'top'. Did you mean 'top_k'?"),
        (["digits", "--format", "csv"], "output_format is 'csv'; give jsonl or parquet"),
        (["digits", "--source", "gone"], "The source gone does not exist"),
        (["digits", "--output", ""], "output is empty"),
        (["digits", "-p", "ray_address=127.0.0.1:1"], "No Ray cluster can be used at 127.0.0.1:1"),
        (["digits", "-p", "device=gpu"], "PyTorch sees no GPU here"),
        (["digits", "--key-column", "id"], "which has no columns"),
        (["digits", "-p", "key_column=id"], "key_column is 'id'"),
        (["digits", "--source", "gs://b/in", "--output", "gs://b/in/out"], "lies in the data gs://b/in: it would be"),
    ],
)
def test_wrong_requests_are_told_without_a_traceback(
    digits_run: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    given = {"--source": "sample:digits", "--output": "out", "--registry": str(digits_run / "registry")}
    others = [part for name, value in given.items() if name not in arguments for part in (name, value)]
    done = command("models", "predict", *arguments, *others, cwd=tmp_path)
    assert done.status == 2, done.out + done.err
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_prediction_that_rejects_too_many_rows_has_run_and_failed(digits_run: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/one.png").write_text("no image")
    given = ("--source", "photos", "--output", "out", "--registry", str(digits_run / "registry"))
    done = command("models", "predict", "digits", *given, cwd=tmp_path)
    assert done.status == 1, done.out + done.err
    assert "1 of 1 rows of photos were rejected, more than max_rejected=10%" in done.err


def test_a_request_that_cannot_be_is_refused_before_it_runs(digits_run: Path, tmp_path: Path) -> None:
    given = ("-p", f"registry={digits_run / 'registry'}", "-p", "model_name=digits")
    for more, message in (
        ("model_version=best", "has no version or alias 'best'"),
        ("output=bq://here", "a table is bq://PROJECT.DATASET.TABLE"),
        ("epochs=3", "There is no parameter 'epochs'"),
    ):
        done = command("run", PIPELINE, *given, "-p", more, cwd=tmp_path)
        assert done.status == 2, done.out + done.err
        assert message in done.err
    assert not (tmp_path / "runs").exists()
    on_nodes = ("--target", "vertex", "--accelerator", "l4:1", "--nodes", "2")
    done = command("compile", PIPELINE, *on_nodes, "-o", "file.yaml", cwd=tmp_path)
    assert (done.status, "batch_prediction runs on one machine, not on 2" in done.err) == (2, True), done.err


def test_a_source_around_the_runs_is_told_by_what_would_be_in_it(tmp_path: Path) -> None:
    done = command("run", PIPELINE, "-p", "source=.", cwd=tmp_path)
    assert (done.status, "Runs write to runs, which lies in the data ." in done.err) == (2, True), done.err
