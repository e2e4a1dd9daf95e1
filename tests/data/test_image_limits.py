"""What images a source may hold, and where they may be: sizes, formats, depths, and paths that a table names."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from conftest import write_photos
from PIL import Image

from gpu_pipelines.artifacts.dataset import Manifest
from gpu_pipelines.artifacts.image_features import (
    IMAGE_FORMATS,
    ImageGeometry,
    UnreadableImageError,
    choose_geometry,
    decode,
)
from gpu_pipelines.data.images.sources import Record, image_records
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.file_source import find_files
from gpu_pipelines.data.sources.row_streams import Meter


def png(color: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (color, 0, 0)).save(file, "PNG")
    return file.getvalue()


def records(table: Path, image_root: str = "") -> list[Record]:
    settings = PrepareSettings(source=str(table), image_root=image_root)
    found = find_files(settings)
    return list(image_records(found, settings, Meter(found)))


def read(record: Record) -> bytes | str:
    try:
        return record.read()
    except OSError as error:
        return str(error)


def prepared(source: Path, directory: Path) -> Manifest:
    settings = PrepareSettings(source=str(source), image_size=8, color_mode="RGB", val_fraction=0.3, test_fraction=0.3)
    return prepare_data(settings, directory)


def test_a_sparse_file_of_terabytes_is_a_rejected_row_and_takes_no_memory(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=15)
    with (photos / "red/huge.png").open("wb") as file:
        file.write(png())
        file.truncate(12 << 30)
    tracemalloc.start()
    manifest = prepared(photos, tmp_path / "out")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert manifest.rejected == {"file cannot be read": 1}
    assert "red/huge.png" in (tmp_path / "out/rejected.jsonl").read_text()
    assert "larger than 256 MiB" in (tmp_path / "out/rejected.jsonl").read_text()
    assert most < 64 << 20


def test_a_large_file_that_a_table_names_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(12 << 30)
    (tmp_path / "t.csv").write_text("image,label\nhuge.png,a\n")
    assert read(records(tmp_path / "t.csv")[0]) == "it is larger than 256 MiB"


def test_an_eps_named_png_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "EPS")
    with pytest.raises(UnreadableImageError, match="an image in the format EPS; those that are read are PNG, JPEG"):
        decode(file.getvalue(), ImageGeometry(8, "RGB"))
    assert choose_geometry([file.getvalue()]) is None
    assert not (tmp_path / "started").exists()
    assert "EPS" not in IMAGE_FORMATS


# Paths that a table names


def test_paths_of_windows_name_images_and_stay_in_the_folder(tmp_path: Path) -> None:
    """As `datasets` reads a table that was written there."""
    (tmp_path / "data/images").mkdir(parents=True)
    (tmp_path / "outside.png").write_bytes(png(1))
    (tmp_path / "data/images/a.png").write_bytes(png(2))
    (tmp_path / "data/images\\b.png").write_bytes(png(3))
    table = tmp_path / "data/t.csv"
    table.write_text("image,label\nimages\\a.png,a\n.\\images\\a.png,a\nimages\\b.png,a\n..\\outside.png,a\n")
    *inside, outside = (read(record) for record in records(table))
    assert inside == [png(2), png(2), png(3)]
    assert "outside of the folder of the source" in str(outside)


def test_uris_of_files_name_images_and_stay_in_the_folder(tmp_path: Path) -> None:
    """As `Path.as_uri` writes them, and Spark with a single slash."""
    (tmp_path / "data").mkdir()
    (tmp_path / "outside.png").write_bytes(png(1))
    image = tmp_path / "data/ünï ok.png"
    image.write_bytes(png(2))
    outside = (tmp_path / "outside.png").as_uri()
    names = [
        image.as_uri(),
        f"file:{image}",
        outside,
        f"{tmp_path.as_uri()}/data/%2E%2E/outside.png",
        "file:///etc/passwd",
    ]
    (tmp_path / "data/t.csv").write_text("image,label\n" + "".join(f"{name},a\n" for name in names))
    *inside, first, second, third = (read(record) for record in records(tmp_path / "data/t.csv"))
    assert inside == [png(2)] * 2
    assert all("outside of the folder of the source" in str(each) for each in (first, second, third))


def test_paths_stay_in_the_folder_of_the_source_or_in_image_root(tmp_path: Path) -> None:
    (tmp_path / "data/tables").mkdir(parents=True)
    (tmp_path / "data/ünï ok").mkdir()
    (tmp_path / "outside.png").write_bytes(png(1))
    (tmp_path / "data/ünï ok/a.png").write_bytes(png(2))
    (tmp_path / "data/link.png").symlink_to(tmp_path / "outside.png")
    (tmp_path / "data/inside.png").symlink_to("ünï ok/a.png")
    (tmp_path / "data/folder").symlink_to(tmp_path)
    (tmp_path / "data-more").mkdir()
    (tmp_path / "data-more/b.png").write_bytes(png(3))
    names = [
        "../ünï ok/a.png", "../inside.png", f"{tmp_path}/data/ünï ok/a.png",
        "/etc/passwd", "../../outside.png", "../link.png", "../folder/outside.png", "../../data-more/b.png",
    ]  # fmt: skip
    table = tmp_path / "data/tables/t.csv"
    table.write_text("image,label\n" + "".join(f"{name},a\n" for name in names))
    # Of a folder of tables all of it may be named, of a single table what is beside it and below.
    (inside, _, _, passwd, *outside) = [read(record) for record in records(tmp_path / "data/tables/../tables/*.csv")]
    assert "outside of the folder of the source" in str(inside)
    found = [read(record) for record in records(tmp_path / "data/*/t.csv")]
    assert found[:3] == [png(2)] * 3
    assert all("outside of the folder of the source; image_root" in str(each) for each in found[3:])
    found = [read(record) for record in records(table, image_root=str(tmp_path / "data/tables"))]
    assert not any(isinstance(each, bytes) for each in found)
    found = [read(record) for record in records(table, image_root=str(tmp_path))]
    assert found[2] == png(2)
    assert not isinstance(passwd, bytes)
    assert isinstance(read(records(table, image_root="/")[3]), bytes)
    assert all(not isinstance(each, bytes) for each in outside)


def test_paths_are_relative_to_image_root(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=1)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/t.csv").write_text("image,label\nred/000.png,red\n../t.csv,x\ngs://bucket/a.png,x\n")
    first, *others = records(tmp_path / "tables/t.csv", image_root=str(photos))
    assert read(first) == (photos / "red/000.png").read_bytes()
    assert ["outside of" in str(read(record)) for record in others] == [True, True]


def test_a_row_in_a_storage_that_nothing_reads_is_rejected_alone(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=15)
    lines = [f"{path.relative_to(photos)},{path.parent.name}\n" for path in sorted(photos.rglob("*.png"))]
    (photos / "t.csv").write_text("image,label\n" + "".join(lines) + "s3://bucket/a.png,red\n")
    manifest = prepared(photos / "t.csv", tmp_path / "out")
    assert manifest.rejected == {"file cannot be read": 1}
    assert manifest.records_kept == 30
    assert "s3" in (tmp_path / "out/rejected.jsonl").read_text()


def test_files_of_a_bucket_are_bounded_and_empty_ones_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conftest import storage_emulator

    from gpu_pipelines.artifacts.remote_files import RemoteFolder
    from gpu_pipelines.data.sources import files

    for name, content in (("a.png", png()), ("empty.png", b""), ("large.png", bytes(5000))):
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(files, "LARGEST_IMAGE", 4000)
    with storage_emulator("limits") as uri:
        RemoteFolder(uri).upload(tmp_path, ["a.png", "empty.png", "large.png"])
        names = ("a.png", "empty.png", "large.png", "../a.png", f"{uri}/a.png")
        (tmp_path / "t.csv").write_text("image,label\n" + "".join(f"{name},x\n" for name in names))
        RemoteFolder(f"{uri}/tables").upload(tmp_path, ["t.csv"])
        assert [read(record) for record in records(tmp_path / "t.csv", image_root=uri)][:2] == [png(), b""]
        found = [read(record) for record in records(tmp_path / "t.csv", image_root=uri)]
        assert ["larger than" in str(found[2]), "outside" in str(found[3]), found[4]] == [True, True, png()]
        # Of a table in a bucket, no path leads out of its folder; a URI says where it leads.
        settings = PrepareSettings(source=f"{uri}/tables/t.csv")
        source = find_files(settings)
        above, given = list(image_records(source, settings, Meter(source)))[3:]
        assert "outside of the folder" in str(read(above))
        assert read(given) == png()


# Depths


def tiff(values: np.ndarray) -> bytes:
    """A grey TIFF, little-endian and in one strip, of any number type. Source: TIFF 6.0, sections 2, 3 and 19."""
    height, width = values.shape
    content = values.astype(values.dtype.newbyteorder("<")).tobytes()
    sample = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    tags = [
        (256, width), (257, height), (258, 8 * values.dtype.itemsize), (259, 1), (262, 1), (273, 8), (277, 1),
        (278, height), (279, len(content)), (339, sample),
    ]  # fmt: skip
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 8 + len(content)) + content + directory + bytes(4)


RAMP = np.tile(np.linspace(0, 1, 16), (16, 1))


@pytest.mark.parametrize(
    ("white", "kind"),
    [
        (1, np.float32), (255, np.float32), (65535, np.uint16), (32767, np.int16), (255, np.int32), (65535, np.int32),
        (65535, np.uint32), (255, np.uint8),
    ],
)  # fmt: skip
def test_black_to_white_is_that_of_the_number_type(white: int, kind: type) -> None:
    got = decode(tiff((RAMP * white).astype(kind)), ImageGeometry(16, "L"))
    wanted = np.rint(RAMP * 255)
    assert np.abs(got[0].astype(float) - wanted).max() <= 1


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [(0, 1000, np.float32), (-1, 1, np.float32), (-500, 500, np.int16), (0, 2**31 - 1, np.int32), (-9, 9, np.int32)],
)
def test_values_whose_white_is_not_known_are_refused_with_the_reason(low: int, high: int, kind: type) -> None:
    with pytest.raises(UnreadableImageError, match=r"white is defined only for 0 to .*; save it with 8 or 16 bits"):
        decode(tiff((low + RAMP * (high - low)).astype(kind)), ImageGeometry(16, "L"))
