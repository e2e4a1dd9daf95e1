"""Labels that are missing or contradict each other, tables that are no use, and how many rows may be rejected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_photos
from preparing import prepare_alone

from gpu_pipelines.artifacts.dataset import LABEL_CONFLICTS, Manifest
from gpu_pipelines.data import prepare
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import write_report
from gpu_pipelines.data.settings import MISSING_LABELS, PrepareSettings
from gpu_pipelines.data.source_check import problems_here
from gpu_pipelines.data.splits.duplicates import FirstLabels
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.multi_label_classification.labels import classes_of_row
from gpu_pipelines.tasks.preference.compared import BAD, GOOD, judgement
from gpu_pipelines.tasks.tasks import TASKS

SHARES = {"val_fraction": 0.25, "test_fraction": 0.25}


def settings_of(source: Path, **changes: Any) -> PrepareSettings:
    given = {"source": str(source), "task": "text_classification", "vocabulary_size": 300, **SHARES, **changes}
    return PrepareSettings(**given)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_table(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)


ROWS = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(60)]


# Missing labels


def test_labels_that_pandas_takes_for_missing_are_no_classes(tmp_path: Path) -> None:
    named = ["", "nan", "NaN", "NULL", "null", "N/A", "n/a", "NA", "None", "<NA>", "#N/A"]
    rows = [{"text": f"none {number}", "label": label} for number, label in enumerate(named)]
    source = write_rows(tmp_path / "t.jsonl", ROWS + rows)
    manifest = prepare_data(settings_of(source, max_rejected="unlimited"), tmp_path / "out")
    assert manifest.labels == ["a", "b"]
    assert manifest.rejected == {"no label": len(named)}
    assert "'N/A' stands for a missing value; if it is a class, see missing_labels" in (
        tmp_path / "out/rejected.jsonl"
    ).read_text(encoding="utf-8")
    assert set(named) - {""} <= set(MISSING_LABELS)


def test_labels_that_are_meant_can_be_said_to_be(tmp_path: Path) -> None:
    rows = [{"text": f"none {number}", "label": ("None", "NA", "-")[number % 3]} for number in range(60)]
    source = write_rows(tmp_path / "t.jsonl", ROWS + rows)
    every = prepare_data(settings_of(source, missing_labels=""), tmp_path / "all")
    assert every.labels == ["-", "NA", "None", "a", "b"]
    some = prepare_data(settings_of(source, missing_labels="-, NA", max_rejected="50%"), tmp_path / "some")
    assert some.labels == ["None", "a", "b"]


def test_a_folder_of_images_named_none_is_a_class(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=20)
    (photos / "blue").rename(photos / "None")
    manifest = prepare_data(PrepareSettings(source=str(photos), **SHARES), tmp_path / "out")
    assert manifest.labels == ["None", "red"]


# Labels in conflict


def conflicting_photos(folder: Path) -> Path:
    photos = write_photos(folder, per_class=30, classes=("blue", "green", "red"))
    first, second = sorted((photos / "blue").iterdir())[:2]
    shutil.copy(first, photos / "blue/same.png")
    shutil.copy(first, photos / "red/as blue.png")
    shutil.copy(first, photos / "red/as blue too.png")
    shutil.copy(first, photos / "green/as blue.png")
    shutil.copy(second, photos / "red/as blue 2.png")
    return photos


def test_the_same_bytes_in_two_classes_are_counted_and_shown(tmp_path: Path) -> None:
    photos = conflicting_photos(tmp_path / "photos")
    settings = PrepareSettings(source=str(photos), image_size=8, **SHARES)
    prepare_alone(settings, tmp_path / "one", 10 * 3 * 8 * 8)
    manifest = Manifest.from_json(json.loads((tmp_path / "one/dataset.json").read_text()))
    assert (manifest.label_conflicts, manifest.duplicates) == (3, 2)
    lines = [json.loads(line) for line in (tmp_path / "one" / LABEL_CONFLICTS).read_text().splitlines()]
    assert [(line["source"], line["label"], line["other_label"]) for line in lines] == [
        ("green/as blue.png", "green", "blue"),
        ("red/as blue 2.png", "red", "blue"),
        ("red/as blue too.png", "red", "blue"),
    ]
    write_report(tmp_path / "one", tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text()
    assert "The same content in two classes" in report
    assert "green/as blue.png" in report


def test_conflicts_are_rejected_where_that_is_asked_for(tmp_path: Path) -> None:
    photos = conflicting_photos(tmp_path / "photos")
    settings = PrepareSettings(source=str(photos), image_size=8, label_conflicts="reject", **SHARES)
    manifest = prepare_data(settings, tmp_path / "out")
    assert manifest.rejected == {"label conflict": 5}
    assert (manifest.label_conflicts, manifest.duplicates) == (0, 2)
    lines = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "source": "blue/000.png",
        "reason": "label conflict",
        "detail": "the same content is in the class 'green' too",
    }


@pytest.mark.parametrize("task", [name for name, each in TASKS.items() if not each.has_classes])
def test_a_task_without_classes_refuses_what_is_about_them(task: str) -> None:
    problems = PrepareSettings(source="rows.jsonl", task=task, label_conflicts="reject", stratify=True).problems()
    assert f"stratify needs a class for each row, which {task} has not. Leave it out." in problems
    assert f"label_conflicts are of classes, which {task} has not. Leave it out." in problems


def test_first_labels_are_remembered_in_files_as_in_memory(tmp_path: Path) -> None:
    labels = FirstLabels(tmp_path, in_memory=7)
    contents = [number * 7919 % 101 for number in range(300)]
    wanted: dict[int, int] = {}
    expected = [wanted.setdefault(content, number) for number, content in enumerate(contents)]
    found = []
    for start in range(0, 300, 11):
        some = contents[start : start + 11]
        found += labels.add(some, list(range(start, start + len(some))))
    assert found == expected


# Tables that are of no use


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_column_that_is_there_twice_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "t.csv":
        path.write_text("text,label,note,note,label\nx,a,,,b\ny,b,,,a\n")
    else:
        columns = [pa.array(["x", "y"]), pa.array(["a", "b"]), pa.array(["b", "a"])]
        pq.write_table(pa.Table.from_arrays(columns, ["text", "label", "label"]), path)
    with pytest.raises(UserError, match=rf"The table {name} has the column 'label' 2 times"):
        prepare_data(settings_of(path), tmp_path / "out")
    assert "has the column 'label' 2 times" in problems_here(settings_of(path))[0]


def test_a_header_that_comes_again_is_no_row(tmp_path: Path) -> None:
    lines = [f"{row['text']},{row['label']}" for row in ROWS]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *lines[:30], "text,label", *lines[30:]]) + "\n")
    manifest = prepare_data(settings_of(tmp_path / "t.csv"), tmp_path / "out")
    assert (manifest.labels, manifest.rejected) == (["a", "b"], {"malformed row": 1})


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl"])
def test_a_nested_column_of_texts_is_told_as_such(name: str, tmp_path: Path) -> None:
    rows = [{"text": {"body": row["text"]}, "label": row["label"]} for row in ROWS]
    if name == "t.jsonl":
        write_rows(tmp_path / name, rows)
        says = r"No row of .* can be used: no text \(first: t.jsonl:1: 'text' holds a nested value \(dict\)"
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
        says = r"The column 'text' of t.parquet is nested \(struct<body: string>\), but a column of texts is needed"
        assert "is nested" in problems_here(settings_of(tmp_path / name))[0]
    for task in ("text_classification", "causal_lm"):
        with pytest.raises(UserError, match=says) as caught:
            prepare_data(settings_of(tmp_path / name, task=task), tmp_path / "out")
        assert "label column" not in str(caught.value)


def test_what_is_wrong_with_a_source_is_said_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("body;label\nx;a\n")
    assert problems_here(settings_of(tmp_path / "t.csv")) == [
        f"The source {tmp_path}/t.csv has no column 'text'; it has body, label. "
        "Name the columns with -p text_column=… and -p label_column=…. Of pairs of texts, -p text_pair_column=… names "
        "the second one."
    ]
    assert problems_here(settings_of(tmp_path / "t.csv", text_column="body", slice_by="sort")) == [
        f"The source {tmp_path}/t.csv has no column 'sort'; it has body, label. "
        "Name the column with -p slice_by=…, which is 'sort', or leave it out."
    ]
    assert settings_of(tmp_path / "t.csv", text_column="label").problems() == [
        "text_column and label_column both name 'label'. Name a column of its own with each."
    ]
    assert problems_here(settings_of(tmp_path / "t.csv", text_column="body")) == [
        f"The source {tmp_path}/t.csv has a single class, 'a'; a classifier needs at least two. Check the label column."
    ]
    (of_images,) = problems_here(settings_of(tmp_path / "t.csv", task="image_classification"))
    assert "no column 'image'" in of_images
    assert "-p task=text_classification" in of_images
    (tmp_path / "blanks.csv").write_text("text, label\nx, a\n")
    assert "has no column 'label'; it has text, ' label'." in problems_here(settings_of(tmp_path / "blanks.csv"))[0]
    for text, told in (("", "its files are empty."), ("text,label\n", "has no rows.")):
        (tmp_path / "nothing.csv").write_text(text)
        assert told in problems_here(settings_of(tmp_path / "nothing.csv"))[0]
    (tmp_path / "no columns.jsonl").write_text('{"body": "x"}\n')
    assert "no column 'messages'" in problems_here(settings_of(tmp_path / "no columns.jsonl", task="causal_lm"))[0]
    photos = write_photos(tmp_path / "photos", per_class=2, classes=("red",))
    (photos / "blue").mkdir()
    assert "a single class, 'red'" in problems_here(PrepareSettings(source=str(photos)))[0]
    with pytest.raises(UserError, match="a single class, 'red'"):
        prepare_data(PrepareSettings(source=str(photos)), tmp_path / "out")
    shutil.copy(photos / "red/000.png", photos / "blue")
    assert problems_here(PrepareSettings(source=str(photos))) == []


# How many rows may be rejected


def test_a_tenth_of_the_rows_may_be_rejected_unless_more_is_said(tmp_path: Path) -> None:
    for bad, is_fine in ((6, True), (7, False)):
        source = write_rows(tmp_path / "t.jsonl", ROWS + [{"text": "", "label": "a"}] * bad)
        if is_fine:
            assert prepare_data(settings_of(source), tmp_path / "out").rows_rejected == bad
            continue
        with pytest.raises(UserError, match=r"7 of 67 rows .* rejected, more than max_rejected=10%: 7 × no text"):
            prepare_data(settings_of(source), tmp_path / "out")
        for limit in ("unlimited", "", "20%", "7"):
            assert prepare_data(settings_of(source, max_rejected=limit), tmp_path / "out").rows_rejected == bad


def test_whole_numbers_are_the_same_class_in_a_column_of_floats(tmp_path: Path) -> None:
    # What pandas writes where one of the labels is missing, beside a file where none is.
    for name, kind in (("a", pa.int64()), ("b", pa.float64())):
        labels = pa.array([number % 2 for number in range(80)], kind)
        texts = [f"{name} {number}" for number in range(80)]
        pq.write_table(pa.table({"text": texts, "label": labels}), tmp_path / f"{name}.parquet")
    manifest = prepare_data(settings_of(tmp_path), tmp_path / "out")
    assert (manifest.labels, manifest.rows_kept) == (["0", "1"], 160)


@pytest.mark.parametrize("kind", [pa.decimal128(38, 9), pa.decimal256(76, 38)])
def test_numbers_of_sql_are_the_same_class_as_others(kind: pa.DataType, tmp_path: Path) -> None:
    # What BigQuery has for NUMERIC and BIGNUMERIC, and Parquet files of other warehouses.
    labels = pa.array([Decimal((0, 1, 20, "2.5")[number % 4]) for number in range(80)], kind)
    pq.write_table(pa.table({"text": [f"row {n}" for n in range(80)], "label": labels}), tmp_path / "rows.parquet")
    assert prepare_data(settings_of(tmp_path), tmp_path / "out").labels == ["0", "1", "2.5", "20"]


def test_numbers_of_sql_say_yes_and_no() -> None:
    one, zero = Decimal("1.000000000"), Decimal("0E-9")
    settings = settings_of(Path(), task="multi_label_classification", label_column="cat,dog")
    assert classes_of_row({"cat": one, "dog": zero}, settings) == '["cat"]'
    assert (judgement(one), judgement(zero)) == (GOOD, BAD)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_numbers_of_float32_are_the_classes_that_pandas_shows(tmp_path: Path, name: str) -> None:
    labels = pa.array([(0, 0.1, 1e-7, 2.5)[number % 4] for number in range(80)], pa.float32())
    assert labels.to_pandas().astype(str).unique().tolist() == ["0.0", "0.1", "1e-07", "2.5"]
    write_table(pa.table({"text": [f"row {n}" for n in range(80)], "label": labels}), tmp_path / name)
    assert prepare_data(settings_of(tmp_path / name), tmp_path / "out").labels == ["0", "0.1", "1e-07", "2.5"]


def test_a_source_without_any_label_is_refused_with_the_first_row(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "t.jsonl", [{**row, "label": None} for row in ROWS])
    with pytest.raises(UserError, match=r"can be used: no label \(first: t\.jsonl:1\)\.$"):
        prepare_data(settings_of(source), tmp_path / "out")


def test_rows_of_which_no_image_is_looked_at_are_not_called_unreadable_images(tmp_path: Path) -> None:
    image = {"bytes": b"no matter", "path": None}
    for value, labels, says in (
        ([image], ["a", "b"], r"malformed row \(first: t\.parquet:1: the column 'image' holds a nested value \(list\)"),
        (image, [None, None], r"no label \(first: t\.parquet:1\)\.$"),
    ):
        write_table(pa.table({"image": [value] * 2, "label": pa.array(labels, pa.string())}), tmp_path / "t.parquet")
        with pytest.raises(UserError, match=rf"No row of \S+ can be used: {says}"):
            prepare_data(PrepareSettings(source=str(tmp_path / "t.parquet")), tmp_path / "out")


def test_labels_of_bytes_are_no_classes(tmp_path: Path) -> None:
    labels = pa.array([b"ab"[number % 2 :][:1] for number in range(80)], pa.binary())
    pq.write_table(pa.table({"text": [f"row {n}" for n in range(80)], "label": labels}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"no label \(first: rows.parquet:1: the column 'label' holds bytes"):
        prepare_data(settings_of(tmp_path), tmp_path / "out")


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_a_date_after_the_year_9999_rejects_its_row_alone(tmp_path: Path, name: str) -> None:
    days = pa.array([2**25 if n == 5 else n % 2 for n in range(80)], pa.int32()).cast(pa.date32())
    table = pa.table({"text": [f"row {n}" for n in range(80)], "label": days})
    write_table(table, tmp_path / name)
    manifest = prepare_data(settings_of(tmp_path / name), tmp_path / "out")
    assert manifest.labels == ["1970-01-01", "1970-01-02"]
    assert (manifest.rows_read, manifest.rejected) == (80, {"malformed row": 1})
    assert f"{name}:6" in (tmp_path / "out/rejected.jsonl").read_text()


def test_times_of_a_time_zone_that_is_none_are_no_classes(tmp_path: Path) -> None:
    times = pa.array([number % 2 for number in range(80)], pa.timestamp("us", "Mars/Base"))
    pq.write_table(pa.table({"text": [f"row {n}" for n in range(80)], "label": times}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"The file rows\.parquet .*time zone .*Mars/Base"):
        prepare_data(settings_of(tmp_path), tmp_path / "out")


@pytest.mark.parametrize(
    ("task", "of"),
    [
        ("text_classification", lambda name, number: {"text": f"text {number}", "label": name}),
        ("multi_label_classification", lambda name, number: {"text": f"text {number}", "label": [name, "x"]}),
        ("token_classification", lambda name, number: {"tokens": ["of", f"{number}"], "ner_tags": ["O", f"B-{name}"]}),
    ],
)
def test_a_class_that_comes_while_the_source_is_read_is_told(
    task: str, of: Callable[[str, int], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [of("ab"[number % 2], number) for number in range(60)]
    source = write_rows(tmp_path / "rows.jsonl", rows)
    planned = prepare._planned

    def then_another_row(*given: Any) -> Any:
        plan = planned(*given)
        write_rows(source, [*rows, of("new", 60)])
        return plan

    monkeypatch.setattr(prepare, "_planned", then_another_row)
    columns = {"text_column": "tokens", "label_column": "ner_tags"} if task == "token_classification" else {}
    with pytest.raises(UserError, match=r"has changed while it was read: '(B-)?new' was not there the first time"):
        prepare_data(settings_of(source, task=task, **columns), tmp_path / "out")


def test_classes_that_are_no_classes_are_warned_of_in_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": f"text {number}", "label": number + 0.5} for number in range(100)]
    prepare_data(settings_of(write_rows(tmp_path / "rows.jsonl", rows)), tmp_path / "out")
    told = capsys.readouterr().out
    first, second = [line for line in told.splitlines() if line.startswith("warning: ")]
    assert "of the 100 classes have no training rows and cannot be learned: '" in first
    assert "100 rows have 100 classes; numbers are learned by the task regression" in second


def test_classes_that_differ_in_capitals_alone_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": f"text {number}", "label": ("yes", "Yes ", "no")[number % 3]} for number in range(90)]
    prepare_data(settings_of(write_rows(tmp_path / "rows.jsonl", rows)), tmp_path / "out")
    assert "warning: classes that differ in capitals alone: 'Yes' and 'yes'" in capsys.readouterr().out


def test_classes_whose_letters_are_composed_or_not_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # As a Mac writes names of folders, and as everybody else does.
    rows = [{"text": f"text {number}", "label": ("cafe\u0301", "caf\u00e9", "bar")[number % 3]} for number in range(90)]
    prepare_data(settings_of(write_rows(tmp_path / "rows.jsonl", rows)), tmp_path / "out")
    told = "classes that look the same, as their letters are composed or not: 'cafe\u0301' and 'caf\u00e9'"
    assert f"warning: {told}" in capsys.readouterr().out


def test_classes_of_two_files_that_are_the_same_number_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").mkdir()
    for name, labels in {"whole": ["0", "1", "-1"], "with_a_gap": ["0.0", "1.0", "2.5", ""]}.items():
        rows = [f"{name} {number},{labels[number % len(labels)]}" for number in range(80)]
        (tmp_path / f"rows/{name}.csv").write_text("\n".join(["text,label", *rows]))
    settings = PrepareSettings(
        source=str(tmp_path / "rows"), task="text_classification", vocabulary_size=300, max_rejected="unlimited"
    )
    prepare_data(settings, tmp_path / "out")
    assert "warning: classes that are the same number: '0' and '0.0', '1' and '1.0'\n" in capsys.readouterr().out
