"""Predictions of a table in BigQuery as a table in BigQuery, through Google's own clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from predicting import exported, predicted, rejected, write_lines, written

from gpu_pipelines.errors import UserError
from gpu_pipelines.prediction.outputs import Predictions

if TYPE_CHECKING:
    from bigquery_api.server import BigQueryApi


SOURCE, TARGET = "example-project.texts.rows", "example-project.scores.today"
ROWS = [{"text": f"a cat {number} and a bee" * (number % 100 != 3), "id": number} for number in range(1500)]


@pytest.fixture
def bigquery(bigquery_server: BigQueryApi) -> BigQueryApi:
    from gpu_pipelines.emulator.bigquery.tables import StoredTable, Tables

    held = {SOURCE: StoredTable(pa.Table.from_pylist(ROWS))}
    bigquery_server.hold(Tables(held, datasets={"example-project.scores"}))
    bigquery_server.forget_faults()
    return bigquery_server


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("text_classification", tmp_path_factory.mktemp("model") / "model")


def test_a_table_is_predicted_to_a_table(model: Path, tmp_path: Path, bigquery: BigQueryApi) -> None:
    out = tmp_path / "out"
    given = {"output": f"bq://{TARGET}", "key_column": "id", "billing_project": "example-project"}
    done = predicted(model, f"bq://{SOURCE}", out, 200, **given)
    assert (done.rows_read, done.rows_predicted, done.rejected) == (1500, 1485, {"no text": 15})
    stored = bigquery.tables.get(TARGET)
    found = {row["key"]: row["prediction"] for row in stored.rows.to_pylist()}
    assert stored.rows.num_rows == len(found) == 1485
    predicted(model, write_lines(tmp_path / "rows.jsonl", ROWS), tmp_path / "lines", key_column="id")
    for line in written(tmp_path / "lines"):
        row = found[str(line["key"])]
        assert row["label"] == line["prediction"]["label"]
        scores = {each["name"]: each["value"] for each in row["scores"]}
        assert scores == pytest.approx(line["prediction"]["scores"], abs=1e-5)
    assert stored.labels["digest"] == done.model["digest"][:63]
    assert sorted(int(row["key"]) for row in rejected(out)) == list(range(3, 1500, 100))
    assert Predictions.load(out).table == f"bq://{TARGET}"
    assert not Predictions.load(out).files
    (load,) = bigquery.jobs.loads.values()
    assert load.load["writeDisposition"] == "WRITE_TRUNCATE"
    # The next prediction replaces the rows.
    predicted(model, f"bq://{SOURCE}", out, 200, **given, row_filter="id < 100")
    assert bigquery.tables.get(TARGET).rows.num_rows == 99
    assert len(bigquery.jobs.loads) == 2


def test_a_load_that_was_cut_off_is_not_loaded_twice(model: Path, tmp_path: Path, bigquery: BigQueryApi) -> None:
    source = write_lines(tmp_path / "rows.jsonl", ROWS)
    given = {"output": f"bq://{TARGET}", "key_column": "id", "billing_project": "example-project"}
    # The rows are in the table, and the attempt fails after that.
    bigquery.fail_next("PATCH /bigquery", status=403)
    with pytest.raises(UserError, match="may not be written"):
        predicted(model, source, tmp_path / "out", 200, **given)
    assert bigquery.tables.get(TARGET).rows.num_rows == 1485
    predicted(model, source, tmp_path / "out", 200, **given)
    assert bigquery.tables.get(TARGET).rows.num_rows == 1485
    assert bigquery.tables.get(TARGET).version == 1, "it was loaded once"
    # An upload that the service does not take at first is tried again by the client.
    bigquery.fail_next("PUT /upload", times=2)
    predicted(model, source, tmp_path / "out", 200, **given)
    assert bigquery.tables.get(TARGET).rows.num_rows == 1485


def test_a_dataset_that_is_not_there_is_said_before_anything_is_predicted(
    model: Path, tmp_path: Path, bigquery: BigQueryApi, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_lines(tmp_path / "rows.jsonl", ROWS[:5])
    with pytest.raises(UserError, match=r"does not exist"):
        predicted(model, source, tmp_path / "out", output="bq://example-project.gone.today", billing_project="p")
    assert "predicting" not in capsys.readouterr().out
    done = predicted(
        model,
        source,
        tmp_path / "out",
        output="bq://example-project.scores.today",
        billing_project="p",
        max_rejected="1",
    )
    assert done.table == "bq://example-project.scores.today"
    row = bigquery.tables.get(done.table.removeprefix("bq://")).rows.to_pylist()[0]
    assert (row["key"], json.loads(row["instance"])) == ("rows.jsonl:1", {"text": "a cat 0 and a bee"})
