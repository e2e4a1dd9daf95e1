"""The dataset artifact: mapped shards, reading in any order, and a manifest that can be trusted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_pipelines.artifacts.dataset import MANIFEST, REJECTED, SPLITS, Dataset, Feature, Manifest
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.artifacts.documents import sha256_of_file
from gpu_pipelines.artifacts.moments import Moments, joined_moments
from gpu_pipelines.errors import UserError

FEATURES = {"image": Feature("uint8", (3, 2, 4)), "label": Feature("int32"), "weight": Feature("float32", (2,))}
LABELS = ["ant", "bee", "cat"]


def row(number: int) -> dict[str, Any]:
    generator = np.random.default_rng(number)
    return {
        "image": generator.integers(0, 256, (3, 2, 4)).astype(np.uint8),
        "label": number % 3,
        "weight": np.array([number, -number], dtype=np.float32),
    }


def open_writer(folder: Path, **changes: Any) -> DatasetWriter:
    options: dict[str, Any] = {
        "task": "image_classification",
        "source": "photos",
        "features": FEATURES,
        "labels": LABELS,
        "preprocessing": {"size": 4},
        "rows_per_shard": 5,
    }
    return DatasetWriter(folder, **{**options, **changes})


def write(folder: Path, rows: int = 23, rejected: int = 2, **changes: Any) -> Manifest:
    names = changes.pop("names", [f"photo {n}" for n in range(rows)])
    with open_writer(folder, **changes) as writer:
        for number in range(rows):
            writer.add("train", names[number], row(number))
        for number in range(3):
            writer.add("val", f"v{number}", row(100 + number))
        writer.add("test", "t", row(200))
        for number in range(rejected):
            writer.reject(f"bad {number}", "unreadable image", "broken")
        return writer.finish()


def write_rows(folder: Path, *rows: dict[str, Any]) -> Manifest:
    with open_writer(folder) as writer:
        for content in rows:
            writer.add("train", "x", content)
        return writer.finish()


def mapped_ranges(folder: Path) -> list[tuple[int, int]]:
    """Addresses at which this process has mapped files of a folder."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if f" {folder}/" in line]
    return [(int(low, 16), int(high, 16)) for low, high in ranges]


def expected(numbers: Any) -> dict[str, np.ndarray]:
    rows = [row(int(n)) for n in numbers]
    return {
        name: np.array([r[name] for r in rows], dtype=f.dtype).reshape(len(rows), *f.shape)
        for name, f in FEATURES.items()
    }


def assert_same(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert set(got) == set(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype
        assert np.array_equal(got[name], array), name


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("dataset")
    write(folder)
    return Dataset(folder)


# Reading


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the mappings of a process are read from /proc")
def test_shards_are_mapped_and_not_read_into_memory(tmp_path: Path) -> None:
    features = {"image": Feature("uint8", (3, 64, 64)), "label": Feature("int32")}
    with open_writer(tmp_path, features=features, rows_per_shard=100) as writer:
        for number in range(300):
            writer.add("train", "x", {"image": np.full((3, 64, 64), number % 256, np.uint8), "label": 0})
        writer.finish()
    split = Dataset(tmp_path).split("train")
    taken = [columns["image"] for columns in split.columns(0, 300)]
    assert sum(array.nbytes for array in taken) == 300 * 3 * 64 * 64
    assert not any(array.flags.writeable or array.flags.owndata for array in taken)
    ranges = mapped_ranges(tmp_path / "train")
    assert len(ranges) == 3
    for array in taken:
        start = array.__array_interface__["data"][0]
        assert any(low <= start and start + array.nbytes <= high for low, high in ranges)


def test_a_mapped_array_outlives_the_dataset_it_came_from(tmp_path: Path) -> None:
    import gc

    write(tmp_path)
    (columns,) = Dataset(tmp_path).split("val").columns(0, 3)
    gc.collect()
    assert_same(columns, expected([100, 101, 102]))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(0, 22), max_size=40))
def test_take_gives_rows_of_all_shards_in_the_order_asked_for(dataset: Dataset, rows: list[int]) -> None:
    assert_same(dataset.split("train").take(np.array(rows, dtype=np.int64)), expected(rows))


def test_what_take_gives_may_be_changed_without_changing_the_dataset(dataset: Dataset) -> None:
    split = dataset.split("train")
    split.take(np.array([0, 22]))["image"][:] = 0
    assert_same(split.take(np.array([0, 22])), expected([0, 22]))


@pytest.mark.parametrize("rows", [[-1], [23], [0, 1000]], ids=str)
def test_take_refuses_rows_that_are_not_there(dataset: Dataset, rows: list[int]) -> None:
    with pytest.raises(IndexError):
        dataset.split("train").take(np.array(rows))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 30), st.integers(0, 30))
def test_columns_gives_a_range_over_shards_in_order(dataset: Dataset, start: int, stop: int) -> None:
    parts = list(dataset.split("train").columns(start, stop))
    wanted = expected(range(start, min(stop, 23)))
    assert sum(len(part["label"]) for part in parts) == len(wanted["label"])
    for name in FEATURES:
        got = [part[name] for part in parts]
        assert not got or np.array_equal(np.concatenate(got), wanted[name])


def test_sources_gives_where_rows_came_from_over_shards(dataset: Dataset) -> None:
    assert dataset.split("train").sources([22, 0, 5, 4, 5]) == [f"photo {n}" for n in (22, 0, 5, 4, 5)]


def test_the_length_of_each_split_is_its_rows(dataset: Dataset) -> None:
    assert [len(dataset.split(name)) for name in SPLITS] == [23, 3, 1]


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float32", "float64", "int16"])
def test_every_numeric_element_type_comes_back_as_it_went_in(tmp_path: Path, dtype: str) -> None:
    values = np.arange(24).astype(dtype).reshape(4, 3, 2)
    with open_writer(tmp_path, features={"x": Feature(dtype, (3, 2)), "label": Feature("int32")}) as writer:
        for value in values:
            writer.add("train", "x", {"x": value, "label": 0})
        writer.finish()
    got = Dataset(tmp_path).split("train").take(np.arange(4))["x"]
    assert got.dtype == values.dtype
    assert np.array_equal(got, values)


def test_an_array_of_another_shape_is_refused_and_not_reinterpreted(tmp_path: Path) -> None:
    height_first = {**row(0), "image": row(0)["image"].transpose(1, 2, 0)}
    with pytest.raises(ValueError, match="image"):
        write_rows(tmp_path, height_first)


def test_other_programs_can_open_a_shard(tmp_path: Path) -> None:
    write(tmp_path)
    table = pa.ipc.open_file(tmp_path / "val/part-00000.arrow").read_all()
    assert table.column("source").to_pylist() == ["v0", "v1", "v2"]
    assert table.column("label").to_pylist() == [1, 2, 0]
    assert table.schema.field("image").type == pa.list_(pa.uint8(), 24)


# The manifest


def test_the_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = write(tmp_path)
    read = Dataset(tmp_path).manifest
    assert read == written
    assert read.fingerprint == written.fingerprint
    assert list(read.splits) == list(SPLITS)
    content = replace(read, tokenizer="tokenizer").to_json()
    content["splits"]["train"][0]["new"] = "of a later version"
    assert replace(read, tokenizer="tokenizer") == Manifest.from_json(content)


def test_the_manifest_says_what_is_there(tmp_path: Path) -> None:
    manifest = write(tmp_path, rejected=4)
    assert (manifest.rows_read, manifest.rows_kept, manifest.rows_rejected) == (23 + 3 + 1 + 4, 27, 4)
    assert manifest.class_rows == {"train": [8, 8, 7], "val": [1, 1, 1], "test": [0, 0, 1]}
    assert [file.rows for file in manifest.splits["train"]] == [5, 5, 5, 5, 3]
    for files in manifest.splits.values():
        for file in files:
            assert sha256_of_file(tmp_path / file.path) == file.sha256
    content = json.loads((tmp_path / MANIFEST).read_text())
    assert content["format_version"] == 1
    assert content["fingerprint"] == manifest.fingerprint
    assert content["rows_rejected"] == 4


def test_rejected_rows_are_kept_with_their_reasons(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.reject("a\nb \ud800 <é>", "no label")
        writer.reject("c", "unreadable image", "line\nbreak")
        manifest = writer.finish()
    rows = [json.loads(line) for line in (tmp_path / REJECTED).read_text(encoding="utf-8").splitlines()]
    assert rows == [
        {"source": "a\nb \ud800 <é>", "reason": "no label", "detail": ""},
        {"source": "c", "reason": "unreadable image", "detail": "line\nbreak"},
    ]
    assert manifest.rejected == {"no label": 1, "unreadable image": 1}


def test_a_split_without_rows_is_empty_and_not_an_error(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.add("train", "x", row(0))
        writer.finish()
    split = Dataset(tmp_path).split("test")
    assert len(split) == 0
    assert list(split.columns(0, 10)) == []
    assert split.take(np.array([], dtype=np.int64))["image"].shape == (0, 3, 2, 4)


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one"), write(tmp_path / "two")
    assert one == two
    assert (tmp_path / "one" / MANIFEST).read_bytes() == (tmp_path / "two" / MANIFEST).read_bytes()


# The fingerprint


def test_the_fingerprint_changes_with_a_pixel_a_label_the_classes_and_the_preprocessing(tmp_path: Path) -> None:
    fingerprints = [write(tmp_path / "as it is").fingerprint]
    fingerprints.append(write(tmp_path / "rows", rows=22).fingerprint)
    fingerprints.append(write(tmp_path / "classes", labels=["ant", "bee", "dog"]).fingerprint)
    fingerprints.append(write(tmp_path / "preprocessing", preprocessing={"size": 5}).fingerprint)
    for name, change in {
        "pixel": {"image": row(0)["image"] ^ np.uint8(1)},
        "label": {"label": 2},
        "split": {},
    }.items():
        with open_writer(tmp_path / name) as writer:
            writer.add("val" if name == "split" else "train", "photo 0", {**row(0), **change})
            fingerprints.append(writer.finish().fingerprint)
    assert len(set(fingerprints)) == len(fingerprints)


def test_the_fingerprint_does_not_change_with_the_source_or_rejected_rows(tmp_path: Path) -> None:
    one = write(tmp_path / "one")
    two = write(tmp_path / "two", source="elsewhere", rejected=0)
    assert one.fingerprint == two.fingerprint


def test_the_fingerprint_does_not_change_when_files_are_renamed(tmp_path: Path) -> None:
    one = write(tmp_path / "one")
    two = write(tmp_path / "two", names=[f"IMG_{n:04}.png" for n in range(23)])
    assert one.fingerprint == two.fingerprint


# What is no dataset


def test_without_its_manifest_a_directory_is_no_dataset(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.add("train", "x", row(0))
    with pytest.raises(UserError, match=r"is no dataset: it has no dataset\.json"):
        Dataset(tmp_path)
    with pytest.raises(UserError, match="is no dataset: it does not exist"):
        Dataset(tmp_path / "none")


def test_a_second_attempt_that_is_broken_off_does_not_pass_for_the_first(tmp_path: Path) -> None:
    write(tmp_path, rows_per_shard=1)
    with open_writer(tmp_path, rows_per_shard=1) as writer:
        writer.add("train", "other", row(77))  # and the process is interrupted here
    try:
        manifest = Dataset(tmp_path).manifest
    except UserError:
        return
    for file in manifest.splits["train"]:
        assert sha256_of_file(tmp_path / file.path) == file.sha256


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format_version": 1}',
        '{"format_version": 2}',
        '{"format_version": "1"}',
        '{"format_version": 1, "task": 3, "features": []}',
    ],
)
def test_a_damaged_or_newer_manifest_is_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path)
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(UserError, match=r"dataset\.json"):
        Dataset(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "text", "footer", "another shard"])
def test_a_damaged_shard_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    write(tmp_path)
    shard = tmp_path / "train/part-00001.arrow"
    content = shard.read_bytes()
    shard.unlink()
    if damage == "another shard":
        (tmp_path / "train/part-00004.arrow").rename(shard)
        (tmp_path / "train/part-00004.arrow").write_bytes(content)
    elif damage != "missing":
        footer = content[:-40] + bytes([content[-40] ^ 255]) + content[-39:]
        half = content[: len(content) // 2]
        shard.write_bytes({"empty": b"", "truncated": half, "text": b"shard", "footer": footer}[damage])
    with pytest.raises(UserError, match="part-0000") as error:
        Dataset(tmp_path).split("train")
    assert not error.value.problem.endswith(".."), "Arrow says some of it in sentences"
    # Whoever goes on with a run would be given the same folder again.
    assert "--resume take this one until its folder is deleted" in error.value.remedy


# Lists of any length


def test_lists_of_any_length_are_filled_up_to_the_longest_of_the_rows_taken(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    lists = [generator.integers(1, 9, length).astype(np.int32) for length in [3, 0, 7, 1, *range(20)]]
    features = {"tokens": Feature("int32", (-1,)), "number": Feature("int32")}
    with open_writer(tmp_path, features=features, labels=[], rows_per_shard=10) as writer:
        for number, tokens in enumerate(lists):
            writer.add("train", "x", {"tokens": tokens, "number": number})
        writer.add_rows("val", ["x", "x"], {"tokens": [[1, 2], [3]], "number": np.array([0, 1])}, records=2)
        with pytest.raises(ValueError, match="1 values for 2 rows"):
            writer.add_rows("val", ["x", "x"], {"tokens": [[1]], "number": np.array([0, 1])}, records=2)
        writer.finish()
    split = Dataset(tmp_path).split("train")
    for rows in ([2, 1], [23, 0, 11, 3], list(range(24))):
        taken = split.take(np.array(rows))
        assert taken["number"].tolist() == rows
        assert taken["tokens_length"].tolist() == [len(lists[row]) for row in rows]
        assert taken["tokens"].shape == (len(rows), max(len(lists[row]) for row in rows))
        for row, got, length in zip(rows, taken["tokens"], taken["tokens_length"], strict=True):
            assert np.array_equal(got[:length], lists[row])
            assert not got[length:].any()
    widths = [columns["tokens"].shape for columns in split.columns(5, 23)]
    assert widths == [(5, 5), (10, 15), (3, 18)]


def test_the_manifest_says_how_numbers_spread_over_each_split(dataset: Dataset) -> None:
    assert {split: set(found) for split, found in dataset.manifest.moments.items()} == {
        split: {"weight"} for split in SPLITS
    }
    weights = expected(range(23))["weight"].astype(np.float64)
    found = dataset.moments("train", "weight")
    assert found.rows == 23
    assert found.mean == pytest.approx(weights.mean(axis=0))
    assert found.deviation == pytest.approx(weights.std(axis=0))
    assert dataset.moments("test", "weight").deviation == (1.0, 1.0)  # of one row


@pytest.mark.parametrize("kept", [{}, {"train": {"weight": {"rows": 20, "mean": [0.0, 0.0], "squares": [0.0, 0.0]}}}])
def test_what_an_earlier_version_did_not_keep_is_read_from_the_rows(tmp_path: Path, kept: dict[str, Any]) -> None:
    moments = write(tmp_path).moments["train"]["weight"]
    said = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**said, "moments": kept}))
    assert Dataset(tmp_path).moments("train", "weight") == moments


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=9), min_size=1, max_size=6),
    st.sampled_from([0.0, 1e6]),
)
def test_moments_of_parts_are_those_of_the_whole(parts: list[list[float]], far: float) -> None:
    given = [np.array(part, dtype=np.float64) + far for part in parts]
    joined = joined_moments({"x": Moments.of(part)} for part in given)["x"]
    whole = np.concatenate(given)
    assert joined.rows == len(whole)
    assert joined.mean[0] == pytest.approx(whole.mean(), rel=1e-12, abs=1e-9)
    assert joined.squares[0] == pytest.approx(((whole - whole.mean()) ** 2).sum(), rel=1e-9, abs=1e-9)


def test_a_number_that_is_the_same_everywhere_has_no_spread_but_one_of_rounding() -> None:
    same = np.full(1001, 1 / 3)
    assert joined_moments({"x": Moments.of(part)} for part in np.array_split(same, 7))["x"].deviation == (1.0,)


def lines_run(work: Callable[[], object]) -> int:
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def test_a_row_that_is_added_costs_the_same_however_many_classes_there_are(tmp_path: Path) -> None:
    taken = []
    for classes in (3, 3000):
        labels = [f"class {number}" for number in range(classes)]
        with open_writer(tmp_path / str(classes), labels=labels) as writer:
            taken.append(lines_run(lambda writer=writer: writer.add("train", "first", row(1))))  # type: ignore[misc]
            assert writer.finish().class_rows["train"][:3] == [0, 1, 0]
    assert taken[0] == taken[1]
