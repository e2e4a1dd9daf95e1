"""Archives of images in folders, as data sets are downloaded: .zip, and .tar with any compression.

They are unpacked into the scratch folder of the step, which is read as any folder is. A member is written only below
it, and no more is written than an archive of images can hold.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.compression import DamagedError, compression_of, require_no_bomb
from gpu_pipelines.data.sources.files import LARGEST_IMAGE, SourceFile, format_of
from gpu_pipelines.data.sources.listing import is_pattern, list_source, shown_path
from gpu_pipelines.data.sources.row_streams import Meter, Problem, as_damaged, decompressed
from gpu_pipelines.data.sources.tar_shards import members_of_tar
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.formats import TABLES
from gpu_pipelines.tasks.tasks import task_named

#: Members of a tar file that tell what it holds; a zip archive has a list of them.
_LOOKED_AT = 100
#: What a file takes of a disk, or of an archive, besides its content.
_OF_A_FILE = 512
#: Bytes of the disk that are left to others.
_LEFT_FREE = 256 << 20
#: What samples of WebDataset have beside an image.
_BESIDE_SAMPLES = (".cls", ".json")


def archive_of(settings: PrepareSettings) -> SourceFile | None:
    """The source, if it is an archive of images in folders, which is unpacked where it is read; None otherwise.

    Where nothing is learned images may be anywhere in a zip archive, and a tar file is read as shards of WebDataset,
    whose samples need no more than an image.

    Args:
        settings: `source`, `source_format` and `task` are read.

    Raises:
        UserError: it cannot be read.
    """
    if "images" not in task_named(settings.task).formats or settings.source_format not in ("auto", "images"):
        return None
    is_zip = settings.source.lower().endswith(".zip")
    if not is_zip and not (format_of(settings.source) == "tar" and settings.has_labels):
        return None
    try:
        listing = None if is_pattern(settings.source) else list_source(settings.source)
    except (OSError, RuntimeError, ValueError):  # whoever reads it says so
        return None
    if listing is None or listing.kind != "file":
        return None
    ((name, size),) = listing.files.items()
    file = SourceFile(f"{listing.root}{name}", shown_path(name), size)
    return file if _holds_images(file, is_zip=is_zip, in_classes=settings.has_labels) else None


def _holds_images(file: SourceFile, *, is_zip: bool, in_classes: bool) -> bool:
    """Whether images are in folders, and no table is among them, which might name the classes."""
    with as_damaged(file, "an archive"):
        names = _names_in_zip(file) if is_zip else [name for name, _ in islice(_members(file), _LOOKED_AT)]
    kinds = {name: format_of(name) for name in names}
    images = {name.rpartition(".")[0] for name in names if kinds[name] == "images" and ("/" in name or not in_classes)}
    if not images or any(kind in TABLES for kind in kinds.values()):
        return False
    return is_zip or not any(name.endswith(_BESIDE_SAMPLES) and name.rpartition(".")[0] in images for name in names)


def unpacked(file: SourceFile, folder: Path, *, in_classes: bool) -> Path:
    """Unpacks an archive, and gives the folder in it that holds the classes or the images.

    Args:
        file: the archive.
        folder: is made.
        in_classes: whether the folders are classes.

    Raises:
        UserError: it is damaged, has a member outside of it, looks like a bomb, or does not fit on the disk.
    """
    print(f"unpacking {file.name}", flush=True)
    folder.mkdir(parents=True)
    size = 0
    with as_damaged(file, "an archive"):
        for name, content in _members(file):
            if isinstance(content, Problem):
                raise DamagedError(content.detail)
            size += len(content) + _OF_A_FILE
            require_no_bomb(file.size, size)
            if shutil.disk_usage(folder).free < len(content) + _LEFT_FREE:
                raise UserError(
                    f"{file.name} does not fit on the disk of {folder.parent} when unpacked.",
                    "Set TMPDIR to a folder on a larger one, or unpack it yourself and give its folder.",
                )
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    return _innermost(folder, in_classes=in_classes)


def _innermost(folder: Path, *, in_classes: bool) -> Path:
    """The folder without those around it that hold nothing else, as many archives begin with one of their own name."""
    entries = list(folder.iterdir())
    folders = [entry for entry in entries if entry.is_dir()]
    if len(folders) != 1 or (len(entries) > 1 and not in_classes):
        return folder
    if in_classes and not any(entry.is_dir() for entry in folders[0].iterdir()):
        return folder
    return _innermost(folders[0], in_classes=in_classes)


def _members(file: SourceFile) -> Iterator[tuple[str, bytes | Problem]]:
    """The files in an archive that a folder would show, each with its path below the folder."""
    found = _members_of_zip(file) if file.name.lower().endswith(".zip") else _members_of_tar(file)
    for name, content in found:
        if path := _path_of(name):
            yield path, content


def _members_of_tar(file: SourceFile) -> Iterator[tuple[str, bytes | Problem]]:
    with decompressed(file, Meter.of_nothing()) as stored:
        yield from members_of_tar(stored)


def _members_of_zip(file: SourceFile) -> Iterator[tuple[str, bytes | Problem]]:
    with file.open() as stored, zipfile.ZipFile(stored) as archive:
        for info in archive.infolist():
            if info.is_dir() or not _path_of(info.filename):
                continue
            if info.flag_bits & 1:
                raise DamagedError("it is an encrypted zip archive")
            with archive.open(info) as member:
                content = member.read(LARGEST_IMAGE + 1)
            too_large = Problem("", f"{info.filename} is larger than {LARGEST_IMAGE >> 20} MiB")
            yield info.filename, too_large if len(content) > LARGEST_IMAGE else content


def _names_in_zip(file: SourceFile) -> list[str]:
    with file.open() as stored:
        if compression_of(stored) != "zip":
            return []
        with zipfile.ZipFile(stored) as archive:
            return [path for info in archive.infolist() if not info.is_dir() and (path := _path_of(info.filename))]


def _path_of(name: str) -> str:
    """The path of a member below the folder; empty for a hidden one, which is passed over, as macOS adds them.

    Raises:
        DamagedError: it is outside.
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise DamagedError(f"it has a member outside of it, {shown_path(name)[:200]!r}")
    return "" if any(part.startswith(".") for part in parts) or parts[:1] == ["__MACOSX"] else "/".join(parts)
