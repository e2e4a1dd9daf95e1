"""BigQuery of the emulator, by Google's own clients: how tables get there, are read, and stay; what is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import requests
import yaml
from conftest import gpu_pipelines
from google.api_core import exceptions
from google.cloud import bigquery
from google.cloud.bigquery import LoadJobConfig, SchemaField
from kfp import compiler
from pipelines_of_tests import prepared
from sample_runs import run_spec

from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.emulator.certificates import Certificates
    from gpu_pipelines.emulator.vertex_api import VertexApi

PROJECT = "example-project"
ROWS = [
    {"text": f"text {number}", "id": number, "tags": ["a", "b"], "inner": {"x": number / 2}} for number in range(25)
]
SCHEMA = [
    *(SchemaField("s", "STRING", "REQUIRED"), SchemaField("i", "INT64"), SchemaField("f", "FLOAT64")),
    *(SchemaField("b", "BOOL"), SchemaField("y", "BYTES"), SchemaField("n", "NUMERIC"), SchemaField("d", "DATE")),
    *(SchemaField("t", "TIMESTAMP"), SchemaField("l", "INT64", "REPEATED"), SchemaField("j", "JSON")),
    SchemaField("r", "RECORD", fields=[SchemaField("x", "STRING")]),
]
WHOLE = {
    "s": "ünï",
    "i": 2**60,
    "f": 0.5,
    "b": True,
    "y": "AAEC",
    "n": "1.25",
    "d": "2026-01-02",
    "t": "2026-01-02T03:04:05.000006Z",
    "l": [1, 2],
    "j": {"a": [1]},
    "r": {"x": "in"},
}


@pytest.fixture
def client(vertex_emulator: VertexApi) -> bigquery.Client:
    """A client that finds the emulator by nothing but the variables, and a dataset."""
    made = bigquery.Client(project=PROJECT)
    made.create_dataset("shop")
    return made


def loaded(client: bigquery.Client, rows: Any = ROWS, table: str = "shop.reviews", **configuration: Any) -> Any:
    given = configuration or {"autodetect": True}
    return client.load_table_from_json(rows, table, job_config=LoadJobConfig(**given)).result()


def test_rows_that_are_loaded_are_read_by_rest_and_by_the_read_api(client: bigquery.Client) -> None:
    assert loaded(client).output_rows == 25
    found = client.get_table("shop.reviews")
    assert found.num_rows == 25
    assert [(field.name, field.field_type, field.mode) for field in found.schema] == [
        ("text", "STRING", "NULLABLE"),
        ("id", "INTEGER", "NULLABLE"),
        ("tags", "STRING", "REPEATED"),
        ("inner", "RECORD", "NULLABLE"),
    ]
    assert [dict(row) for row in client.list_rows("shop.reviews", page_size=7)] == ROWS
    assert client.list_rows("shop.reviews").to_arrow(create_bqstorage_client=True).sort_by("id").to_pylist() == ROWS
    loaded(client)
    assert client.get_table("shop.reviews").num_rows == 50
    loaded(client, ROWS[:2], autodetect=True, write_disposition="WRITE_TRUNCATE")
    assert client.get_table("shop.reviews").num_rows == 2


def test_values_of_every_type_come_back(client: bigquery.Client) -> None:
    client.create_table(bigquery.Table(f"{PROJECT}.shop.whole", schema=SCHEMA))
    loaded(client, [WHOLE, {"s": "only"}], "shop.whole", schema=SCHEMA)
    assert client.insert_rows_json("shop.whole", [{"s": "streamed"}]) == []
    row, empty, _ = client.list_rows("shop.whole")
    assert dict(row) == {
        "s": "ünï",
        "i": 2**60,
        "f": 0.5,
        "b": True,
        "y": b"\x00\x01\x02",
        "n": Decimal("1.25"),
        "d": date(2026, 1, 2),
        "t": datetime(2026, 1, 2, 3, 4, 5, 6, timezone.utc),
        "l": [1, 2],
        "j": {"a": [1]},
        "r": {"x": "in"},
    }
    assert (empty["i"], empty["l"], empty["s"]) == (None, [], "only")
    assert "No such field: none" in str(client.insert_rows_json("shop.whole", [{"s": "x", "none": 1}]))
    assert client.get_table("shop.whole").num_rows == 3


def parquet_of(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("CSV", b"text,id\n" + b"".join(f"text {n},{n}\n".encode() for n in range(25))),
        ("NEWLINE_DELIMITED_JSON", b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)),
        ("PARQUET", parquet_of([{"text": row["text"], "id": row["id"]} for row in ROWS])),
    ],
)
def test_files_of_a_bucket_and_of_this_machine_are_loaded(
    vertex_emulator: VertexApi, client: bigquery.Client, kind: str, content: bytes
) -> None:
    vertex_emulator.storage.put("in/a.file", content)
    vertex_emulator.storage.put("in/b.file", content)
    configuration = LoadJobConfig(source_format=kind, autodetect=True)
    client.load_table_from_uri("gs://example-bucket/in/*.file", "shop.uri", job_config=configuration).result()
    client.load_table_from_file(io.BytesIO(content), "shop.file", job_config=configuration).result()
    read = client.list_rows("shop.file", selected_fields=client.get_table("shop.file").schema[:2])
    assert [tuple(row) for row in read] == [(row["text"], row["id"]) for row in ROWS]
    assert client.get_table("shop.uri").num_rows == 50


def test_a_select_runs_and_all_else_is_refused_by_name(client: bigquery.Client) -> None:
    loaded(client)
    query = f"SELECT text, id FROM `{PROJECT}.shop.reviews` WHERE id < 2 ORDER BY id"
    job = client.query(query)
    assert [tuple(row) for row in job.result()] == [("text 0", 0), ("text 1", 1)]
    # GCPC's component for queries asks there for the end of its job.
    assert client._http.get(job.self_link).json()["status"]["state"] == "DONE"
    (counted,) = client.query_and_wait("WITH few AS (SELECT * FROM `shop.reviews`) SELECT COUNT(*) AS n FROM few")
    assert counted["n"] == 25
    checked = client.query(query, job_config=bigquery.QueryJobConfig(dry_run=True))
    assert checked.statement_type == "SELECT"
    assert checked.total_bytes_processed > 0
    into = bigquery.QueryJobConfig(destination=f"{PROJECT}.shop.few")
    client.query(query, job_config=into).result()
    assert client.get_table("shop.few").num_rows == 2
    for statement in ("DELETE FROM `shop.reviews` WHERE TRUE", "CREATE TABLE shop.x AS SELECT 1"):
        with pytest.raises(exceptions.MethodNotImplemented, match=f"runs no {statement.split()[0]} statements"):
            client.query(statement).result()
    with pytest.raises(exceptions.BadRequest, match="no such column: absent"):
        client.query("SELECT absent FROM `shop.reviews`").result()
    with pytest.raises(exceptions.MethodNotImplemented, match="this job is for copy"):
        client.copy_table("shop.reviews", "shop.copied").result()
    view = bigquery.Table(f"{PROJECT}.shop.view")
    view.view_query = "SELECT 1"
    with pytest.raises(exceptions.MethodNotImplemented, match="no tables with view"):
        client.create_table(view)
    assert [table.table_id for table in client.list_tables("shop")] == ["few", "reviews"]


@pytest.mark.parametrize(
    ("rows", "configuration", "message"),
    [
        ([{"id": "x"}], {"schema": [SchemaField("id", "INT64")]}, "row 1: could not convert the value of id"),
        ([{"id": 1, "more": 1}], {"schema": [SchemaField("id", "INT64")]}, "No such field: more"),
        ([{"id": 1}], {"autodetect": True, "create_disposition": "CREATE_NEVER"}, "Not found: Table"),
    ],
)
def test_a_load_that_fails_says_why_and_changes_nothing(
    client: bigquery.Client, rows: Any, configuration: dict[str, Any], message: str
) -> None:
    with pytest.raises(exceptions.GoogleAPICallError, match=message):
        loaded(client, rows, "shop.new", **configuration)
    assert list(client.list_tables("shop")) == []
    with pytest.raises(exceptions.NotFound, match="Not found: Dataset example-project:none"):
        loaded(client, ROWS, "none.new")


def test_tables_are_there_after_a_restart_and_damage_is_told(
    tmp_path: Path, vertex_certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EmulatorSettings(state=tmp_path, certificates=vertex_certificates)

    def with_client(act: Callable[[bigquery.Client], Any]) -> Any:
        with running_emulator(settings) as emulator:
            for name, value in emulator.environment().items():
                monkeypatch.setenv(name, value)
            return act(bigquery.Client(project=PROJECT))

    def begin(client: bigquery.Client) -> None:
        client.create_dataset("shop")
        loaded(client)
        loaded(client)
        table = client.get_table("shop.reviews")
        table.labels = {"of": "tests"}
        client.update_table(table, ["labels"])
        loaded(client, ROWS, "shop.gone")
        client.delete_table("shop.gone")

    with_client(begin)
    before = with_client(lambda client: client.get_table("shop.reviews"))
    assert with_client(lambda client: [dict(row) for row in client.list_rows("shop.reviews")]) == ROWS * 2
    after = with_client(lambda client: client.get_table("shop.reviews"))
    assert (after.etag, after.modified, after.created) == (before.etag, before.modified, before.created)
    assert after.modified > after.created
    assert with_client(lambda client: client.get_table("shop.reviews").labels) == {"of": "tests"}
    (file,) = (tmp_path / "bigquery").iterdir()
    file.write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"state is damaged: .*reviews"), running_emulator(settings):
        pass


def test_an_account_reads_what_it_may(
    tmp_path: Path, vertex_certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = f"tester@{PROJECT}.iam.gserviceaccount.com"
    file = tmp_path / "permissions.yaml"
    for roles, refused in (("dataViewer", "readsessions.create"), ("dataViewer, roles/bigquery.readSessionUser", "")):
        file.write_text(f"accounts:\n  {account}:\n    roles: [roles/bigquery.{roles}]\n")
        settings = EmulatorSettings(state=tmp_path / "s", certificates=vertex_certificates, permissions=file)
        with running_emulator(settings) as emulator:
            for name, value in emulator.environment().items():
                monkeypatch.setenv(name, value)
            emulator.bigquery().tables.datasets["example-project.shop"] = {}
            emulator.bigquery().tables.put("example-project.shop.reviews", pa.table({"id": [1, 2]}))
            client = bigquery.Client(project=PROJECT)
            assert client.get_table("shop.reviews").num_rows == 2
            with pytest.raises(exceptions.Forbidden, match=r"bigquery\.datasets\.create"):
                client.create_dataset("other")
            reading = client._ensure_bqstorage_client()
            from google.cloud.bigquery_storage_v1 import types

            table = "projects/example-project/datasets/shop/tables/reviews"
            asked = types.ReadSession(table=table, data_format=types.DataFormat.ARROW)
            if refused:
                with pytest.raises(exceptions.PermissionDenied, match=refused):
                    reading.create_read_session(parent=f"projects/{PROJECT}", read_session=asked)
            else:
                session = reading.create_read_session(parent=f"projects/{PROJECT}", read_session=asked)
                assert session.estimated_row_count == 2


def test_a_file_comes_in_pieces_and_a_piece_again(vertex_emulator: VertexApi, client: bigquery.Client) -> None:
    reference = {"projectId": PROJECT, "datasetId": "shop", "tableId": "pieces"}
    load = {"destinationTable": reference, "autodetect": True, "sourceFormat": "NEWLINE_DELIMITED_JSON"}
    at = f"{vertex_emulator.url}/upload/bigquery/v2/projects/{PROJECT}/jobs?uploadType=resumable"
    place = requests.post(at, json={"configuration": {"load": load}}, timeout=60).headers["Location"]
    content = b'{"a": 1}\n{"a": 2}\n'
    for begin, end, whole, status in ((0, 9, "*", 308), (0, 9, "*", 308), (9, 18, "18", 200)):
        told = {"Content-Range": f"bytes {begin}-{end - 1}/{whole}"}
        answer = requests.put(place, data=content[begin:end], headers=told, timeout=60)
        assert answer.status_code == status, answer.text
    assert [row["a"] for row in client.list_rows("shop.pieces")] == [1, 2]


def test_what_fails_for_a_moment_is_asked_for_again(vertex_emulator: VertexApi, client: bigquery.Client) -> None:
    from gpu_pipelines.emulator.faults import Rate

    loaded(client)
    for call in ("GET .*/reviews$", "GRPC ReadRows"):
        vertex_emulator.fail_next(call)
    table = client.get_table("shop.reviews")
    assert client.list_rows(table).to_arrow(create_bqstorage_client=True).num_rows == 25
    vertex_emulator.faults.by_chance([Rate.of("bigquery:403:1")], 0)
    with pytest.raises(exceptions.Forbidden):
        client.get_table("shop.reviews")
    assert requests.get(f"{vertex_emulator.url}/storage/v1/b/example-bucket/o", timeout=60).ok


REVIEWS = [{"id": n, "text": f"{('bad awful', 'good fine')[n % 2]} {n}", "label": "bg"[n % 2]} for n in range(100)]


@pytest.mark.slow
def test_a_step_prepares_a_table(vertex_emulator: VertexApi, client: bigquery.Client, tmp_path: Path) -> None:
    loaded(client, REVIEWS)
    compiler.Compiler().compile(prepared, str(tmp_path / "prepared.yaml"))
    spec = yaml.safe_load((tmp_path / "prepared.yaml").read_text())
    job = run_spec(vertex_emulator, spec, source="bq://example-project.shop.reviews")
    heard = vertex_emulator.state.logs.messages()
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join(heard)
    assert "reading bq://example-project.shop.reviews" in heard
    assert any("kept 100 of 100 rows" in line for line in heard)


SETTINGS = "pipeline_root: gs://example-bucket/runs\nimage: us-docker.pkg.dev/example-project/images/steps:0.1.0\n"
TRAINED = (
    *("-p", "task=text_classification", "-p", "sequence_length=32", "-p", "vocabulary_size=300"),
    *("-p", "global_batch_size=16", "-p", "max_steps=6", "-p", "checkpoint_every_steps=3"),
    *("-p", 'gates=["accuracy>=0"]'),
)


def predicted_by_the_service(emulator: VertexApi) -> Any:
    """Has a batch prediction job predict the table, with the model of the registry and its own server."""
    from google.cloud import aiplatform_v1 as api

    (versions,) = emulator.state.models.versions.values()
    body = {
        "displayName": "scores",
        "model": versions[0].name,
        "inputConfig": {"instancesFormat": "bigquery", "bigquerySource": {"inputUri": f"bq://{PROJECT}.shop.reviews"}},
        "instanceConfig": {"instanceType": "object", "keyField": "id", "excludedFields": ["label"]},
        "outputConfig": {"predictionsFormat": "bigquery", "bigqueryDestination": {"outputUri": f"bq://{PROJECT}.shop"}},
        "dedicatedResources": {"machineSpec": {"machineType": "n1-standard-2"}},
    }
    request = api.CreateBatchPredictionJobRequest(
        parent=f"projects/{PROJECT}/locations/us-central1",
        batch_prediction_job=api.BatchPredictionJob.from_json(json.dumps(body)),
    )
    return emulator.wait(emulator.state.batch_prediction_jobs.create(request).name, 120)


@pytest.mark.slow
def test_pipelines_read_a_table_and_write_one(
    vertex_emulator: VertexApi, client: bigquery.Client, tmp_path: Path
) -> None:
    loaded(client, REVIEWS)
    (tmp_path / "gpu-pipelines.yaml").write_text(SETTINGS)
    given = ("-p", "source=bq://example-project.shop.reviews", "-p", "model_name=reviews", "-p", "registry=vertex://")
    written = ("-p", "output=bq://example-project.shop.scores", "-p", "key_column=id")
    for words in (("train_evaluate_upload", *TRAINED), ("batch_prediction", *written)):
        run = ("run", *words, *given, "--target", "vertex", "--accelerator", "l4:1", "--follow")
        done = gpu_pipelines(*run, cwd=tmp_path)
        assert done.status == 0, done.out + done.err
    rows = {row["key"]: row["prediction"] for row in client.list_rows("shop.scores")}
    assert set(rows) == {str(row["id"]) for row in REVIEWS}
    assert {each["name"] for each in rows["7"]["scores"]} == {"b", "g"}
    assert client.get_table("shop.scores").labels["name"] == "reviews"
    job = predicted_by_the_service(vertex_emulator)
    assert job.completion_stats.successful_count == 100, job.error.message
    table = f"{job.output_info.bigquery_output_dataset}.{job.output_info.bigquery_output_table}"
    for row in client.list_rows(table.removeprefix("bq://")):
        label = json.loads(row["prediction"])["label"]
        assert label == rows[str(row["key"])]["label"], "the server and the step predict alike"
