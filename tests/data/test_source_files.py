"""Which files a source is: paths, folders and patterns, here and in Cloud Storage, in every format and compression."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_photos

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.remote_files import RemoteFolder, folders_in
from gpu_pipelines.dag.train_evaluate_upload import places
from gpu_pipelines.data.images.sources import Record, image_records
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import problems_here
from gpu_pipelines.data.sources.file_source import find_files
from gpu_pipelines.data.sources.files import format_of
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.data.sources.listing import is_listed_in
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.sources.rows import columns_read
from gpu_pipelines.data.text.sources import labelled_texts, plain_texts
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.vertex.vertex import Vertex

ROWS = [{"text": f"text {number} ünï", "label": "ab"[number % 2]} for number in range(50)]


def upload(folder: Path, uri: str) -> str:
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    RemoteFolder(uri).upload(folder, names)
    return uri


def settings_of(source: Path | str, **changes: Any) -> PrepareSettings:
    return PrepareSettings(**{"source": str(source), "task": "text_classification", **changes})


def read(source: Path | str, **changes: Any) -> list[tuple[str, str, str]]:
    settings = settings_of(source, **changes)
    assert settings.problems() == []
    found = find_files(settings)
    meter = Meter(found)
    if settings.task == "causal_lm":
        columns = ("text",) if found.format == "text" else columns_read(found, settings)
        texts = plain_texts(found, settings, meter, columns)
    else:
        texts = labelled_texts(found, settings, meter)
    records = [(r.source, str(r.text), r.label) for r in texts]
    assert meter.share == 1.0
    return records


def images(source: Path | str, **changes: Any) -> list[Record]:
    settings = settings_of(source, task="image_classification", **changes)
    found = find_files(settings)
    return list(image_records(found, settings, Meter(found)))


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


def as_jsonl(rows: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_csv(rows: list[dict[str, str]]) -> bytes:
    return ("label,text\n" + "".join(f'{row["label"]},"{row["text"]}"\n' for row in rows)).encode()


def as_parquet(rows: list[dict[str, str]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=7)
    return file.getvalue()


def as_arrow(rows: list[dict[str, str]], new: Callable[..., Any] = pa.ipc.new_file) -> bytes:
    table = pa.Table.from_pylist(rows)
    file = io.BytesIO()
    with new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return file.getvalue()


FORMATS: dict[str, Callable[[list[dict[str, str]]], bytes]] = {
    "t.jsonl": as_jsonl,
    "t.ndjson": as_jsonl,
    "t.jsonl.gz": lambda rows: gzip.compress(as_jsonl(rows[:20])) + gzip.compress(as_jsonl(rows[20:])),
    "t.jsonl.zst": lambda rows: zstd(as_jsonl(rows)),
    "t.csv": as_csv,
    "t.csv.gz": lambda rows: gzip.compress(as_csv(rows)),
    "t.parquet": as_parquet,
    "t.arrow": as_arrow,
    "t.feather": lambda rows: as_arrow(rows, pa.ipc.new_stream),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows_here_and_in_a_bucket(name: str, tmp_path: Path, bucket: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(FORMATS[name](ROWS))
    wanted = [(row["text"], row["label"]) for row in ROWS]
    upload(tmp_path / "data", f"{bucket}/{name}")
    for source in (tmp_path / "data" / name, tmp_path / "data", f"{bucket}/{name}/{name}", f"{bucket}/{name}/*"):
        found = read(source)
        assert [(text, label) for _, text, label in found] == wanted, source
        assert found[0][0].startswith(f"{name}:")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("t.json", as_jsonl),
        ("t.json", lambda rows: json.dumps(rows).encode()),
        ("t.json", lambda rows: b"\xef\xbb\xbf\n" + json.dumps(rows, indent=2).encode()),
        ("t.json", lambda rows: json.dumps(rows, indent=2).encode("utf-16")),
        ("t.json.gz", lambda rows: gzip.compress(json.dumps(rows).encode())),
        ("part-0", lambda rows: json.dumps(rows, indent=1).encode()),
    ],
    ids=["lines", "list", "list over several lines", "UTF-16", "compressed", "without a suffix"],
)
def test_rows_of_json_stand_in_lines_or_in_a_list(name: str, written: Any, tmp_path: Path, bucket: str) -> None:
    # One is longer than what is read at once.
    rows = [*ROWS, {"text": "a long one " * 20_000, "label": "x"}, {"text": "the last", "label": "x"}]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(written(rows))
    upload(tmp_path / "data", f"{bucket}/json")
    for source in (tmp_path / "data" / name, f"{bucket}/json/{name}", f"{bucket}/json/*{name[1:]}"):
        found = read(source)
        assert [(text, label) for _, text, label in found] == [(row["text"], row["label"]) for row in rows], source
        assert found[16][0] == f"{name}:17"


@pytest.mark.parametrize("task", ["text_classification", "image_classification", "causal_lm"])
def test_json_that_is_no_rows_says_how_rows_are_written(task: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"data": ROWS}, indent=1))
    with pytest.raises(UserError) as caught:
        find_files(settings_of(tmp_path / "t.json", task=task))
    assert caught.value.remedy == (
        "Write its rows as JSON objects, one to a line or all in one list; if an object has the list, write only that."
    )
    (tmp_path / "t.json").write_text(json.dumps(ROWS, indent=1))
    assert find_files(settings_of(tmp_path / "t.json", task=task)).format == "jsonl"


@pytest.mark.parametrize(("name", "pattern"), [("part-0.json", "*.json"), ("day/part-0.json.gz", "**/*.json.*")])
def test_a_folder_with_rows_in_json_alone_is_answered_with_a_pattern(tmp_path: Path, name: str, pattern: str) -> None:
    """As Spark and BigQuery write them."""
    path = tmp_path / "rows" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(as_jsonl(ROWS)) if name.endswith("gz") else as_jsonl(ROWS))
    with pytest.raises(UserError) as caught:
        find_files(settings_of(tmp_path / "rows", task="text_classification"))
    place = f"{tmp_path}/rows/{pattern}"
    assert f"If these hold rows, give -p source='{place}'." in caught.value.remedy
    assert find_files(settings_of(place, task="text_classification")).names == (name,)


@pytest.mark.parametrize("suffix", ["", ".json"])
@pytest.mark.parametrize("empty", [b"", b"[]\n", gzip.compress(b"")], ids=["empty", "list", "compressed"])
def test_files_without_rows_are_of_the_format_of_those_beside_them(suffix: str, empty: bytes, tmp_path: Path) -> None:
    for number, content in enumerate((empty, as_jsonl(ROWS), empty)):
        (tmp_path / f"part-0000{number}-4c{suffix}").write_bytes(content)
    assert len(read(tmp_path / "part-*")) == len(ROWS)


def test_a_list_of_rows_is_damaged_as_a_whole_and_not_shorter(tmp_path: Path) -> None:
    whole, source = json.dumps(ROWS), tmp_path / "t.json"
    for content, why in (
        (whole[:-1], "after 49 rows of a list the next one"),
        (whole[: len(whole) // 2], "the next one cannot be read: "),
        (whole.replace("}, {", "} {", 1), "after 1 rows of a list"),
        (whole + whole, "something follows the list of 50 rows"),
    ):
        source.write_text(content)
        with pytest.raises(UserError, match=f"t.json is not JSON lines that can be read: .*{why}"):
            read(source)
    source.write_text(whole.replace("}, {", "}, 7, {", 1))
    assert len(read(source)) == 51
    (tmp_path / "t.jsonl").write_bytes(as_jsonl(ROWS))
    # In a folder it may be about the data.
    assert len(read(tmp_path)) == 50


@pytest.mark.parametrize("task", ["text_classification", "regression", "causal_lm"])
def test_the_columns_are_those_of_the_first_file_with_rows(task: str, tmp_path: Path) -> None:
    """Spark writes its first file even if it has no rows for it."""
    (tmp_path / "part-0.jsonl").touch()
    (tmp_path / "part-1.jsonl").write_text("\n")
    (tmp_path / "part-2.jsonl").write_bytes(as_jsonl(ROWS))
    settings = settings_of(tmp_path, task=task)
    assert problems_here(settings) == []
    assert "text" in columns_read(find_files(settings), settings)


def test_a_format_that_no_suffix_tells_can_be_given(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"part-0000{number}").write_bytes(gzip.compress(as_jsonl(ROWS[number::2])))
    (tmp_path / "_SUCCESS.crc").write_bytes(b"x")
    assert len(read(tmp_path, source_format="jsonl")) == 50
    assert len(read(tmp_path / "part-*", source_format="jsonl")) == 50
    assert settings_of(tmp_path, source_format="tar").problems()


def test_a_pattern_takes_files_in_their_order_and_no_others(tmp_path: Path, bucket: str) -> None:
    for number, name in enumerate(("b/2.jsonl", "b/1.jsonl", "a/9.jsonl", "a/9.csv", "a/.hidden.jsonl")):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_jsonl([{"text": f"of {number}", "label": "x"}]))
    upload(tmp_path / "data", f"{bucket}/patterns")
    for root in (str(tmp_path / "data"), f"{bucket}/patterns"):
        assert [text for _, text, _ in read(f"{root}/*/*.jsonl")] == ["of 2", "of 1", "of 0"]
        assert [text for _, text, _ in read(f"{root}/b/[1-5].jsonl")] == ["of 1", "of 0"]
        assert [where for where, _, _ in read(f"{root}/**/9.jsonl")] == ["a/9.jsonl:1"]
        with pytest.raises(UserError, match="several formats: 1 × csv, 1 × jsonl"):
            find_files(settings_of(f"{root}/a/9.*"))
        assert "No file matches" in problems_here(settings_of(f"{root}/*.txt"))[0]
        assert "does not exist" in problems_here(settings_of(f"{root}/nowhere"))[0]


def test_a_pipe_is_refused_before_it_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    assert problems_here(settings_of(f"{tmp_path}/rows.jsonl")) == [
        f"The source {tmp_path}/rows.jsonl is a pipe or a device. Give a file, or a folder."
    ]


def test_a_name_with_brackets_is_a_file_if_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "t[1].jsonl").write_bytes(as_jsonl(ROWS))
    assert len(read(tmp_path / "t[1].jsonl")) == 50


def test_text_files_are_read_document_by_document(tmp_path: Path, bucket: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_bytes("\ufeffone\r\n\r\n \r\n\r\ntwo\r\nlines\r\n".encode())
    (tmp_path / "data/b.txt.zst").write_bytes(zstd(b"\n\nthree\n\n"))
    upload(tmp_path / "data", f"{bucket}/documents")
    for source in (tmp_path / "data", f"{bucket}/documents"):
        found = read(source, task="causal_lm")
        assert [text for _, text, _ in found] == ["one", "two\r\nlines", "three"]
        assert [where for where, _, _ in found] == ["a.txt:1", "a.txt:5", "b.txt.zst:3"]


def test_images_of_a_bucket_are_those_of_the_folder(tmp_path: Path, bucket: str) -> None:
    photos = write_photos(tmp_path / "photos", per_class=4)
    (photos / "loose.png").write_bytes(b"x")
    wanted = [(f"{kind}/{n:03}.png", kind) for kind in ("blue", "red") for n in range(4)]
    upload(photos, f"{bucket}/photos")
    for root in (str(photos), f"{bucket}/photos", f"{bucket}/photos/"):
        found = images(root)
        assert [(record.source, record.label) for record in found] == wanted
        assert found[-1].read() == (photos / "red/003.png").read_bytes()
    for root in (str(photos), f"{bucket}/photos"):
        assert [(r.source, r.label) for r in images(f"{root}/*/*.png")] == wanted
        assert [(r.source, r.label) for r in images(f"{root}/red/*1.png")] == [("001.png", "red")]
    assert not images(f"{bucket}/photos")[0].source.startswith("gs://")


@pytest.mark.parametrize("marker", [b"", b"placeholder"])
def test_what_marks_a_folder_of_a_bucket_is_no_file(marker: bytes, tmp_path: Path, bucket: str) -> None:
    # As the console of Cloud Storage makes folders, and other programs, not all of them without content.
    folder = f"marked-{len(marker)}"
    upload(write_photos(tmp_path / "photos", per_class=4), f"{bucket}/{folder}")
    files = RemoteFolder(f"{bucket}/{folder}")
    for name in ("", "blue/", "empty/"):
        files.write(name, marker)
    assert files.read("empty/") == marker
    assert not {"", "blue/", "empty/"} & {*files.names(), *files.sizes()}
    assert [record.label for record in images(f"{bucket}/{folder}")] == ["blue"] * 4 + ["red"] * 4
    assert folders_in(f"{bucket}/{folder}") == ["blue", "empty", "red"]


def test_a_file_that_has_gone_since_it_was_listed_is_named(tmp_path: Path, bucket: str) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone/rows.jsonl").write_text(json.dumps({"text": "x", "label": "y"}))
    place = upload(tmp_path / "gone", f"{bucket}/gone")
    for root in (f"{tmp_path}/gone", place):
        settings = settings_of(root)
        found = find_files(settings)
        if root == place:
            RemoteFolder(root).delete(["rows.jsonl"])
        else:
            (tmp_path / "gone/rows.jsonl").unlink()
        with pytest.raises(UserError, match=r"^The file rows.jsonl cannot be read: No such file or directory\.$"):
            list(labelled_texts(found, settings, Meter(found)))


def test_a_table_names_images_beside_itself_or_in_a_bucket(tmp_path: Path, bucket: str) -> None:
    photos = write_photos(tmp_path / "photos", per_class=1)
    uri = upload(photos, f"{bucket}/named")
    rows = [
        {"image": "red/000.png", "label": "red"},
        {"image": f"{uri}/blue/000.png", "label": "blue"},
        {"image": "red\\000.png", "label": "red"},
        {"image": "file:///etc/passwd", "label": "x"},
        {"image": f"{uri}/gone.png", "label": "x"},
    ]
    (photos / "t.jsonl").write_bytes(as_jsonl(rows))
    upload(photos, f"{bucket}/named")
    for table in (photos / "t.jsonl", f"{uri}/t.jsonl"):
        found = images(table)
        assert [r.read() for r in found[:3]] == [(photos / f"{k}/000.png").read_bytes() for k in ("red", "blue", "red")]
        for record in found[3:]:
            with pytest.raises(OSError):
                record.read()


def tar_of(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


SHARD = {
    "a/0001.jpg": b"one",
    "a/0001.cls": b"7\n",
    "a/0002.PNG": b"two",
    "a/0002.json": json.dumps({"kind": "cat", "label": "no"}).encode(),
    "a/0003.left.webp": b"three",
    "a/0003.cls": b"9",
    "b/0003.cls": b"8",
    "b/0004.jpg": b"four",
    "b/0004.json": b"[1]",
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd], ids=["plain", "gzip", "zstd"])
def test_tar_shards_give_images_with_the_labels_beside_them(
    pack: Callable[[bytes], bytes], tmp_path: Path, bucket: str
) -> None:
    (tmp_path / "data").mkdir()
    for number in range(2):
        (tmp_path / f"data/part-{number}.tar").write_bytes(pack(tar_of(SHARD)))
    upload(tmp_path / "data", f"{bucket}/{pack.__name__}")
    for source in (tmp_path / "data", f"{bucket}/{pack.__name__}/part-*.tar"):
        found = images(source, label_column="kind")
        assert [r.source for r in found][:6] == [
            f"part-0.tar:{key}" for key in ("a/0001", "a/0002", "a/0003", "b/0003", "b/0004")
        ] + ["part-1.tar:a/0001"]
        assert [r.label for r in found][:5] == ["7", "cat", "9", "", ""]
        assert [r.problem and r.problem.detail for r in found][3] == "no image, but .cls"
        assert [r.read() for r in found[:3]] == [b"one", b"two", b"three"]


def shard_with_described_images(folder: Path) -> Path:
    shard = {}
    for number, path in enumerate(sorted(write_photos(folder / "photos", per_class=30).rglob("*.png"))):
        said = {"colour": path.parent.name, "cam": "xy"[number % 2], "height": number, "width": number / 4}
        shard |= {f"{number:04}.png": path.read_bytes(), f"{number:04}.json": json.dumps(said).encode()}
    (folder / "t.tar").write_bytes(tar_of(shard))
    return folder / "t.tar"


def test_tar_shards_give_slices_and_the_numbers_of_a_regression_from_what_is_said_of_an_image(tmp_path: Path) -> None:
    source = str(shard_with_described_images(tmp_path))
    settings = PrepareSettings(source=source, label_column="colour", slice_by="cam")
    prepare_data(settings, tmp_path / "classes")
    assert set(Dataset(tmp_path / "classes").slice_values("train", "cam")) == {"x", "y"}
    wrong = replace(settings, slice_by="camera")
    assert "no column 'camera'; it has image, colour, cam, height, width. Name the" in problems_here(wrong)[0]
    prepare_data(PrepareSettings(source=source, task="regression", label_column="height,width"), tmp_path / "numbers")
    train = Dataset(tmp_path / "numbers").split("train")
    rows = range(len(train))
    numbers = [int(place.partition(":")[2]) for place in train.sources(rows)]
    assert train.take(np.array(rows))["target"].tolist() == [[number, number / 4] for number in numbers]


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.jsonl.zst", "t.csv.gz", "t.parquet", "t.arrow", "t.tar"])
def test_a_file_that_was_cut_off_is_an_error_and_no_shorter_file(name: str, tmp_path: Path) -> None:
    whole = tar_of(SHARD) if name == "t.tar" else FORMATS[name](ROWS * 100)
    task = "image_classification" if name == "t.tar" else "text_classification"
    # The last bytes of a tar file are empty blocks that nobody misses; after 4,608 bytes it ends between two files.
    for kept in (len(whole) // 3, len(whole) // 2, 4608 if name == "t.tar" else len(whole) - 9):
        (tmp_path / name).write_bytes(whole[:kept])
        with pytest.raises(UserError, match=f"{name} is not .* that can be read"):
            images(tmp_path / name) if name == "t.tar" else read(tmp_path / name, task=task)


def test_the_state_of_a_source_changes_with_its_files(tmp_path: Path, bucket: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.jsonl").write_bytes(as_jsonl(ROWS))
    uri = upload(tmp_path / "data", f"{bucket}/state")
    seen = []
    for _ in range(2):
        sources = (str(tmp_path / "data"), f"{tmp_path}/data/*.jsonl", uri, f"{uri}/*.jsonl")
        seen.append([source_fingerprint(source) for source in sources])
        assert seen[-1] == [source_fingerprint(source) for source in sources]
        (tmp_path / "data/a.jsonl").write_bytes(as_jsonl(ROWS[:30]))
        upload(tmp_path / "data", uri)
    assert all(one != two for one, two in zip(*seen, strict=True))


def test_a_dataset_is_prepared_from_a_bucket_as_from_a_folder(tmp_path: Path, bucket: str) -> None:
    photos = sorted(write_photos(tmp_path / "photos", per_class=30).rglob("*.png"))
    rows = [{"image": path.read_bytes(), "label": path.parent.name} for path in photos]
    (tmp_path / "tables").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "tables/t.parquet")
    uri = upload(tmp_path / "tables", f"{bucket}/prepared")
    here = prepare_data(PrepareSettings(source=str(tmp_path / "photos")), tmp_path / "here")
    there = prepare_data(PrepareSettings(source=uri), tmp_path / "there")
    assert here.fingerprint == there.fingerprint
    assert there.rows_read == 60


def test_a_bucket_may_be_the_source_on_vertex_ai_and_a_folder_of_this_machine_may_not() -> None:
    arguments = {"source": "gs://bucket/photos/*.tar", "registry": "vertex://"}
    assert Vertex().unreachable(places(arguments)) == []
    assert "gs://BUCKET" in Vertex().unreachable(places({**arguments, "source": "photos"}))[0]


def test_the_format_is_told_by_the_suffix() -> None:
    names = {"a.CSV": "csv", "a.jsonl.GZ": "jsonl", "a.parquet.gz": None, "a.tar.zst": "tar", "a.b.jpeg": "images"}
    assert {name: format_of(name) for name in names} == names
    assert format_of("README") is format_of("a.json") is None


def test_what_is_written_into_a_folder_of_data_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data.csv").write_text("")
    monkeypatch.chdir(tmp_path)
    for source, place in (
        ("data", "data/out"),
        ("data", tmp_path / "data"),
        (".", "runs"),
        ("gs://bucket", "gs://bucket/runs"),
        ("gs://bucket/data/", "gs://bucket/data"),
    ):
        assert is_listed_in(source, str(place)), (source, place)
    for source, place in (
        ("data", "out"),
        ("data", "data2"),
        ("data", "data/.runs"),
        ("data.csv", "."),
        ("missing", "missing/out"),
        ("~no-such-user/data", "out"),
        ("data", "gs://data/out"),
        ("gs://bucket/data", "gs://bucket/data2"),
        ("gs://bucket/*.csv", "gs://bucket/out"),
        ("gs://bucket", "gs://bucket/.runs/1"),
    ):
        assert not is_listed_in(source, place), (source, place)


def test_the_folder_that_the_program_runs_in_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write_photos(tmp_path / "photos", per_class=2)
    monkeypatch.chdir(photos)
    settings = PrepareSettings(source=".")
    assert problems_here(settings) == []
    assert source_fingerprint(".") == source_fingerprint(str(photos))
    found = find_files(settings)
    records = [each for each in image_records(found, settings, Meter(found)) if isinstance(each, Record)]
    assert [record.label for record in records] == ["blue", "blue", "red", "red"]
