"""The files of a source: a path or a pattern, on this machine or in object storage, and the format they are in."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from gpu_pipelines.artifacts.remote_files import is_remote, listed, open_remote, read_remote
from gpu_pipelines.errors import UserError, some_of

if TYPE_CHECKING:
    from gpu_pipelines.components.data_prep.settings import PrepareSettings

TABLES = ("csv", "jsonl", "parquet", "arrow")
FORMATS = (*TABLES, "text", "tar", "images")
#: What each task reads.
FORMATS_OF_TASK = {
    "image_classification": (*TABLES, "tar", "images"),
    "text_classification": TABLES,
    "causal_lm": (*TABLES, "text"),
}
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
_SUFFIXES = {
    **{f".{name}": name for name in TABLES},
    ".ndjson": "jsonl",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".txt": "text",
    ".tar": "tar",
    ".tgz": "tar",
    **dict.fromkeys(IMAGE_SUFFIXES, "images"),
}
#: Of these, and of no others, the content may be compressed as a whole.
_COMPRESSED = ("csv", "jsonl", "text", "tar")
_COMPRESSIONS = (".gz", ".zst")
#: Schemes that a row of a table may name an image in.
_SCHEMES = ("gs", "gcs", "s3", "hf")


@dataclass(frozen=True)
class SourceFile:
    """One file of a source.

    Attributes:
        place: its path or URI.
        name: for people, relative to the source.
        size: bytes; 0 where nobody asked.
    """

    place: str
    name: str
    size: int = 0

    def open(self) -> BinaryIO:
        """Opens it for reading in pieces."""
        return open_remote(self.place) if is_remote(self.place) else Path(self.place).open("rb")

    def read(self) -> bytes:
        """All of its content.

        Raises:
            OSError: there is no such file, or it is not a regular one.
            UserError: the object storage does not answer.
        """
        if is_remote(self.place):
            return read_remote(self.place)
        path = Path(self.place)
        # A table can name anything; a pipe or a device would block for ever or never end.
        if path.exists() and not path.is_file():
            raise OSError("not a regular file")
        return path.read_bytes()

    def beside(self, name: str) -> SourceFile:
        """The file that this one, a table, names: relative to itself, or in full."""
        if is_remote(name):
            if name.partition("://")[0] not in _SCHEMES:
                raise OSError("neither a path nor in object storage")
            return SourceFile(name, name)
        if is_remote(self.place):
            return SourceFile(f"{self.place.rpartition('/')[0]}/{name}", name)
        return SourceFile(str(Path(self.place).parent / name), name)


@dataclass(frozen=True)
class Source:
    """What is read: files in one format. Of images, the folder below which each has its class is `root`."""

    format: str
    root: str
    names: tuple[str, ...]
    sizes: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[SourceFile]:
        for number, name in enumerate(self.names):
            size = self.sizes[number] if self.sizes else 0
            yield SourceFile(f"{self.root}{name}", shown_path(name), size)


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as text; what is not UTF-8 of it is shown as escapes."""
    text = os.fspath(path)
    try:
        return os.fsencode(text).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte; no file has such a name
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def format_of(name: str) -> str | None:
    """The format that a file's name tells, None if it tells none."""
    path = PurePosixPath(name.lower())
    if path.suffix not in _COMPRESSIONS:
        return _SUFFIXES.get(path.suffix)
    inner = _SUFFIXES.get(PurePosixPath(path.stem).suffix)
    return inner if inner in _COMPRESSED else None


@dataclass(frozen=True)
class _Listing:
    """Files by name: what all begin with, the rest of each name with its size in bytes, and what was named."""

    root: str
    files: dict[str, int]
    kind: str  # file, folder, pattern or nothing


def find_source(settings: PrepareSettings) -> Source:
    """Finds the files of a source.

    Args:
        settings: `source`, `source_format` and `task` are read.

    Raises:
        UserError: there are none, they are in several formats, or in one that the task does not read.
    """
    source = shown_path(settings.source)[:200]
    try:
        listing = _listed(settings.source)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"The source {source} cannot be read: {reason}.") from None
    if listing.kind == "nothing":
        raise UserError(f"The source {source} does not exist.", _remedy(settings.task))
    if listing.kind == "folder":
        return _folder(settings, listing)
    if not listing.files:
        raise UserError(f"No file matches {source}.", _remedy(settings.task))
    return _of_one_format(settings, listing, listing.files, settings.source_format)


def source_state(source: str) -> str:
    """Hex SHA-256 of the names of all files of a source with what tells one version of a file from another.

    Raises:
        UserError: the object storage does not answer.
    """
    told = ("size", "generation", "md5Hash", "etag", "ETag", "mtime")
    if is_remote(source):
        found = listed(source, is_pattern(source)).items()
        entries = [(place, [str(info.get(key)) for key in told]) for place, info in found]
    else:
        listing = _listed(source)
        statuses = [(f"{listing.root}{name}", Path(f"{listing.root}{name}").stat()) for name in listing.files]
        entries = [(repr(place), [str(status.st_size), str(status.st_mtime_ns)]) for place, status in statuses]
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def is_pattern(source: str) -> bool:
    """Whether a source has `*`, `?` or `[…]` in it and is not the name of something that exists."""
    return glob.has_magic(source) and (is_remote(source) or not Path(source).expanduser().exists())


def _listed(source: str) -> _Listing:
    if is_remote(source):
        return _listed_remote(source.rstrip("/"))
    path = Path(source).expanduser()
    if is_pattern(source):
        root, kind = _fixed_part(str(path)), "pattern"
        # pathlib takes no absolute patterns.
        found = [place for place in glob.glob(str(path), recursive=True) if Path(place).is_file()]  # noqa: PTH207
    elif path.is_dir():
        root, kind, found = f"{str(path).rstrip('/')}/", "folder", list(_files_below(path))
    else:
        root, kind = str(path)[: str(path).rfind("/") + 1], "file" if path.exists() else "nothing"
        found = [str(path)] if path.exists() else []
    names = sorted((place[len(root) :] for place in found), key=lambda name: name.split("/"))
    return _Listing(root, {name: Path(f"{root}{name}").stat().st_size for name in names}, kind)


def _listed_remote(source: str) -> _Listing:
    found = listed(source, is_pattern(source))
    if is_pattern(source):
        root, kind = _fixed_part(source), "pattern"
    elif source in found:
        root, kind = source[: source.rindex("/") + 1], "file"
    else:
        root, kind = f"{source}/", "folder" if found else "nothing"
    names = {place[len(root) :]: int(info.get("size") or 0) for place, info in found.items()}
    shown = sorted((name for name in names if not _is_hidden(name)), key=lambda name: name.split("/"))
    return _Listing(root, {name: names[name] for name in shown}, kind)


def _fixed_part(pattern: str) -> str:
    """The folders of a pattern before the first one that is left open."""
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    return "".join(f"{part}/" for part in parts[:fixed])


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _files_below(folder: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        where = shown_path(error.filename)
        raise UserError(f"The folder {where} cannot be read: {error.strerror}.", "Mend its permissions.")

    yield from (str(path) for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    # Only at the first level a link to a folder is followed; deeper ones could lead in a circle.
    for below in class_folders(folder):
        for place, folders, files in os.walk(below, onerror=refuse):
            folders[:] = [name for name in folders if not name.startswith(".")]
            paths = (os.path.join(place, name) for name in files if not name.startswith("."))  # noqa: PTH118 (speed)
            yield from (path for path in paths if os.path.isfile(path))  # noqa: PTH113 (speed)


def class_folders(folder: Path) -> list[Path]:
    """The sub-folders that name the classes, sorted; hidden ones are none."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _folder(settings: PrepareSettings, listing: _Listing) -> Source:
    files, wanted = listing.files, settings.source_format
    read = FORMATS_OF_TASK[settings.task]
    at_the_top = {format_of(name) for name in files if "/" not in name} - {"images"}
    if wanted == "auto" and "images" in read and not (at_the_top & set(read) and not _has_sub_folders(listing)):
        wanted = "images"
    if wanted == "images":
        return _images_by_class(settings.source, listing)
    if wanted == "auto":
        chosen = {name: size for name, size in files.items() if format_of(name) in read}
    else:
        chosen = {name: size for name, size in files.items() if format_of(name) == wanted}
        # Files without a suffix are what distributed programs write (part-00000).
        chosen = chosen or {name: size for name, size in files.items() if not Path(name).suffix}
    if not chosen:
        what = f"holds no files that {settings.task} reads" if files else "is empty"
        raise UserError(f"The folder {settings.source} {what}.", _remedy(settings.task))
    return _of_one_format(settings, listing, chosen, wanted)


def _has_sub_folders(listing: _Listing) -> bool:
    if is_remote(listing.root):
        return any("/" in name for name in listing.files)
    return bool(class_folders(Path(listing.root)))


def _images_by_class(source: str, listing: _Listing) -> Source:
    files = {name: size for name, size in listing.files.items() if "/" in name}
    if files:
        return Source("images", listing.root, tuple(files), tuple(files.values()))
    if _has_sub_folders(listing):
        raise UserError(f"The sub-folders of {source} hold no files.", "Put the images of each class into them.")
    what = "has no sub-folders" if is_remote(source) or any(Path(listing.root).iterdir()) else "is empty"
    raise UserError(f"The folder {source} {what}.", "Put the images of each class into a sub-folder of its name.")


def _of_one_format(settings: PrepareSettings, listing: _Listing, files: dict[str, int], wanted: str) -> Source:
    if wanted == "auto":
        found = Counter(format_of(name) or "unknown" for name in files)
        if len(found) > 1:
            counts = some_of([f"{count:,} × {name}" for name, count in found.items()], most=8)
            raise UserError(
                f"The source {settings.source} has files in several formats: {counts}.",
                "Give a pattern for one of them (such as folder/*.jsonl), or source_format.",
            )
        wanted = next(iter(found))
    read = FORMATS_OF_TASK[settings.task]
    if wanted not in read or (wanted == "images" and listing.kind == "file"):
        if settings.task == "image_classification":
            raise UserError(
                f"The source {settings.source} is neither a folder nor a table ({', '.join(read)}).",
                _remedy(settings.task),
            )
        raise UserError(
            f"The source {settings.source} is no file of texts that {settings.task} reads ({', '.join(read)}).",
            _remedy(settings.task),
        )
    return Source(wanted, listing.root, tuple(files), tuple(files.values()))


def _remedy(task: str) -> str:
    more = {"causal_lm": ", text", "image_classification": ", tar shards"}.get(task, "")
    classes = ", or a folder with one sub-folder of images per class" if task == "image_classification" else ""
    return (
        f"Give files (JSONL, CSV, Parquet, Arrow{more}){classes}: a path, a pattern or gs://…; or a sample. "
        "source_format says what a suffix does not."
    )
