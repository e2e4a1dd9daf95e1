"""Archives of images in folders, as data sets are downloaded: read as the unpacked folder is, and nothing beyond it."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import write_photos

from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import problems_here
from gpu_pipelines.data.sources import compression
from gpu_pipelines.data.sources.sources import open_source
from gpu_pipelines.errors import UserError


def dataset(source: str, place: Path) -> dict[str, bytes]:
    """The files of a prepared dataset, without what names the source and its version."""
    settings = PrepareSettings(source=source, max_rejected="20%")
    assert problems_here(settings) == []
    prepare_data(settings, place)
    files = {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    told = json.loads(files.pop("dataset.json"))
    left = {name: value for name, value in told.items() if name not in ("source", "source_fingerprint")}
    return {**files, "dataset.json": json.dumps(left).encode()}


def packed(folder: Path, kind: str, *, with_folder: bool) -> Path:
    """An archive of what a folder holds, or of the folder."""
    base = (folder.parent, folder.name) if with_folder else (folder, ".")
    return Path(shutil.make_archive(str(folder.parent / f"packed-{kind}"), kind, *base))


@pytest.mark.parametrize(
    ("kind", "with_folder"),
    [("zip", True), ("zip", False), ("tar", False), ("gztar", True), ("gztar", False), ("xztar", True)],
)
def test_an_archive_becomes_the_dataset_of_the_unpacked_folder(
    kind: str, with_folder: bool, tmp_path: Path, bucket: str
) -> None:
    photos = write_photos(tmp_path / "photos", per_class=12, classes=("blue", "red", "green"))
    (photos / "red/deep").mkdir()
    shutil.copy(photos / "red/003.png", photos / "red/deep/a copy.png")
    (photos / "green/broken.png").write_bytes(b"none")
    (photos / "LICENSE.txt").write_text("free")
    (photos / "red/.DS_Store").write_text("of macOS")
    archive = packed(photos, kind, with_folder=with_folder)
    (photos / "red/.DS_Store").unlink()
    unpacked = dataset(str(photos), tmp_path / "unpacked")
    assert len([name for name in unpacked if name.endswith(".arrow")]) == 3
    assert dataset(str(archive), tmp_path / "here") == unpacked
    RemoteFolder(f"{bucket}/{kind}").upload(archive.parent, [archive.name])
    assert dataset(f"{bucket}/{kind}/{archive.name}", tmp_path / "there") == unpacked


def zip_of(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")


def tar_of(path: Path, *names: str) -> None:
    with tarfile.open(path, "w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(b"content")
            archive.addfile(member, io.BytesIO(b"content"))


WRITERS = {"t.zip": zip_of, "t.tar": tar_of}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("outside", ["../evil.png", "cat/../../evil.png", "/evil.png"])
def test_nothing_is_written_outside(name: str, outside: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name, "cat/1.png", "dog/1.png", outside)
    with pytest.raises(UserError, match=rf"{name} is not an archive .*: it has a member outside of it, '{outside}'"):
        open_source(PrepareSettings(source=str(tmp_path / name)), tmp_path / "scratch")
    assert not list(tmp_path.rglob("evil.png"))


def test_links_and_devices_are_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        for name, kind in {
            "cat/1.png": tarfile.REGTYPE,
            "dog/1.png": tarfile.REGTYPE,
            "cat": tarfile.SYMTYPE,
            "dog/2.png": tarfile.SYMTYPE,
            "dog/3.png": tarfile.LNKTYPE,
            "dog/4.png": tarfile.FIFOTYPE,
        }.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(tmp_path / "secret")
            archive.addfile(member)
    found = open_source(PrepareSettings(source=str(tmp_path / "t.tar")), tmp_path / "scratch")
    assert found.names == ("cat/1.png", "dog/1.png")


@pytest.mark.parametrize("name", ["t.zip", "t.tar.gz"])
def test_no_more_is_unpacked_than_an_archive_of_images_holds(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("cat", "dog"):
        (tmp_path / "photos" / each).mkdir(parents=True)
        for number in range(4):
            (tmp_path / "photos" / each / f"{number}.png").write_bytes(bytes(4 << 20))
    archive = packed(tmp_path / "photos", "zip" if name == "t.zip" else "gztar", with_folder=False).rename(
        tmp_path / name
    )
    monkeypatch.setattr(compression, "_LARGE", 10 << 20)
    with pytest.raises(UserError, match="looks like a zip bomb"):
        open_source(PrepareSettings(source=str(archive)), tmp_path / "scratch")
    assert sum(path.stat().st_size for path in (tmp_path / "scratch").rglob("*") if path.is_file()) <= 10 << 20


@pytest.mark.parametrize("kind", ["zip", "tar", "gztar"])
def test_an_archive_that_was_cut_off_is_refused(kind: str, tmp_path: Path) -> None:
    archive = packed(write_photos(tmp_path / "photos", per_class=4), kind, with_folder=False)
    os.truncate(archive, archive.stat().st_size * 2 // 3)
    with pytest.raises(UserError, match=f"The file {archive.name} is not an archive that can be read"):
        open_source(PrepareSettings(source=str(archive)), tmp_path / "scratch")


@pytest.mark.parametrize("name", WRITERS)
def test_folders_of_train_and_test_are_no_classes(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name, "data/train/cat/1.png", "data/test/cat/1.png")
    with pytest.raises(UserError) as caught:
        open_source(PrepareSettings(source=str(tmp_path / name)), tmp_path / "scratch")
    assert f"The folders of {tmp_path / name} are splits, not classes" in caught.value.problem
    assert caught.value.remedy == "Unpack it, and give its folders as source and test_source."


@pytest.mark.parametrize(
    ("task", "write", "names"),
    [
        ("text_classification", zip_of, ["a.csv", "b.csv"]),
        ("text_classification", tar_of, ["cat/1.png", "dog/1.png"]),
        ("image_classification", zip_of, ["1.png", "2.png", "metadata.csv"]),
        ("image_classification", zip_of, ["cat/1.png", "dog/1.png", "metadata.csv"]),
        ("image_classification", tar_of, ["1.png", "2.png"]),
    ],
)
def test_any_other_archive_is_answered_with_unpacking_it(
    task: str, write: Callable[..., None], names: list[str], tmp_path: Path
) -> None:
    archive = tmp_path / ("t.zip" if write is zip_of else "t.tar")
    write(archive, *names)
    (problem,) = problems_here(PrepareSettings(source=str(archive), task=task))
    assert "Unpack any other archive, and give its folder." in problem
