"""Preparation as a whole: every row accounted for, splits that stay put, and nothing left that passes for a dataset."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_photos
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from preparing import prepare_alone

from gpu_pipelines.artifacts.dataset import MANIFEST, REJECTED, SPLITS, Dataset, Manifest
from gpu_pipelines.data import prepare as prepare_module
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.errors import UserError


def prepare(source: Path | str, directory: Path, **changes: Any) -> Manifest:
    options = {"val_fraction": 0.25, "test_fraction": 0.25, "max_rejected": "unlimited", **changes}
    return prepare_data(PrepareSettings(source=str(source), **options), directory)


def split_by_source(directory: Path) -> dict[str, str]:
    dataset = Dataset(directory)
    splits = {name: dataset.split(name) for name in SPLITS}
    return {source: name for name, split in splits.items() for source in split.sources(range(len(split)))}


def rejected(directory: Path) -> dict[str, str]:
    lines = (directory / REJECTED).read_text(encoding="utf-8").splitlines()
    return {row["source"]: row["reason"] for row in map(json.loads, lines)}


def png(seed: int, side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3)).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("source") / "photos", per_class=60, classes=("blue", "green", "red"))


@pytest.fixture
def own_photos(photos: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    return Path(shutil.copytree(photos, tmp_path / "photos"))


# What is kept


def test_every_row_of_a_folder_is_kept_with_its_label_and_pixels(photos: Path, tmp_path: Path) -> None:
    manifest = prepare(photos, tmp_path, image_size=24)
    assert manifest.labels == ["blue", "green", "red"]
    assert manifest.rows_kept == manifest.rows_read == 180
    for name in SPLITS:
        split = Dataset(tmp_path).split(name)
        rows = split.take(np.arange(len(split)))
        for source, label, pixels in zip(split.sources(range(len(split))), rows["label"], rows["image"], strict=True):
            assert source.split("/")[0] == manifest.labels[label]
            image = Image.open(photos / source).resize((24, 24), Image.Resampling.BILINEAR)
            assert np.array_equal(pixels.transpose(1, 2, 0), np.asarray(image))


def test_class_rows_count_the_labels_of_each_split(photos: Path, tmp_path: Path) -> None:
    manifest = prepare(photos, tmp_path)
    for name in SPLITS:
        split = Dataset(tmp_path).split(name)
        counts = Counter(split.take(np.arange(len(split)))["label"].tolist())
        assert manifest.class_rows[name] == [counts[label] for label in range(3)]


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (["10", "9", "2"], ["2", "9", "10"]),
        (["10", "9", "b"], ["10", "9", "b"]),
        (["01", "1", "0"], ["0", "01", "1"]),
        (["²", "1", "x"], ["1", "x", "²"]),
        (["9" * 5000, "1", "2"], ["1", "2", "9" * 5000]),
    ],
    ids=["numbers", "mixed", "leading zeros", "superscript", "very long number"],
)
def test_classes_are_in_the_order_of_people(tmp_path: Path, labels: list[str], order: list[str]) -> None:
    images = [png(n) for n in range(60)]
    pq.write_table(pa.table({"image": images, "label": (labels * 60)[:60]}), tmp_path / "t.parquet")
    assert prepare(tmp_path / "t.parquet", tmp_path / "out").labels == order


def test_folder_csv_jsonl_and_parquet_of_the_same_images_give_the_same_rows(photos: Path, tmp_path: Path) -> None:
    rows = [{"image": str(p), "label": p.parent.name} for p in sorted(photos.rglob("*.png"))]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["image", "label"])
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = [Path(row["image"]).read_bytes() for row in rows]
    pq.write_table(pa.table({"image": content, "label": [row["label"] for row in rows]}), tmp_path / "t.parquet")
    prepare(photos, tmp_path / "folder")
    wanted = {name: Dataset(tmp_path / "folder").split(name) for name in SPLITS}
    for table in ("t.csv", "t.jsonl", "t.parquet"):
        named = {} if table == "t.parquet" else {"image_root": str(photos)}
        prepare(tmp_path / table, tmp_path / f"{table} out", **named)
        for name, split in wanted.items():
            got = Dataset(tmp_path / f"{table} out").split(name)
            assert len(got) == len(split)
            for column, array in split.take(np.arange(len(split))).items():
                assert np.array_equal(got.take(np.arange(len(got)))[column], array)


def test_a_huggingface_image_column_is_read(tmp_path: Path) -> None:
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": png(n), "path": None} for n in range(40)], struct)
    pq.write_table(pa.table({"image": images, "label": [n % 2 for n in range(40)]}), tmp_path / "t.parquet")
    manifest = prepare(tmp_path / "t.parquet", tmp_path / "out")
    assert manifest.rows_kept == 40
    assert manifest.labels == ["0", "1"]


# Splits


def test_rows_keep_their_split_when_others_are_added_removed_or_renamed(own_photos: Path, tmp_path: Path) -> None:
    prepare(own_photos, tmp_path / "before")
    before = split_by_source(tmp_path / "before")
    write_photos(tmp_path / "more", per_class=20, classes=("blue", "red"), seed=9)
    for path in (tmp_path / "more").rglob("*.png"):
        path.rename(own_photos / path.parent.name / f"AAA-{path.name}")
    for path in sorted((own_photos / "green").iterdir())[::3]:
        path.unlink()
    (own_photos / "red/000.png").rename(own_photos / "red/zzz.png")
    prepare(own_photos, tmp_path / "after")
    after = split_by_source(tmp_path / "after")
    shared = before.keys() & after.keys()
    assert len(shared) == 180 - 20 - 1
    assert {source: before[source] for source in shared} == {source: after[source] for source in shared}
    assert after["red/zzz.png"] == before["red/000.png"]


def test_rows_keep_their_split_when_a_table_is_reordered(photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.rglob("*.png"))
    splits = []
    for name, order in {"one": files, "two": files[::-1]}.items():
        lines = [json.dumps({"image": str(path), "label": path.parent.name}) for path in order]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        prepare(tmp_path / f"{name}.jsonl", tmp_path / name, image_root=str(photos))
        splits.append({source.split(" ")[1]: split for source, split in split_by_source(tmp_path / name).items()})
    assert len(splits[0]) == 180
    assert splits[0] == splits[1]


def test_copies_of_an_image_never_straddle_splits_even_under_another_label(own_photos: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(own_photos.rglob("*.png"))):
        other = ("blue", "green", "red")[number % 3]
        shutil.copy(path, own_photos / other / f"copy-{path.parent.name}-{path.name}")
    prepare(own_photos, tmp_path / "out")
    places: dict[bytes, set[str]] = {}
    for source, split in split_by_source(tmp_path / "out").items():
        places.setdefault((own_photos / source).read_bytes(), set()).add(split)
    assert len(places) == 180
    assert all(len(splits) == 1 for splits in places.values())


def test_another_seed_gives_another_split_of_the_same_rows(photos: Path, tmp_path: Path) -> None:
    prepare(photos, tmp_path / "one")
    prepare(photos, tmp_path / "two", split_seed=1)
    one, two = split_by_source(tmp_path / "one"), split_by_source(tmp_path / "two")
    assert one.keys() == two.keys()
    assert one != two


def test_preparing_twice_gives_the_same_dataset(photos: Path, tmp_path: Path) -> None:
    one, two = prepare(photos, tmp_path / "one"), prepare(photos, tmp_path / "two")
    assert one == two


def test_a_file_that_comes_while_the_others_are_listed_is_new_for_whoever_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "a.csv").write_text("x,label\n" + "".join(f"{n},{n}\n" for n in range(20)))
    # Called between the listing of the files and their reading.
    late = "x,label\n100,100\n"
    monkeypatch.setattr(prepare_module, "warning_of_division", lambda *_: bool((rows / "b.csv").write_text(late)) * "")
    manifest = prepare(rows, tmp_path / "dataset", task="regression")
    assert manifest.rows_read == 20
    assert manifest.source_fingerprint != source_fingerprint(str(rows))


def test_blank_lines_above_the_header_of_csv_are_passed_over(tmp_path: Path) -> None:
    rows = "".join(f"row {number},{'ab'[number % 2]}\n" for number in range(60))
    (tmp_path / "rows.csv").write_text(f"\n  \r\ntext,label\n{rows},a\n")
    settings = PrepareSettings(source=str(tmp_path / "rows.csv"), task="text_classification", vocabulary_size=300)
    manifest = prepare_data(settings, tmp_path / "out")
    assert (manifest.rows_read, manifest.labels) == (61, ["a", "b"])
    assert '"rows.csv:64"' in (tmp_path / "out/rejected.jsonl").read_text()
    (tmp_path / "rows.csv").write_text("\n\n")
    with pytest.raises(UserError, match="has no column 'text' and no column 'label'; it has none at all"):
        prepare_data(settings, tmp_path / "none")


@pytest.mark.parametrize("change", ["broken file added", "folder moved", "file beside the classes"])
def test_the_fingerprint_stays_when_the_usable_rows_do(own_photos: Path, tmp_path: Path, change: str) -> None:
    one = prepare(own_photos, tmp_path / "one")
    if change == "broken file added":
        (own_photos / "blue/broken.png").write_bytes(b"broken")
    elif change == "folder moved":
        own_photos = own_photos.rename(tmp_path / "elsewhere")
    else:
        (own_photos / "notes.txt").write_text("x")
    assert prepare(own_photos, tmp_path / "two").fingerprint == one.fingerprint


def test_the_fingerprint_stays_when_files_are_renamed_and_no_pixel_changes(own_photos: Path, tmp_path: Path) -> None:
    one = prepare(own_photos, tmp_path / "one")
    for path in sorted(own_photos.rglob("*.png")):
        path.rename(path.with_name(f"IMG_{path.name}"))
    assert prepare(own_photos, tmp_path / "two").fingerprint == one.fingerprint


@pytest.mark.parametrize(
    "change", [{"image_size": 16}, {"color_mode": "L"}, {"split_seed": 3}, {"val_fraction": 0.3}], ids=str
)
def test_the_fingerprint_changes_with_what_the_model_sees(photos: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    assert prepare(photos, tmp_path / "one").fingerprint != prepare(photos, tmp_path / "two", **change).fingerprint


# Rows that cannot be used


def test_bad_files_among_good_ones_are_rejected_each_with_its_reason(own_photos: Path, tmp_path: Path) -> None:
    good = (own_photos / "blue/000.png").read_bytes()
    for name, content in {
        "empty.png": b"",
        "text.png": b"hello",
        "cut.png": good[: len(good) // 2],
        "readme.txt": b"The photos of 2024.",
    }.items():
        (own_photos / "blue" / name).write_bytes(content)
    manifest = prepare(own_photos, tmp_path / "out")
    assert rejected(tmp_path / "out") == dict.fromkeys(
        ("blue/cut.png", "blue/empty.png", "blue/readme.txt", "blue/text.png"), "unreadable image"
    )
    assert (manifest.rows_read, manifest.rows_kept, manifest.rejected) == (184, 180, {"unreadable image": 4})


def test_files_that_may_not_be_opened_are_rejected_one_by_one(tmp_path: Path) -> None:
    lines = [json.dumps({"image": name, "label": "cat"}) for name in ("gone.png", ".", "x" * 300 + ".png", "a\0b.png")]
    for number in range(40):
        (tmp_path / f"{number}.png").write_bytes(png(number))
        lines.append(json.dumps({"image": f"{number}.png", "label": "cat" if number % 2 else "dog"}))
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    manifest = prepare(tmp_path / "t.jsonl", tmp_path / "out")
    assert (manifest.rows_kept, manifest.rejected) == (40, {"file cannot be read": 4})


def test_a_path_with_a_lone_surrogate_is_rejected_and_not_a_traceback(tmp_path: Path) -> None:
    lines = [r'{"image": "\ud800.png", "label": "cat"}']
    for number in range(40):
        (tmp_path / f"{number}.png").write_bytes(png(number))
        lines.append(json.dumps({"image": f"{number}.png", "label": "cat" if number % 2 else "dog"}))
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    assert prepare(tmp_path / "t.jsonl", tmp_path / "out").rows_kept == 40


def test_file_names_that_are_not_utf8_are_usable(own_photos: Path, tmp_path: Path) -> None:
    os.rename(own_photos / "blue/000.png", os.fsencode(own_photos / "blue") + b"/caf\xe9.png")  # noqa: PTH104
    manifest = prepare(own_photos, tmp_path / "out")
    assert manifest.rows_kept == 180


def test_a_class_folder_whose_name_is_not_utf8_is_usable_or_refused(own_photos: Path, tmp_path: Path) -> None:
    os.rename(own_photos / "blue", os.fsencode(own_photos) + b"/caf\xe9")  # noqa: PTH104
    try:
        manifest = prepare(own_photos, tmp_path / "out")
    except UserError:
        return
    assert manifest.rows_kept == 180
    assert Dataset(tmp_path / "out").manifest == manifest


def test_a_text_file_beside_every_image_does_not_hide_the_images(tmp_path: Path) -> None:
    for number in range(240):
        folder = tmp_path / "photos" / ("cat" if number < 120 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:03}.png").write_bytes(png(number))
        (folder / f"{number:03}.json").write_text("{}")
    manifest = prepare(tmp_path / "photos", tmp_path / "out")
    assert (manifest.rows_kept, manifest.rows_rejected) == (240, 240)


@pytest.mark.parametrize("every", [2, 3])
def test_good_rows_between_many_malformed_ones_are_found(tmp_path: Path, every: int) -> None:
    image = base64.b64encode(b"not used").decode()
    lines = []
    for number in range(600):
        if number % every:
            (tmp_path / f"{number}.png").write_bytes(png(number))
            lines.append(json.dumps({"image": f"{number}.png", "label": "cat" if number % 5 else "dog", "x": image}))
        else:
            lines.append("{broken")
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    manifest = prepare(tmp_path / "t.jsonl", tmp_path / "out")
    assert manifest.rows_kept == sum(1 for number in range(600) if number % every)


def test_damaged_metadata_of_one_photo_does_not_stop_the_others(own_photos: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x011A] = 72.0
    exif[0x010E] = "a description"
    file = io.BytesIO()
    Image.new("RGB", (32, 24)).save(file, "JPEG", exif=exif)
    content = file.getvalue()
    start = content.index(b"Exif\0\0") + 6
    for place in range(start + 8, start + 48):
        damaged = content[:place] + b"\x07" + content[place + 1 :]
        (own_photos / "blue" / f"damaged-{place}.jpg").write_bytes(damaged)
    manifest = prepare(own_photos, tmp_path / "out")
    assert manifest.rows_read == 180 + 40
    assert manifest.rows_kept >= 180


# Any malformed table: rows read are rows kept and rows rejected

IMAGES = st.one_of(
    st.sampled_from(["good", "broken", "missing.png", "", "  ", "."]),
    st.none(),
    st.text(max_size=8),
    st.integers(),
    st.lists(st.integers(), max_size=2),
    st.fixed_dictionaries({}, optional={"bytes": st.one_of(st.none(), st.text(max_size=3)), "path": st.just("good")}),
)
TEXT_LABELS = st.one_of(st.sampled_from(["cat", "dog", "", " "]), st.text(max_size=6))
ANY_LABELS = st.one_of(TEXT_LABELS, st.none(), st.integers(), st.floats(), st.booleans())
TABLES = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)


def prepared_is_whole(folder: Path, table: Path, rows: int) -> None:
    """Prepares a table that has 40 good rows beside whatever hypothesis made, and checks that no row is lost."""
    manifest = prepare(table, folder / "out")
    assert manifest.rows_read == rows
    assert manifest.rows_kept + manifest.duplicates + manifest.rows_rejected == rows
    assert manifest.rows_kept >= 40
    lines = (folder / "out" / REJECTED).read_text(encoding="utf-8").splitlines()
    assert len(lines) == manifest.rows_rejected
    assert Counter(json.loads(line)["reason"] for line in lines) == manifest.rejected
    dataset = Dataset(folder / "out")
    assert dataset.manifest == manifest
    assert sum(len(dataset.split(name)) for name in SPLITS) == manifest.rows_kept


def good_rows(folder: Path) -> list[tuple[str, str]]:
    (folder / "good").write_bytes(png(1))
    (folder / "broken").write_bytes(b"broken")
    rows = []
    for number in range(40):
        (folder / f"{number}.png").write_bytes(png(number))
        rows.append((f"{number}.png", "cat" if number % 2 else "dog"))
    return rows


@TABLES
@given(st.lists(st.one_of(st.tuples(IMAGES, ANY_LABELS), st.sampled_from(["{", "[1]", "nul", '"x"'])), max_size=20))
@example([("a\0b.png", "cat")])
@example([("\ud800.png", "cat"), ("good", "\udfff")])
@example([("good", float("nan")), ("good", float("inf")), ("good", ["cat"])])
@example([({"bytes": 7, "path": "good"}, "cat"), ({"path": ["good"]}, "cat")])
def test_no_row_of_a_malformed_jsonl_table_is_lost(rows: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        all_rows = [*rows, *good_rows(folder)]
        lines = [
            row if isinstance(row, str) else json.dumps({"image": row[0], "label": row[1]}, ensure_ascii=False)
            for row in all_rows
        ]
        (folder / "t.jsonl").write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
        prepared_is_whole(folder, folder / "t.jsonl", len(all_rows))


@TABLES
@given(st.lists(st.lists(st.one_of(TEXT_LABELS, st.just("good"), st.just("broken")), min_size=1, max_size=4)))
@example([["a\0b.png", "cat"]])
@example([["good", "cat", ""], ["good"], ["a\nb.png", "c\r\nd"]])
def test_no_row_of_a_malformed_csv_table_is_lost(rows: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A line that is wholly empty is no row to anyone; everything else is.
        all_rows = [row for row in rows if row != [""]] + [list(row) for row in good_rows(folder)]
        with (folder / "t.csv").open("w", newline="", encoding="utf-8", errors="replace") as file:
            # Quoted by hand: before Python 3.11 the writer of the csv module refuses a NUL.
            for row in [["image", "label"], *all_rows]:
                file.write(",".join('"' + field.replace('"', '""') + '"' for field in row) + "\r\n")
        prepared_is_whole(folder, folder / "t.csv", len(all_rows))


@TABLES
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.binary(max_size=20), st.just(png(3)), st.just(png(3)[:60])),
            st.one_of(st.none(), TEXT_LABELS),
        ),
        max_size=20,
    )
)
def test_no_row_of_a_malformed_parquet_table_is_lost(rows: list[tuple[bytes | None, str | None]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        all_rows = [*rows, *[(png(100 + number), "cat" if number % 2 else "dog") for number in range(40)]]
        images = pa.array([row[0] for row in all_rows], pa.binary())
        labels = pa.array([row[1] for row in all_rows], pa.string())
        pq.write_table(pa.table({"image": images, "label": labels}), folder / "t.parquet")
        prepared_is_whole(folder, folder / "t.parquet", len(all_rows))


# Sources that cannot be prepared


def one_class(folder: Path) -> None:
    write_photos(folder, per_class=5, classes=("blue",))


def one_class_beside_an_empty_folder(folder: Path) -> None:
    write_photos(folder, per_class=5, classes=("blue",))
    (folder / "red").mkdir()


def nothing_readable(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "x.png").write_bytes(b"broken")


def only_headers_readable(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "x.png").write_bytes(png(1, side=64)[:100])


def one_class_readable(folder: Path) -> None:
    write_photos(folder, per_class=30, classes=("blue", "red"))
    for path in (folder / "red").iterdir():
        path.write_bytes(b"broken")


def too_few_rows(folder: Path) -> None:
    write_photos(folder, per_class=1)


FAILURES = [
    (one_class, "a single class, 'blue'"),
    (one_class_beside_an_empty_folder, "a single class, 'blue'"),
    (nothing_readable, "is an image that can be read"),
    (only_headers_readable, r"None of the 2 rows .* left to learn from: 2 rejected rows \("),
    (one_class_readable, "of the 2 classes"),
    (too_few_rows, "is empty"),
]


@pytest.mark.parametrize(("make", "says"), FAILURES, ids=[make.__name__ for make, _ in FAILURES])
def test_a_source_that_cannot_be_prepared_is_refused(make: Any, says: str, tmp_path: Path) -> None:
    make(tmp_path / "photos")
    with pytest.raises(UserError, match=says):
        prepare(tmp_path / "photos", tmp_path / "out")


@pytest.mark.parametrize(("make", "says"), FAILURES, ids=[make.__name__ for make, _ in FAILURES])
def test_a_failed_preparation_leaves_nothing_that_passes_for_a_dataset(make: Any, says: str, tmp_path: Path) -> None:
    make(tmp_path / "photos")
    with pytest.raises(UserError):
        prepare(tmp_path / "photos", tmp_path / "out")
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_a_class_without_usable_images_beside_two_good_ones_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photos(tmp_path / "photos", per_class=30, classes=("blue", "green", "red"))
    for path in (tmp_path / "photos/green").iterdir():
        path.write_bytes(b"broken")
    manifest = prepare(tmp_path / "photos", tmp_path / "out")
    assert manifest.rows_rejected == 30
    assert "warning: the class 'green'" in capsys.readouterr().out


def test_all_wrong_settings_are_listed_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        prepare(
            "sample:nothing",
            tmp_path,
            task="image_clasification",
            source_format="excel",
            image_size=7,
            color_mode="CMYK",
            val_fraction=0.0,
            test_fraction=1.5,
        )
    text = str(caught.value)
    for word in ("sample:nothing", "image_clasification", "source_format", "image_size", "color_mode"):
        assert word in text
    assert "val_fraction" in text
    assert "test_fraction" in text


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["val_fraction", "test_fraction"])
def test_a_fraction_that_is_no_share_is_refused(name: str, value: float) -> None:
    assert any(name in problem for problem in PrepareSettings(**{name: value}).problems())


def test_fractions_that_leave_nothing_for_training_are_refused() -> None:
    assert PrepareSettings(val_fraction=0.5, test_fraction=0.5).problems()
    assert not PrepareSettings(val_fraction=0.49, test_fraction=0.5).problems()


def test_the_moments_of_a_dataset_are_those_of_the_rows_of_all_units(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(100, 2, 300)
    (tmp_path / "rows.csv").write_text("x,y\n" + "".join(f"{x},{-x}\n" for x in values))
    asked = PrepareSettings(source=str(tmp_path / "rows.csv"), task="regression", label_column="y")
    prepare_alone(asked, tmp_path / "data", 5000)
    dataset = Dataset(tmp_path / "data")
    assert len(dataset.manifest.splits["train"]) > 2
    for split in SPLITS:
        rows, found = dataset.split(split), dataset.manifest.moments[split]
        numbers = np.concatenate([columns["target"] for columns in rows.columns(0, len(rows))]).astype(np.float64)
        assert found["target"].rows == len(numbers)
        assert found["target"].mean == pytest.approx(numbers.mean(axis=0))
        assert found["target"].deviation == pytest.approx(numbers.std(axis=0))
