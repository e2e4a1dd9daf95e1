"""Nothing in a source's folder is passed over silently: each file is read, or counted with its reason."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_photos

from gpu_pipelines.artifacts.dataset import Manifest
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import write_report
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import problems_here
from gpu_pipelines.data.sources import compression
from gpu_pipelines.data.sources.file_source import find_files
from gpu_pipelines.data.sources.listing import ABOUT_FILES, DELTA_LOG
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.sources.rows import rows_of
from gpu_pipelines.data.text.sources import TextRecord, labelled_texts
from gpu_pipelines.errors import UserError


def settings_of(source: Path | str, **changes: Any) -> PrepareSettings:
    return PrepareSettings(**{"source": str(source), "task": "text_classification", "vocabulary_size": 300, **changes})


def table(first: int, delimiter: str = ",", rows: int = 30) -> str:
    header = delimiter.join(("label", "text"))
    return header + "\n" + "".join(f"{'ab'[n % 2]}{delimiter}text {first + n}\n" for n in range(rows))


def zipped(content: bytes, name: str = "inside.csv", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("__MACOSX/._inside.csv", b"x")
        archive.writestr(name, content)
    return file.getvalue()


def rows(source: Path | str, **changes: Any) -> list[tuple[str, str]]:
    settings = settings_of(source, **changes)
    assert settings.problems() == problems_here(settings) == []
    found = find_files(settings)
    return [(r.label, str(r.text)) for r in labelled_texts(found, settings, Meter(found)) if not r.problem]


def prepared(source: Path | str, directory: Path, **changes: Any) -> Manifest:
    shares = {"val_fraction": 0.2, "test_fraction": 0.2}
    return prepare_data(settings_of(source, **{**shares, **changes}), directory)


def test_every_table_of_a_folder_is_read_whatever_its_suffix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    tables = {
        "a.csv": table(0).encode(),
        "b.CSV": table(100, ";").encode(),
        "c.tsv": table(200, "\t").encode(),
        "d.csv.bz2": bz2.compress(table(300).encode()),
        "e.csv.xz": lzma.compress(table(400).encode()),
        "f.zip": zipped(table(500).encode()),
        "g.csv.gz": gzip.compress(table(600, "|").encode("utf-16")),
        "part-00000": table(700).encode(),
        "part-00001": table(800).encode(),
    }
    for name, content in tables.items():
        (data / name).write_bytes(content)
    (data / "notes.md").write_text("x")
    (data / "README").write_text("text, label\n")
    (data / "list.txt").write_text("x")
    (data / ".hidden.csv").write_text(table(900))
    (data / ".cache").mkdir()
    (data / ".cache/x.csv").write_text(table(900))
    (data / "gone.csv").symlink_to(tmp_path / "nowhere")
    os.mkfifo(data / "pipe.csv")
    (data / "empty").mkdir()
    (data / "deep").mkdir()
    (data / "deep/linked").symlink_to(tmp_path)
    manifest = prepared(data, tmp_path / "out")
    assert manifest.rows_read == manifest.records_kept == 30 * len(tables)
    assert manifest.files_read == len(tables)
    counted = {reason: said["files"] for reason, said in manifest.files_passed_over.items()}
    assert counted == {
        "hidden": 2,
        "link that leads nowhere": 1,
        "neither a file nor a folder": 1,
        "linked folder below the first level": 1,
        "folder without files": 2,
        "neither its name nor its content tells a format that is read": 2,
        "in the format text, which text_classification does not read": 1,
    }
    assert manifest.files_passed_over["hidden"]["examples"] == [".cache/x.csv", ".hidden.csv"]
    written = json.loads((tmp_path / "out/dataset.json").read_text())
    assert written["files_passed_over"] == manifest.files_passed_over
    assert Manifest.from_json(written) == manifest
    printed = capsys.readouterr().out
    write_report(tmp_path / "out", tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text()
    for reason in counted:
        assert f"× {reason}: " in printed
        assert reason in report
    assert "gone.csv" in report


def test_what_lies_beside_class_folders_is_counted(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=12)
    (photos / "loose.png").write_bytes(b"x")
    (photos / "labels.csv").write_text("x")
    (photos / "green").mkdir()
    (photos / "red/gone.png").symlink_to(tmp_path / "nowhere")
    (photos / "red/more").symlink_to(photos / "blue")
    manifest = prepare_data(PrepareSettings(source=str(photos), val_fraction=0.3, test_fraction=0.3), tmp_path / "out")
    assert manifest.files_passed_over == {
        "beside the class folders": {"files": 1, "examples": ["loose.png"]},
        "table beside the class folders, whose names are the classes; if the table has these, give it as source": {
            "files": 1,
            "examples": ["labels.csv"],
        },
        "folder without files": {"files": 1, "examples": ["green/"]},
        "link that leads nowhere": {"files": 1, "examples": ["red/gone.png"]},
        "linked folder below the first level": {"files": 1, "examples": ["red/more/"]},
    }
    assert manifest.files_read == manifest.rows_read == 24


@pytest.mark.parametrize("place", ["rows", "rows/*", "rows/**"])
def test_what_spark_and_dask_write_beside_rows_is_passed_over(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "rows"
    (folder / "_temporary/0").mkdir(parents=True)
    (folder / "_delta_log").mkdir()
    written: list[Any] = []
    rows = pa.table({"text": [f"text {n}" for n in range(30)], "label": list("ab") * 15})
    pq.write_table(rows, folder / "part-00000-7d.snappy.parquet", metadata_collector=written)
    written[0].set_file_path("part-00000-7d.snappy.parquet")
    pq.write_metadata(rows.schema, folder / "_metadata", written)
    pq.write_metadata(rows.schema, folder / "_common_metadata")
    (folder / "_SUCCESS").touch()
    for name in ("_started_12", "_committed_12", "_delta_log/00000000000000000000.json"):
        (folder / name).write_text('{"added":[],"removed":[]}')
    pq.write_table(rows, folder / "_temporary/0/part-00001.parquet")
    found = find_files(settings_of(tmp_path / place))
    assert found.names == ("part-00000-7d.snappy.parquet",)
    if place != "rows/*":
        assert found.passed_over["_temporary/0/part-00001.parquet"] == ABOUT_FILES
        assert found.passed_over["_delta_log/00000000000000000000.json"] == DELTA_LOG
    assert found.passed_over["_metadata"] == found.passed_over["_SUCCESS"] == ABOUT_FILES


def test_formats_that_are_mixed_in_a_folder_are_refused_as_in_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(table(0, "\t"))
    (tmp_path / "part-0").write_text(json.dumps({"text": "x", "label": "a"}) + "\n")
    for source in (tmp_path, f"{tmp_path}/*"):
        with pytest.raises(UserError, match="several formats: 1 × csv, 1 × jsonl"):
            find_files(settings_of(source))
    found = find_files(settings_of(tmp_path, source_format="jsonl"))
    assert found.names == ("part-0",)
    assert found.passed_over == {"a.tsv": "in the format csv, which is not the one given"}


def test_hidden_files_of_a_bucket_are_counted(tmp_path: Path) -> None:
    from conftest import storage_emulator

    from gpu_pipelines.artifacts.remote_files import RemoteFolder

    for name in ("a.jsonl", ".b.jsonl", "part-0", "notes.md"):
        (tmp_path / name).write_text('{"text": "x", "label": "a"}\n{"text": "y", "label": "b"}\n')
    with storage_emulator("passed-over") as uri:
        RemoteFolder(f"{uri}/data").upload(tmp_path, ["a.jsonl", ".b.jsonl", "part-0", "notes.md"])
        found = find_files(settings_of(f"{uri}/data"))
    assert found.names == ("a.jsonl", "part-0")
    assert set(found.passed_over) == {".b.jsonl", "notes.md"}


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "t.csv.bz2": bz2.compress,
    "t.csv.xz": lzma.compress,
    "t.csv.zip": zipped,
    "t.zip": zipped,
}


@pytest.mark.parametrize("name", PACKED)
def test_a_compressed_file_that_was_cut_off_is_an_error(name: str, tmp_path: Path) -> None:
    whole = PACKED[name](table(0, rows=20_000).encode())
    for kept in (len(whole) // 2, len(whole) - 9):
        (tmp_path / name).write_bytes(whole[:kept])
        with pytest.raises(UserError, match=r"t\.(csv|zip)"):
            find_rows(tmp_path / name, source_format="csv")


def test_zip_archives_that_are_no_single_file_of_a_sane_size_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", table(0))
        archive.writestr("b.csv", table(0))
    with pytest.raises(UserError, match="zip archive of 2 files, and only archives of one file are read; unpack it"):
        find_rows(path)
    monkeypatch.setattr(compression, "_LARGE", 10 << 20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.csv", "w") as member:
        member.write(b"label,text\n")
        for _ in range(20):
            member.write(bytes(1 << 20))
    with pytest.raises(UserError, match="looks like a zip bomb"):
        find_rows(path)


def find_rows(path: Path, **changes: Any) -> list[TextRecord]:
    settings = settings_of(path, **changes)
    found = find_files(settings)
    return list(labelled_texts(found, settings, Meter(found)))


# Delimiters and encodings


@pytest.mark.parametrize(("delimiter", "given"), [(";", ""), ("|", ""), ("\t", ""), ("^", "^"), ("\t", "tab")])
def test_delimiters_are_told_by_the_header_or_given(delimiter: str, given: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(table(0, delimiter))
    assert rows(tmp_path / "t.csv", delimiter=given)[:2] == [("a", "text 0"), ("b", "text 1")]


@pytest.mark.parametrize("first", ["sep=^", "\ufeffsep=^\r", '"sep=^"', "\nSEP=^"])
def test_a_line_of_a_spreadsheet_before_the_header_tells_the_delimiter(first: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"{first}\n{table(0, '^')}", encoding="utf-8")
    found = find_files(settings_of(tmp_path / "t.csv"))
    _, (place, row) = next(rows_of(found, ["text", "label"], Meter(found)))
    assert (place, row) == (f"t.csv:{first.count(chr(10)) + 3}", {"label": "a", "text": "text 0"})
    assert len(rows(tmp_path / "t.csv")) == 30
    # It is no more than a hint.
    (tmp_path / "t.csv").write_text(f"sep=^\n{table(0, ';')}")
    assert rows(tmp_path / "t.csv", delimiter=";")[:2] == [("a", "text 0"), ("b", "text 1")]


def test_a_comma_stays_the_delimiter_where_the_header_has_the_columns_by_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label,a;b;c;d\nx;y,a,1\nz,b,2\n")
    assert rows(tmp_path / "t.csv") == [("a", "x;y"), ("b", "z")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_encodings_with_a_mark_are_told_by_it(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\nünï,ä\nö,b\n", encoding=encoding)
    assert rows(tmp_path / "t.csv") == [("ä", "ünï"), ("b", "ö")]
    (tmp_path / "t.jsonl").write_text('{"text": "ünï", "label": "ä"}\n{"text": "ö", "label": "b"}\n', encoding=encoding)
    assert rows(tmp_path / "t.jsonl") == [("ä", "ünï"), ("b", "ö")]


def test_other_encodings_are_given_and_a_reason_says_so(tmp_path: Path) -> None:
    text = "text,label\nna\u00efve,\u00e4\n\u00f6l,b\nplain,b\nother,a\n"
    (tmp_path / "t.csv").write_text(text, encoding="latin-1")
    assert rows(tmp_path / "t.csv", encoding="latin-1")[:2] == [("ä", "naïve"), ("b", "öl")]
    problems = [record.problem for record in find_rows(tmp_path / "t.csv") if record.problem]
    assert problems[0].reason == "not UTF-8"
    assert problems[0].detail == (
        "the byte 0xef after 'na'; give the encoding of the file, such as encoding=latin-1 or encoding=cp1252"
    )
    (tmp_path / "t.csv").write_bytes(text.encode("cp1252") + b"n\xe4h \x81,b\n")
    with pytest.raises(UserError, match=r"the byte 0x81 after '.*\\nnäh ' is not CP1252; give the encoding"):
        find_rows(tmp_path / "t.csv", encoding="cp1252")
    (tmp_path / "t.csv").write_text(text, encoding="utf-16-le")
    with pytest.raises(UserError, match="UTF-16 without a byte order mark; give encoding=utf-16-le"):
        find_rows(tmp_path / "t.csv")
    assert len(rows(tmp_path / "t.csv", encoding="utf-16-le")) == 4
    (tmp_path / "t.jsonl").write_text('{"text": "naïve", "label": "a"}\n', encoding="latin-1")
    (record,) = find_rows(tmp_path / "t.jsonl")
    assert record.problem is not None
    assert "0xef" in record.problem.detail
    assert "encoding=latin-1" in record.problem.detail


def test_no_encoding_is_asked_for_where_none_can_be_given(tmp_path: Path) -> None:
    bad = pa.array([b"na\xefve"]).view(pa.string())
    pq.write_table(pa.table({"text": bad, "label": ["a"]}), tmp_path / "t.parquet")
    (record,) = find_rows(tmp_path / "t.parquet")
    assert record.problem is not None
    assert record.problem.detail == "the byte 0xef after 'na' is not UTF-8; write the texts of the file as UTF-8"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("delimiter", ";;", "give one character"),
        ("delimiter", '"', "give one character"),
        ("encoding", "latin-99", "such as latin-1"),
        ("encoding", "rot13", "such as latin-1"),
        ("label_conflicts", "drop", "keep or reject"),
        ("max_rejected", "many", "or unlimited"),
        ("max_rejected", "200%", "or unlimited"),
    ],
)
def test_values_that_mean_nothing_are_refused(name: str, value: str, says: str) -> None:
    (problem,) = settings_of("x.csv", **{name: value}).problems()
    assert name in problem
    assert says in problem


def test_a_delimiter_or_an_encoding_of_what_has_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"text": "x", "label": "a"}\n')
    assert "is jsonl, not CSV" in problems_here(settings_of(tmp_path / "t.jsonl", delimiter=";"))[0]
    photos = write_photos(tmp_path / "photos", per_class=1)
    with pytest.raises(UserError, match="is images, not text"):
        find_files(PrepareSettings(source=str(photos), encoding="latin-1"))
    with pytest.raises(UserError, match="not a table that names images"):
        find_files(PrepareSettings(source=str(photos), image_root=str(photos)))
