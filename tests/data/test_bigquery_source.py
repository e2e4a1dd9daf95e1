"""BigQuery as a source, through Google's own clients: columns, filters, queries, and whatever breaks off."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from conftest import storage_emulator, write_photos
from kfp import dsl

from gpu_pipelines.artifacts.dataset import SPLITS, Dataset
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.dag.train_evaluate_upload import places
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import problems_here
from gpu_pipelines.data.sources.bigquery import read_session
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.sources.rows import rows_of
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.sources.sources import open_source
from gpu_pipelines.data.step import run as prepare_step
from gpu_pipelines.errors import UnavailableError, UserError
from gpu_pipelines.targets.vertex.vertex import Vertex

if TYPE_CHECKING:
    from bigquery_api.server import BigQueryApi


NAME = "example-project.texts.labelled"
SOURCE = f"bq://{NAME}"
ROWS = [
    {"text": f"text {number} ünï", "label": "ab"[number % 2], "lang": ("en", "fr", "de")[number % 3], "size": number}
    for number in range(3000)
]


@pytest.fixture
def bigquery(bigquery_server: BigQueryApi, monkeypatch: pytest.MonkeyPatch) -> BigQueryApi:
    """The server with one table and nothing that failed before; small turns, so that streams take several."""
    from gpu_pipelines.emulator.bigquery.tables import StoredTable, Tables

    monkeypatch.setattr(read_session, "_ROWS_IN_TURN", 70)
    bigquery_server.hold(Tables({NAME: StoredTable(pa.Table.from_pylist(ROWS))}))
    return bigquery_server


def settings_of(source: str = SOURCE, **changes: Any) -> PrepareSettings:
    return PrepareSettings(**{"source": source, "task": "text_classification", **changes})


def rows_in(found: SourceFiles) -> list[tuple[str, dict[str, Any]]]:
    meter = Meter(found)
    rows = []
    for _, (where, row) in rows_of(found, [], meter):
        assert isinstance(row, dict)
        rows.append((where, row))
    assert meter.share == 1.0
    return rows


def read(source: str = SOURCE, **changes: Any) -> list[tuple[str, dict[str, Any]]]:
    settings = settings_of(source, **changes)
    assert settings.problems() == problems_here(settings) == []
    return rows_in(open_source(settings, Path("unused")))


def texts_of(rows: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str]]:
    return sorted((row["text"], row["label"]) for _, row in rows)


ALL = sorted((row["text"], row["label"]) for row in ROWS)


def test_every_row_is_read_once_from_several_streams_and_only_the_columns_of_the_task(bigquery: BigQueryApi) -> None:
    records = read()
    assert texts_of(records) == ALL
    (session,) = bigquery.reads.sessions
    assert session.parent == "projects/example-project"
    assert list(session.read_session.read_options.selected_fields) == ["text", "label"]
    places = [where for where, _ in records]
    assert len(set(places)) == 3000
    assert {place.partition(":")[0] for place in places} == {f"{NAME}/stream-{number}" for number in range(4)}
    # By turns, and the same turns whatever pages the rows came in.
    assert places[69:71] == [f"{NAME}/stream-0:69", f"{NAME}/stream-1:0"]
    bigquery.reads.rows_in_page = 33
    assert [row for _, row in read()] == [row for _, row in records]


def test_the_test_source_may_be_a_file(bigquery: BigQueryApi, tmp_path: Path) -> None:
    fixed = tmp_path / "fixed.jsonl"
    fixed.write_text("".join(json.dumps({**row, "text": f"new {row['text']}"}) + "\n" for row in ROWS[:40]))
    manifest = prepare_data(settings_of(test_source=str(fixed)), tmp_path / "dataset")
    assert (manifest.rows_read, manifest.rows("test")) == (3040, 40)


def test_a_row_filter_is_left_to_bigquery(bigquery: BigQueryApi, tmp_path: Path) -> None:
    wanted = sorted((r["text"], r["label"]) for r in ROWS if r["lang"] == "en" and r["size"] < 900)
    assert texts_of(read(row_filter="lang = 'en' AND size < 900")) == wanted
    assert len({stream for stream, _ in bigquery.pages}) == 4
    assert read(row_filter="size < 0") == []
    with pytest.raises(UserError, match=r"holds no texts"):
        prepare_data(settings_of(row_filter="size < 0"), tmp_path)


@pytest.mark.parametrize("fault", [(503, "PAGE 300$"), (503, "PAGE 0$"), (0, "PAGE 400$"), (503, "GRPC ReadRows")])
def test_a_stream_that_breaks_off_goes_on_where_it_was(fault: tuple[int, str], bigquery: BigQueryApi) -> None:
    status, where = fault
    bigquery.fail_next(where, status, times=3)
    records = read()
    assert texts_of(records) == ALL
    assert len({where for where, _ in records}) == 3000
    sent = Counter(bigquery.pages)
    assert max(sent.values()) > 1 or where == "GRPC ReadRows"


def test_no_row_is_lost_where_the_connection_is_cut_in_the_middle_of_a_page(bigquery: BigQueryApi) -> None:
    from gpu_pipelines.emulator.bigquery.tables import StoredTable

    rows = [{"text": f"{number} " + "x" * 20_000, "label": "a"} for number in range(400)]
    bigquery.tables.tables[NAME] = StoredTable(pa.Table.from_pylist(rows))
    bigquery.reads.rows_in_page = 30
    found = open_source(settings_of(), Path("unused"))
    for cut_after in (700_001, 2_000_001, 5_000_001):
        bigquery.cut_after, bigquery.pages = cut_after, []
        assert texts_of(rows_in(found)) == sorted((row["text"], row["label"]) for row in rows)
        assert bigquery.cut_after is None
        # 4 streams of 100 rows, in pages of 30: more than 16 were sent, because some were sent again.
        assert len(bigquery.pages) > 16


def test_requests_that_fail_are_made_again(bigquery: BigQueryApi, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text(f"SELECT text, label FROM `{NAME}`")
    bigquery.fail_next("GRPC CreateReadSession", times=2)
    bigquery.fail_next("GET .*/tables/")
    bigquery.fail_next("GET .*/queries/")
    bigquery.fail_next("POST .*/jobs$", 0)
    assert texts_of(read(str(tmp_path / "q.sql"))) == ALL


def test_a_dataset_from_a_table_is_that_of_the_same_rows_in_a_file(bigquery: BigQueryApi, tmp_path: Path) -> None:
    from gpu_pipelines.emulator.bigquery.tables import StoredTable

    bad = [{"text": "", "label": "a"}, {"text": "same", "label": "b"}, {"text": "same", "label": "b"}]
    rows = [{"text": row["text"], "label": row["label"]} for row in ROWS[:600]] + bad
    bigquery.tables.tables[NAME] = StoredTable(pa.Table.from_pylist(rows))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bigquery.fail_next("PAGE 100$", 0)
    there = prepare_data(settings_of(), tmp_path / "there")
    here = prepare_data(settings_of(str(tmp_path / "rows.jsonl")), tmp_path / "here")
    for made in (there, here):
        assert (made.rows_read, made.records_kept, made.duplicates, made.rejected) == (603, 601, 1, {"no text": 1})
    assert {split: there.rows(split) for split in SPLITS} == {split: here.rows(split) for split in SPLITS}
    assert there.source == SOURCE
    # Both passes read the same session: what is added meanwhile belongs to the next preparation.
    assert len(bigquery.reads.sessions) == 1
    rejected = json.loads((tmp_path / "there/rejected.jsonl").read_text())
    # The 600 rows before it are in four streams of at most 151 rows.
    assert rejected["source"] == f"{NAME}/stream-3:147"
    with pytest.raises(UserError, match=rf"1 × no text \(first: {NAME}/stream-3:147: 'text' is empty"):
        prepare_data(settings_of(max_rejected="0"), tmp_path / "strict")
    with pytest.raises(UserError, match=r"1 × no text \(first: rows.jsonl:601: "):
        prepare_data(settings_of(str(tmp_path / "rows.jsonl"), max_rejected="0"), tmp_path / "strict")


def test_the_artifact_that_googles_components_leave_of_a_table_is_read(bigquery: BigQueryApi, tmp_path: Path) -> None:
    project, dataset, table = NAME.split(".")
    left = dsl.Artifact(
        name="destination_table",
        uri=f"https://www.googleapis.com/bigquery/v2/projects/{project}/datasets/{dataset}/tables/{table}",
        metadata={"projectId": project, "datasetId": dataset, "tableId": table},
    )
    outputs = {"dataset": dsl.Dataset, "report": dsl.HTML, "statistics": dsl.Metrics}
    made = {name: kind(name=name, uri=str(tmp_path / name)) for name, kind in outputs.items()}
    prepare_step(PrepareSettings(task="text_classification"), **made, data=left, advanced={})
    manifest = Dataset(tmp_path / "dataset").manifest
    assert (manifest.source, manifest.records_kept) == (SOURCE, len(ROWS))
    assert manifest.source_fingerprint == source_fingerprint(SOURCE)


def test_a_query_is_checked_first_run_then_and_its_result_read(bigquery: BigQueryApi, tmp_path: Path) -> None:
    path = tmp_path / "short.sql"
    path.write_text(f"SELECT text || '!' AS text, lang AS label FROM `{NAME}` WHERE size < 50")
    records = read(str(path), billing_project="payer-project")
    assert texts_of(records) == sorted((f"{row['text']}!", row["lang"]) for row in ROWS[:50])
    assert records[0][0].startswith("short.sql/stream-0:")
    assert bigquery.reads.sessions[0].parent == "projects/payer-project"
    assert [job.dry_run for job in bigquery.jobs.queries.values()] == [True, True, False]
    path.write_text("DELETE FROM `example-project.texts.labelled` WHERE TRUE")
    assert "is a DELETE, not a SELECT" in problems_here(settings_of(str(path)))[0]
    with pytest.raises(UserError, match="is a DELETE, not a SELECT"):
        open_source(settings_of(str(path)), Path("unused"))
    assert all(job.dry_run for job in bigquery.jobs.queries.values() if "DELETE" in job.query)
    path.write_text(f"SELECT absent FROM `{NAME}`")
    assert "Syntax error: no such column: absent" in problems_here(settings_of(str(path)))[0]
    path.write_text(" \n")
    assert "is empty" in problems_here(settings_of(str(path)))[0]
    assert "does not exist" in problems_here(settings_of(str(tmp_path / "gone.sql")))[0]


def test_prompts_chats_and_json_are_read_as_from_files(bigquery: BigQueryApi) -> None:
    from gpu_pipelines.emulator.bigquery.tables import StoredTable
    from gpu_pipelines.emulator.bigquery.types import JSON

    chat = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    for rows in ([{"messages": chat}], [{"prompt": "1 + 1?", "completion": "2"}]):
        bigquery.tables.tables[NAME] = StoredTable(pa.Table.from_pylist(rows))
        ((_, row),) = read(task="causal_lm")
        assert row == rows[0]
    marked = pa.schema([pa.field("messages", pa.string(), metadata=JSON)])
    texts = [json.dumps(chat), None]
    bigquery.tables.tables[NAME] = StoredTable(pa.Table.from_pylist([{"messages": t} for t in texts], schema=marked))
    assert [row["messages"] for _, row in read(task="causal_lm")] == [chat, None]


def test_the_groups_of_a_language_model_are_read_too(bigquery: BigQueryApi, tmp_path: Path) -> None:
    from gpu_pipelines.emulator.bigquery.tables import StoredTable, Tables

    rows = [{**row, "of": row["size"] // 50} for row in ROWS]
    bigquery.hold(Tables({NAME: StoredTable(pa.Table.from_pylist(rows))}))
    given = {"task": "causal_lm", "group_by": "of", "sequence_length": 8, "vocabulary_size": 300, "packing": False}
    assert read(**given)[0][1].keys() == {"text", "of"}
    (problem,) = problems_here(settings_of(**{**given, "group_by": "user"}))
    assert "has no column 'user'" in problem
    prepare_data(settings_of(**given), tmp_path)
    sizes = [Dataset(tmp_path).manifest.rows(name) for name in SPLITS]
    assert sum(sizes) == len(rows)
    assert all(size % 50 == 0 for size in sizes), "each group is in one split"


def test_a_table_with_images_or_their_addresses(bigquery: BigQueryApi, tmp_path: Path) -> None:
    from gpu_pipelines.emulator.bigquery.tables import StoredTable

    photos = sorted(write_photos(tmp_path / "photos", per_class=20).rglob("*.png"))
    rows = [{"image": path.read_bytes(), "label": path.parent.name} for path in photos]
    bigquery.tables.tables[NAME] = StoredTable(pa.Table.from_pylist(rows))
    made = prepare_data(settings_of(task="image_classification"), tmp_path / "there")
    assert (
        made.class_rows == prepare_data(PrepareSettings(source=str(tmp_path / "photos")), tmp_path / "here").class_rows
    )
    # An address in a bucket is read; a path has no table beside it, and is rejected rather than looked for here.
    with storage_emulator("photos") as uri:
        RemoteFolder(uri).upload(
            tmp_path / "photos", [path.relative_to(tmp_path / "photos").as_posix() for path in photos]
        )
        named = [
            {**row, "image": f"{uri}/{row['label']}/{photo.name}"} for row, photo in zip(rows, photos, strict=True)
        ]
        named.append({"image": str(photos[0]), "label": "red"})
        bigquery.tables.tables[NAME] = StoredTable(pa.Table.from_pylist(named))
        again = prepare_data(settings_of(task="image_classification"), tmp_path / "named")
    assert again.class_rows == made.class_rows
    assert again.rows_rejected == 1
    assert f"{NAME}/stream-3:7 {photos[0]}" in (tmp_path / "named/rejected.jsonl").read_text()


def test_no_more_is_read_ahead_than_a_page_of_each_stream(
    bigquery: BigQueryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class Page(read_session._Page):
        def __init__(self, *_: Any) -> None:
            made.append(self)

    monkeypatch.setattr(read_session, "_Page", Page)
    found = open_source(settings_of(), Path("unused"))
    reading = rows_of(found, [], Meter(found))
    assert next(reading)
    time.sleep(0.5)
    # Of 32 pages one that is read, and one of each stream.
    assert len(made) == 5
    reading.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("bigquery")]


def test_reading_that_is_given_up_waits_for_no_answer(bigquery: BigQueryApi) -> None:
    found = open_source(settings_of(), Path("unused"))
    bigquery.gate.clear()
    try:
        reading = rows_of(found, [], Meter(found))
        assert next(reading)
        time.sleep(0.5)
        started = time.monotonic()
        reading.close()  # type: ignore[attr-defined]
        assert time.monotonic() - started < 5
    finally:
        bigquery.gate.set()


def test_a_stream_that_stays_away_is_given_up(bigquery: BigQueryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_session, "_PATIENCE", 0.5)
    bigquery.fail_next("PAGE 300$", times=100_000)
    try:
        found = open_source(settings_of(), Path("unused"))
        # A step tries it again: it is no mistake of the user's.
        with pytest.raises(UnavailableError, match=f"The table {NAME} could not be read: RetryError: .*") as error:
            rows_in(found)
        assert error.value.remedy == "Run the step again."
    finally:
        bigquery.forget_faults()


def test_what_is_wrong_is_said(bigquery: BigQueryApi, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_pipelines.emulator.bigquery.tables import StoredTable

    assert "bq://PROJECT.DATASET.TABLE" in settings_of("bq://texts.labelled").problems()[0]
    assert "bq://PROJECT.DATASET.TABLE" in settings_of(f"{SOURCE}$20261121").problems()[0]
    assert "row_filter is for a table" in settings_of("data.csv", row_filter="a = 1").problems()[0]
    assert "leave it at auto" in settings_of(source_format="csv").problems()[0]
    gone = problems_here(settings_of(f"{SOURCE}s"))[0]
    assert "does not exist: Not found: Table example-project:texts.labelleds" in gone
    missing = problems_here(settings_of(label_column="kind"))[0]
    assert "no column 'kind'; it has text, label, lang, size" in missing
    with pytest.raises(UserError, match=r"refuses row_filter='size >< 1': request failed: Row filter .* is invalid"):
        open_source(settings_of(row_filter="size >< 1"), Path("unused"))
    denied = "Access Denied: Table example-project:texts.labelled: User does not have permission to query table"
    bigquery.fail_next("GET .*/tables/", 403, message=denied)
    assert f"may not be read: {denied}" in (said := problems_here(settings_of())[0])
    assert "roles/bigquery.dataViewer" in said
    spent = "Custom quota exceeded: Your usage exceeded the custom quota for QueryUsagePerDay, which is set by you"
    bigquery.fail_next("GET .*/tables/", 403, message=spent)
    assert f"could not be read: {spent}" in (said := problems_here(settings_of())[0])
    assert "billing_project" in said
    assert "roles/" not in said, "no role helps"
    bigquery.fail_next("GRPC CreateReadSession", 403, message="request failed: the user does not have permission")
    with pytest.raises(UserError, match=r"may not be read: .*") as error:
        open_source(settings_of(), Path("unused"))
    assert "roles/bigquery.readSessionUser in the project example-project" in error.value.remedy
    bigquery.fail_next("PAGE 200$", 400, message="session expired at 2026-11-21T00:00:00+00:00")
    found = open_source(settings_of(), Path("unused"))
    with pytest.raises(UserError, match=r"cannot be read any more: .*session expired"):
        rows_in(found)
    bigquery.tables.tables[NAME] = StoredTable(pa.Table.from_pylist(ROWS[:1]), is_filtered=True)
    assert "can only be read with a filter on its partitions" in (said := problems_here(settings_of())[0])
    assert "row_filter" in said
    assert not problems_here(settings_of(row_filter="size = 0"))
    bigquery.tables.tables[NAME] = StoredTable(pa.Table.from_pylist(ROWS[:1]), kind="VIEW")
    assert "is a view" in problems_here(settings_of())[0]
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "nowhere.json")
    assert "no usable Google Cloud credentials" in problems_here(settings_of())[0]


def test_the_state_of_a_table_changes_with_it_and_is_unknown_where_bigquery_does_not_tell(
    bigquery: BigQueryApi, tmp_path: Path
) -> None:
    stored = bigquery.tables.tables[NAME]
    path = tmp_path / "q.sql"
    path.write_text(f"SELECT text, label FROM `{NAME}`")
    sources = (SOURCE, str(path))
    seen = [source_fingerprint(source) for source in sources]
    assert seen == [source_fingerprint(source) for source in sources]
    stored.version += 1
    changed = [source_fingerprint(source) for source in sources]
    assert not set(changed) & set(seen)
    path.write_text(f"SELECT text, label FROM `{NAME}` WHERE size > 1")
    assert source_fingerprint(str(path)) not in (seen[1], changed[1])
    path.write_text(f"SELECT text, CURRENT_DATE AS label FROM `{NAME}`")
    assert source_fingerprint(str(path)) != source_fingerprint(str(path))
    stored.streaming = 10
    assert source_fingerprint(SOURCE) != source_fingerprint(SOURCE)


def test_a_table_may_be_the_source_on_vertex_ai() -> None:
    arguments = {"registry": "vertex://"}
    assert Vertex().unreachable(places({**arguments, "source": SOURCE})) == []
    assert Vertex().unreachable(places({**arguments, "source": "gs://bucket/q.sql"})) == []
    assert "gs://BUCKET" in Vertex().unreachable(places({**arguments, "source": "q.sql"}))[0]
