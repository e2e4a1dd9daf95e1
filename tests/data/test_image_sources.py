"""What a source lists: the records of a folder or table, and a clear refusal of a source that cannot be used."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_photos
from PIL import Image

from gpu_pipelines.data.images.sources import Record, image_records
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import problems_here, require_usable_source
from gpu_pipelines.data.sources.file_source import BESIDE_TABLES, UNKNOWN
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.sources.sources import open_source
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.image_classification.sample import write_digits


def records_of(source: Path | str, scratch: Path | None = None, **columns: str) -> list[Record]:
    settings = PrepareSettings(source=str(source), **columns)
    found = open_source(settings, scratch or Path("unused"))
    return list(image_records(found, settings, Meter(found)))


def write_png(path: Path, color: tuple[int, int, int] = (1, 2, 3)) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), color).save(path)
    return path.read_bytes()


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def write_parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def ordinary_user() -> Iterator[Path]:
    """A directory in which this process is not root for the time of the test, so that permissions bind it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            for path in [folder, *folder.rglob("*")]:
                path.chmod(0o777)


# Folders


def test_a_folder_gives_each_file_the_name_of_its_class_folder(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", per_class=2)
    records = records_of(tmp_path / "photos")
    assert [(r.source, r.label) for r in records] == [
        ("blue/000.png", "blue"),
        ("blue/001.png", "blue"),
        ("red/000.png", "red"),
        ("red/001.png", "red"),
    ]
    assert records[3].read() == (tmp_path / "photos/red/001.png").read_bytes()


def test_files_deep_below_a_class_folder_belong_to_that_class(tmp_path: Path) -> None:
    write_png(tmp_path / "cat/2024/june/a.png")
    write_png(tmp_path / "dog/a.png")
    assert {(r.source, r.label) for r in records_of(tmp_path)} == {("cat/2024/june/a.png", "cat"), ("dog/a.png", "dog")}


def test_the_order_of_a_folder_does_not_depend_on_when_files_were_written(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        write_png(tmp_path / "one" / "cat" / f"{name}.png")
    for name in ("b", "c", "a"):
        write_png(tmp_path / "two" / "cat" / f"{name}.png")
    assert [r.source for r in records_of(tmp_path / "one")] == [r.source for r in records_of(tmp_path / "two")]


def test_hidden_files_and_hidden_class_folders_are_left_out(tmp_path: Path) -> None:
    write_png(tmp_path / "cat/a.png")
    write_png(tmp_path / "dog/a.png")
    (tmp_path / "cat/.DS_Store").write_bytes(b"x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("x")
    assert {r.source for r in records_of(tmp_path)} == {"cat/a.png", "dog/a.png"}


def test_files_in_a_hidden_folder_inside_a_class_folder_are_left_out(tmp_path: Path) -> None:
    write_png(tmp_path / "cat/a.png")
    write_png(tmp_path / "dog/a.png")
    write_png(tmp_path / "cat/.ipynb_checkpoints/a-checkpoint.png")
    write_png(tmp_path / "dog/.thumbnails/deep/a.png")
    assert {r.source for r in records_of(tmp_path)} == {"cat/a.png", "dog/a.png"}


def test_files_beside_the_class_folders_are_left_out(tmp_path: Path) -> None:
    write_png(tmp_path / "cat/a.png")
    write_png(tmp_path / "loose.png")
    assert [r.source for r in records_of(tmp_path)] == ["cat/a.png"]


def test_a_class_folder_may_be_a_link(tmp_path: Path) -> None:
    write_png(tmp_path / "elsewhere/a.png")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat").symlink_to(tmp_path / "elsewhere")
    assert [(r.source, r.label) for r in records_of(tmp_path / "photos")] == [("cat/a.png", "cat")]


def test_a_link_that_leads_nowhere_is_not_a_file(tmp_path: Path) -> None:
    write_png(tmp_path / "cat/a.png")
    (tmp_path / "cat/gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "cat/round.png").symlink_to(tmp_path / "cat/round.png")
    assert [r.source for r in records_of(tmp_path)] == ["cat/a.png"]


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ((), "is empty"),
        (("a.png",), "has no sub-folders"),
        ((".hidden/",), "has no sub-folders"),
        (("cat/", "dog/"), "hold no files"),
    ],
)
def test_a_folder_without_images_by_class_is_refused(tmp_path: Path, entries: tuple[str, ...], says: str) -> None:
    for entry in entries:
        path = tmp_path / "photos" / entry
        if entry.endswith("/"):
            path.mkdir(parents=True)
        else:
            write_png(path)
    (tmp_path / "photos").mkdir(exist_ok=True)
    with pytest.raises(UserError, match=says):
        records_of(tmp_path / "photos")


def test_a_class_folder_that_may_not_be_listed_is_an_error_and_not_an_empty_class(ordinary_user: Path) -> None:
    for name in ("cat", "dog"):
        write_png(ordinary_user / "photos" / name / "a.png")
    (ordinary_user / "photos/dog").chmod(0)
    with pytest.raises(UserError, match="dog"):
        records_of(ordinary_user / "photos")


def test_a_folder_that_may_not_be_listed_is_refused(ordinary_user: Path) -> None:
    write_png(ordinary_user / "photos/cat/a.png")
    (ordinary_user / "photos").chmod(0)
    with pytest.raises(UserError, match="photos"):
        records_of(ordinary_user / "photos")


# Sources that are nothing


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere", "does not exist"),
        ("~no-such-user/photos", "no-such-user"),
        ("x" * 5000, "xxx"),
    ],
)
def test_a_source_that_does_not_exist_is_refused(source: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        records_of(source)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png")
    with pytest.raises(UserError, match="neither a folder nor a table"):
        records_of(tmp_path / "a.png")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_a_table_that_may_not_be_read_is_refused(ordinary_user: Path, name: str) -> None:
    (ordinary_user / name).write_text("image,label\n")
    (ordinary_user / name).chmod(0)
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        records_of(ordinary_user / name)


@pytest.mark.parametrize("source", ["sample:digit", "sample:"])
def test_an_unknown_sample_is_refused_with_those_there_are(source: str) -> None:
    problems = PrepareSettings(source=source).problems()
    assert len(problems) == 1
    assert "sample:digits" in problems[0]


def test_the_digits_are_those_of_scikit_learn(tmp_path: Path) -> None:
    import numpy as np
    from sklearn.datasets import load_digits

    write_digits(tmp_path)
    digits = load_digits()
    files = sorted(tmp_path.rglob("*.png"), key=lambda path: path.name)
    assert [int(path.parent.name) for path in files] == digits.target.tolist()
    shown = np.stack([np.asarray(Image.open(path)) for path in files[::100]])
    np.testing.assert_allclose(shown / 255 * 16, digits.images[::100], atol=0.04)


# Tables of any kind


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Writes rows of texts as the table that the path's suffix names."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".csv":
        body = [",".join(f'"{row.get(name) or ""}"' for name in names) for row in rows]
        return write_lines(path, ",".join(names), *body)
    if path.suffix == ".jsonl":
        return write_lines(path, *rows)
    return write_parquet(path, **{name: [row.get(name) for row in rows] for name in names})


TABLES = ["t.csv", "t.jsonl", "t.parquet", "T.CSV", "T.JSONL", "T.PARQUET"]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_paths_reads_files_relative_to_itself(tmp_path: Path, name: str) -> None:
    cat = write_png(tmp_path / "data/images/cat one.png", (200, 0, 0))
    dog = write_png(tmp_path / "data/dog.png", (0, 200, 0))
    path = table(
        tmp_path / "data" / name.lower(),
        [{"image": "images/cat one.png", "label": "cat"}, {"image": " dog.png ", "label": " dog "}],
    )
    path = path.rename(path.with_name(name))
    records = records_of(path)
    assert [r.label for r in records] == ["cat", "dog"]
    assert [r.read() for r in records] == [cat, dog]
    assert all(name in r.source for r in records)
    assert "images/cat one.png" in records[0].source


@pytest.mark.parametrize("name", TABLES[:3])
def test_other_columns_may_hold_image_and_label(tmp_path: Path, name: str) -> None:
    write_png(tmp_path / "a.png")
    path = table(tmp_path / name, [{"image": "wrong.png", "file": "a.png", "label": "wrong", "kind": "cat"}])
    (record,) = records_of(path, image_column="file", label_column="kind")
    assert record.label == "cat"
    assert record.read() == (tmp_path / "a.png").read_bytes()


@pytest.mark.parametrize("name", TABLES[:3])
@pytest.mark.parametrize(
    ("has", "missing"),
    [(["image", "kind"], ["label"]), (["file", "label"], ["image"]), (["file", "kind"], ["image", "label"])],
)
def test_a_table_without_a_column_is_refused_and_says_which_it_has(
    tmp_path: Path, name: str, has: list[str], missing: list[str]
) -> None:
    path = table(tmp_path / name, [dict.fromkeys(has, "x")])
    with pytest.raises(UserError) as caught:
        prepare_data(PrepareSettings(source=str(path)), tmp_path / "out")
    assert all(f"no column {column!r}" in str(caught.value) for column in missing)
    assert all(column in caught.value.problem for column in has)
    assert "label_column" in caught.value.remedy


@pytest.mark.parametrize("name", TABLES[:3])
def test_a_table_without_rows_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "t.parquet":
        write_parquet(path, image=pa.array([], pa.string()), label=pa.array([], pa.string()))
    else:
        path.write_text("image,label\n" if name == "t.csv" else "\n\n")
    with pytest.raises(UserError, match="no rows"):
        prepare_data(PrepareSettings(source=str(path)), tmp_path / "out")


@pytest.mark.parametrize("name", TABLES[:3])
def test_an_empty_file_is_refused_as_a_table(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError):
        prepare_data(PrepareSettings(source=str(tmp_path / name)), tmp_path / "out")


@pytest.mark.parametrize("name", TABLES[:3])
def test_a_row_without_image_or_label_is_kept_as_unusable(tmp_path: Path, name: str) -> None:
    write_png(tmp_path / "a.png")
    rows = [
        {"image": "a.png", "label": "cat"},
        {"image": None, "label": "cat"},
        {"image": "   ", "label": "cat"},
        {"image": "a.png", "label": None},
        {"image": "a.png", "label": "   "},
    ]
    records = records_of(table(tmp_path / name, rows))
    assert len(records) == len(rows)
    assert [bool(r.problem) for r in records] == [False, True, True, True, True]
    assert [r.problem.reason for r in records if r.problem] == ["malformed row"] * 2 + ["no label"] * 2


@pytest.mark.parametrize("name", TABLES[:3])
def test_a_path_to_a_missing_file_is_an_error_of_its_row_alone(tmp_path: Path, name: str) -> None:
    records = records_of(
        table(tmp_path / name, [{"image": "gone.png", "label": "cat"}, {"image": ".", "label": "cat"}])
    )
    for record in records:
        with pytest.raises(OSError):
            record.read()


def test_a_table_in_any_letter_case_of_its_suffix_is_read(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png")
    assert len(records_of(write_lines(tmp_path / "T.CsV", "image,label", "a.png,cat"))) == 1


# CSV


def test_csv_reads_quotes_line_breaks_and_a_byte_order_mark(tmp_path: Path) -> None:
    write_png(tmp_path / "a,b.png")
    path = tmp_path / "t.csv"
    path.write_bytes('\ufeffimage,label,note\r\n"a,b.png",cat,"two\r\nlines"\r\n'.encode())
    (record,) = records_of(path)
    assert record.label == "cat"
    assert record.read()


def test_csv_rows_with_too_many_or_too_few_fields_are_unusable_one_by_one(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png")
    path = write_lines(tmp_path / "t.csv", "image,label", "a.png,cat", "a.png,cat,extra", "a.png", "a.png,dog")
    records = records_of(path)
    assert [r.label for r in records] == ["cat", "", "", "dog"]
    assert records[1].problem == ("malformed row", "more fields than the header has")


@pytest.mark.parametrize("end", ['"', ""], ids=["until the next one", "until the end of the file"])
def test_csv_lines_that_a_quote_makes_one_row_are_unusable_one_by_one(end: str, tmp_path: Path) -> None:
    lines = [f"{number}.png\tcat" for number in range(6)]
    path = write_lines(tmp_path / "t.tsv", "image\tlabel", lines[0], f'"{lines[1]}', lines[2], "", f"{end}{lines[3]}")
    records = records_of(path)
    assert [record.source.partition(" ")[0] for record in records] == ["t.tsv:2", "t.tsv:3", "t.tsv:4", "t.tsv:6"]
    assert [record.problem.reason if record.problem else "" for record in records] == ["", *["malformed row"] * 3]
    assert "does not end with one" in records[1].problem.detail
    assert "(lines 3 to 6)" in records[1].problem.detail


def test_csv_rows_are_named_by_their_line_in_the_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.csv", "image,label", "a.png,cat", "", '"b.png",dog', "", "c.png,cat")
    assert [r.source for r in records_of(path)] == ["t.csv:2 a.png", "t.csv:4 b.png", "t.csv:6 c.png"]


def test_blank_lines_of_csv_are_of_no_row(tmp_path: Path) -> None:
    # What stands behind a quote is read as Python's reader takes it, whatever line is before it.
    path = write_lines(tmp_path / "t.csv", "image,label", "", '"a".png,cat', "", "", "b.png,dog", "", " ")
    assert [(r.label, r.problem and r.problem.reason) for r in records_of(path)[:2]] == [("cat", None), ("dog", None)]


def test_csv_in_another_encoding_does_not_merge_classes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("image,label\na.png,blé\nb.png,blè\nc.png,maïs\n".encode("latin-1"))
    try:
        labels = {r.label for r in records_of(path)}
    except UserError as error:
        assert "UTF-8" in str(error)  # noqa: PT017 (either way of dealing with it is right)
    else:
        assert len(labels) == 3


def test_csv_with_a_field_of_megabytes_is_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.csv", "image,label,note", "a.png,cat," + "x" * 300_000)
    assert records_of(path)[0].label == "cat"


# JSON lines


def test_jsonl_lines_that_are_no_objects_are_unusable_and_named_by_line(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "t.jsonl",
        {"image": "a.png", "label": "cat"},
        "{broken",
        "",
        "[1, 2]",
        "null",
        "[" * 100_000,
        "1" * 10_000,
        {"image": 7, "label": "cat"},
        {"label": "dog"},
    )
    with path.open("ab") as file:
        file.write(b'{"image": "\xff.png", "label": "cat"}\n')
    records = records_of(path)
    assert [r.source.split(" ")[0] for r in records] == [f"t.jsonl:{n}" for n in (1, 2, 4, 5, 6, 7, 8, 9, 10)]
    assert [not r.problem for r in records] == [True] + [False] * 8


def test_jsonl_with_a_byte_order_mark_and_windows_line_ends_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes('\ufeff{"image": "a.png", "label": "cat"}\r\n{"image": "b.png", "label": "dog"}\r\n'.encode())
    assert [(r.label, r.problem) for r in records_of(path)] == [("cat", None), ("dog", None)]


def test_numbers_and_truth_values_are_class_names(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", *[{"image": "a.png", "label": label} for label in (0, 1, 2.5, True, "x")])
    assert [r.label for r in records_of(path)] == ["0", "1", "2.5", "True", "x"]


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_a_label_that_is_not_a_number_is_no_label(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "t.jsonl":
        write_lines(path, '{"image": "a.png", "label": 1.0}', '{"image": "a.png", "label": NaN}')
    else:
        write_parquet(path, image=["a.png", "a.png"], label=[1.0, float("nan")])
    assert records_of(path)[1].label == ""


@pytest.mark.parametrize("label", [["cat", "dog"], {"name": "cat"}])
def test_a_label_that_is_a_list_or_mapping_is_not_made_a_class_name(tmp_path: Path, label: Any) -> None:
    record = records_of(write_lines(tmp_path / "t.jsonl", {"image": "a.png", "label": label}))[0]
    assert record.problem or not record.label


# Parquet


def test_parquet_reads_bytes_and_huggingface_image_structs(tmp_path: Path) -> None:
    cat, dog = write_png(tmp_path / "cat.png", (200, 0, 0)), write_png(tmp_path / "dog.png", (0, 200, 0))
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = [
        {"bytes": cat, "path": "name-on-the-hub.png"},
        {"bytes": None, "path": "dog.png"},
        {"bytes": None, "path": None},
        None,
    ]
    path = write_parquet(tmp_path / "t.parquet", image=pa.array(images, struct), label=[0, 1, 0, 0])
    records = records_of(path)
    assert [r.label for r in records] == ["0", "1", "0", "0"]
    assert [r.read() for r in records[:2]] == [cat, dog]
    assert [bool(r.problem) for r in records] == [False, False, True, True]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_parquet_reads_every_kind_of_binary_column(tmp_path: Path, kind: pa.DataType) -> None:
    images = [write_png(tmp_path / f"{n}.png", (n, 0, 0)) for n in range(3)]
    path = write_parquet(tmp_path / "t.parquet", image=pa.array(images).cast(kind), label=["a", "b", "c"])
    assert [r.read() for r in records_of(path)] == images


def test_parquet_reads_dictionary_encoded_labels(tmp_path: Path) -> None:
    labels = pa.array(["cat", "dog", None, "cat"]).dictionary_encode()
    path = write_parquet(tmp_path / "t.parquet", image=["a.png"] * 4, label=labels)
    assert [r.label for r in records_of(path)] == ["cat", "dog", "", "cat"]


def test_parquet_rows_are_numbered_over_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"image": ["a.png"] * 7, "label": list("abababa")}), path, row_group_size=2)
    assert [r.source.split(" ")[0] for r in records_of(path)] == [f"t.parquet:{n}" for n in range(1, 8)]


@pytest.mark.parametrize("damage", ["text", "truncated", "bytes in the middle"])
def test_a_damaged_parquet_file_is_refused(tmp_path: Path, damage: str) -> None:
    path = write_parquet(tmp_path / "t.parquet", image=[f"{n}.png" for n in range(5000)], label=["x"] * 5000)
    content = path.read_bytes()
    damaged = {
        "text": b"not a table",
        "truncated": content[: len(content) // 2],
        "bytes in the middle": content[:200] + b"\xff" * 4000 + content[4200:],
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(UserError, match="not Parquet"):
        records_of(path)


def test_a_parquet_text_that_is_not_utf8_is_not_a_traceback(tmp_path: Path) -> None:
    broken = pa.array([b"caf\xe9", b"the"]).view(pa.string())
    path = write_parquet(tmp_path / "t.parquet", image=["a.png", "b.png"], label=broken)
    try:
        records = records_of(path)
    except UserError:
        return
    assert len(records) == 2


def test_images_beside_a_table_that_names_them_are_answered_with_the_table(tmp_path: Path) -> None:
    """As data sets of the hub have images: metadata.csv in their folder."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(4):
        write_png(folder / f"{number}.png", (number, 2, 3))
    (folder / "metadata.csv").write_text("file_name,label\n" + "".join(f"{n}.png,{'ab'[n % 2]}\n" for n in range(4)))
    with pytest.raises(UserError) as caught:
        records_of(folder)
    assert caught.value.remedy == (
        f"If the table names the images, give -p source={folder}/metadata.csv -p image_column=…, such as file_name."
    )
    found = records_of(folder / "metadata.csv", image_column="file_name")
    assert [record.label for record in found] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("folders", [("data",), ("first", "second")])
def test_folders_of_tables_alone_are_no_classes(tmp_path: Path, folders: tuple[str, ...]) -> None:
    """As data sets of the hub are, with a README.md beside data/."""
    (tmp_path / "README.md").write_text("# Photos\n")
    image = write_png(tmp_path / ".hidden/a.png")
    for folder in folders:
        (tmp_path / folder).mkdir()
        write_parquet(tmp_path / folder / "train-00000-of-00001.parquet", image=[image] * 2, label=["cat", "dog"])
    settings = PrepareSettings(source=str(tmp_path))
    assert problems_here(settings) == []
    found = open_source(settings, Path("unused"))
    require_usable_source(found, settings)
    assert [record.label for record in records_of(tmp_path)] == ["cat", "dog"] * len(folders)
    assert found.passed_over["README.md"] == UNKNOWN


def test_images_that_a_table_of_their_folder_names_are_not_said_to_be_no_data(tmp_path: Path) -> None:
    write_png(tmp_path / "photos/a.png")
    write_lines(tmp_path / "t.jsonl", {"image": "photos/a.png", "label": ["x", "y"]})
    for task in ("multi_label_classification", "regression"):
        found = open_source(PrepareSettings(source=str(tmp_path), task=task), Path("unused"))
        assert (found.names, found.passed_over) == (("t.jsonl",), {"photos/a.png": BESIDE_TABLES})
    given = open_source(PrepareSettings(source=str(tmp_path), source_format="jsonl"), Path("unused"))
    assert given.passed_over == {"photos/a.png": BESIDE_TABLES}


def test_the_log_of_a_delta_table_is_no_class_of_images(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log/00000000000000000000.json").write_text("{}\n")
    write_parquet(tmp_path / "part-00000-7d.snappy.parquet", image=[write_png(tmp_path / ".a.png")], label=["cat"])
    assert [record.label for record in records_of(tmp_path)] == ["cat"]


def test_one_folder_of_images_with_a_table_beside_it_says_to_give_the_table(tmp_path: Path) -> None:
    """As data sets of the hub have images: metadata.csv beside the only folder."""
    for number in range(4):
        write_png(tmp_path / f"images/{number}.png", (number, 0, 0))
    lines = [f"images/{number}.png,{'ab'[number % 2]}\n" for number in range(4)]
    table = tmp_path / "metadata.csv"
    table.write_text("file_name,label\n" + "".join(lines))
    (problem,) = problems_here(PrepareSettings(source=str(tmp_path)))
    assert problem == (
        f"The source {tmp_path} has a single folder of images, 'images', and the table metadata.csv. "
        f"If the table names the images, give -p source={table} -p image_column=…, such as file_name."
    )
    assert problems_here(PrepareSettings(source=str(table), image_column="file_name")) == []
    assert [record.label for record in records_of(table, image_column="file_name")] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("table", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
def test_folders_of_images_with_a_table_each_are_no_classes(tmp_path: Path, table: str) -> None:
    """As `datasets` reads batches of images: it takes the classes of the tables, and none of the folders' names."""
    for folder in ("monday", "tuesday"):
        for number in range(2):
            write_png(tmp_path / f"{folder}/{number}.png", (number, len(folder), 0))
        names, labels = ["0.png", "1.png"], ["cat", "dog"]
        rows = pa.table({"file_name": names, "label": labels})
        place = tmp_path / folder / table
        if table.endswith("parquet"):
            pq.write_table(rows, place)
        elif table.endswith("jsonl"):
            write_lines(place, *rows.to_pylist())
        else:
            write_lines(place, "file_name,label", *map(",".join, zip(names, labels, strict=True)))
    settings = PrepareSettings(source=str(tmp_path))
    with pytest.raises(UserError) as caught:
        require_usable_source(open_source(settings, Path("unused")), settings)
    assert caught.value.problem == f"Each folder of {tmp_path} has a table {table}, so its name may not be a class."
    assert caught.value.remedy == (
        f"If the table names the images, give -p source='{tmp_path}/*/{table}' -p image_column=…, such as file_name. "
        "If the names of the folders are the classes, give -p source_format=images."
    )
    found = records_of(f"{tmp_path}/*/{table}", image_column="file_name")
    assert [(record.label, bool(record.read())) for record in found] == [("cat", True), ("dog", True)] * 2
    named = replace(settings, source_format="images")
    require_usable_source(open_source(named, Path("unused")), named)


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
def test_folders_of_images_beside_a_table_that_has_classes_may_be_none(tmp_path: Path, name: str) -> None:
    """`datasets` takes the classes of the table, and gives the images none where it has no column of them."""
    files = [f"{folder}/{number}.png" for folder in ("monday", "tuesday") for number in range(2)]
    for number, file in enumerate(files):
        write_png(tmp_path / file, (number, 0, 0))
    for column in ("patient", "label"):
        rows = pa.table({"file_name": files, column: ["a", "b", "a", "b"]})
        if name.endswith("parquet"):
            pq.write_table(rows, tmp_path / name)
        elif name.endswith("jsonl"):
            write_lines(tmp_path / name, *rows.to_pylist())
        else:
            write_lines(tmp_path / name, f"file_name,{column}", *(",".join(row.values()) for row in rows.to_pylist()))
        settings = PrepareSettings(source=str(tmp_path))
        found = open_source(settings, Path("unused"))
        there = datasets.load_dataset("imagefolder", data_dir=str(tmp_path), cache_dir=str(tmp_path / f".{column}"))
        assert there["train"].column_names == ["image", column]
        if column == "patient":
            require_usable_source(found, settings)
    with pytest.raises(UserError) as caught:
        require_usable_source(found, settings)
    assert caught.value.problem == (
        f"The table {name} beside the folders of {tmp_path} has a column 'label', so their names may not be classes."
    )
    assert caught.value.remedy == (
        f"If the table names the images, give -p source={tmp_path}/{name} -p image_column=…, such as file_name. "
        "If the names of the folders are the classes, give -p source_format=images."
    )
    assert [record.label for record in records_of(tmp_path / name, image_column="file_name")] == ["a", "b", "a", "b"]
    named = replace(settings, source_format="images")
    require_usable_source(open_source(named, Path("unused")), named)
