"""The files of a source: a path or a pattern, on this machine or in object storage, and the format they are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from gpu_pipelines.artifacts.remote_files import is_remote, open_remote, read_remote
from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.sources.listing import Listing, class_folders, list_source, shown_path
from gpu_pipelines.sources.names import is_bigquery, is_hub_id

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
        if self.place.startswith("bq://"):
            raise OSError("not in object storage, and beside a table in BigQuery there are no files")
        if is_remote(self.place):
            return SourceFile(f"{self.place.rpartition('/')[0]}/{name}", name)
        return SourceFile(str(Path(self.place).parent / name), name)


@dataclass(frozen=True)
class Source:
    """What is read: files in one format. Of images, the folder below which each has its class is `root`.

    Of a table in BigQuery the files are the streams of a read session, and `columns` those that are read.
    """

    format: str
    root: str
    names: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[SourceFile]:
        for number, name in enumerate(self.names):
            size = self.sizes[number] if self.sizes else 0
            yield SourceFile(f"{self.root}{name}", shown_path(name), size)


def format_of(name: str) -> str | None:
    """The format that a file's name tells, None if it tells none."""
    path = PurePosixPath(name.lower())
    if path.suffix not in _COMPRESSIONS:
        return _SUFFIXES.get(path.suffix)
    inner = _SUFFIXES.get(PurePosixPath(path.stem).suffix)
    return inner if inner in _COMPRESSED else None


def find_source(settings: PrepareSettings) -> Source:
    """Finds the files of a source.

    Args:
        settings: `source`, `source_format` and `task` are read.

    Raises:
        UserError: there are none, they are in several formats, or in one that the task does not read.
    """
    if is_bigquery(settings.source):
        from gpu_pipelines.components.data_prep.bigquery_source import find_table

        return find_table(settings)
    if is_hub_id(settings.source):
        from gpu_pipelines.components.data_prep.hub_source import find_data_set

        return find_data_set(settings)
    source = shown_path(settings.source)[:200]
    try:
        listing = list_source(settings.source)
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


def _folder(settings: PrepareSettings, listing: Listing) -> Source:
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


def _has_sub_folders(listing: Listing) -> bool:
    if is_remote(listing.root):
        return any("/" in name for name in listing.files)
    return bool(class_folders(Path(listing.root)))


def _images_by_class(source: str, listing: Listing) -> Source:
    files = {name: size for name, size in listing.files.items() if "/" in name}
    if files:
        return Source("images", listing.root, tuple(files), tuple(files.values()))
    if _has_sub_folders(listing):
        raise UserError(f"The sub-folders of {source} hold no files.", "Put the images of each class into them.")
    what = "has no sub-folders" if is_remote(source) or any(Path(listing.root).iterdir()) else "is empty"
    raise UserError(f"The folder {source} {what}.", "Put the images of each class into a sub-folder of its name.")


def _of_one_format(settings: PrepareSettings, listing: Listing, files: dict[str, int], wanted: str) -> Source:
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
