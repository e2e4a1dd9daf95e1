"""Files of a source: a path or a pattern, on this machine or in object storage, in one of the formats that are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import sha256_of_file
from gpu_pipelines.artifacts.remote_files import folders_in, is_remote, listed, problems_of_place
from gpu_pipelines.data.divided import require_classes_not_splits
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.archives import archive_of, unpacked
from gpu_pipelines.data.sources.file_kinds import kinds_of
from gpu_pipelines.data.sources.files import Dialect, format_of, has_no_suffix, is_json
from gpu_pipelines.data.sources.listing import (
    BESIDE_CLASSES,
    REMEDY_OF_ARCHIVE,
    TABLE_BESIDE,
    Listing,
    class_folders,
    has_files,
    is_pattern,
    list_source,
    remedy_of_table,
    shown_path,
)
from gpu_pipelines.data.sources.source import Source, SourceFiles
from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.tasks.formats import FORMATS, TABLES
from gpu_pipelines.tasks.tasks import task_named

#: What names of files begin with that mean the same on every machine.
READ_ANYWHERE = ("gs://", "hf://")
#: Why a file of a folder is not read.
UNKNOWN = "neither its name nor its content tells a format that is read"
BESIDE_TABLES = "images, of which those that tables name are read"
_ROWS_OF_JSON = (
    "Write its rows as JSON objects, one to a line or all in one list; if an object has the list, write only that."
)


class Files(Source):
    """Files, folders and patterns; also every name that no other source knows."""

    title, example = "files", "data/*.jsonl"
    parameters = ("source_format",)

    def problems(self, settings: PrepareSettings) -> list[str]:
        return problems_of_place("source", settings.source)

    def is_read_anywhere(self, uri: str) -> bool:
        return uri.startswith(READ_ANYWHERE)

    def is_seen_from_afar(self, uri: str) -> bool:
        return is_remote(uri)

    def require_readable(self, settings: PrepareSettings) -> None:
        """Looks at the names of the files, the columns of the first, and the classes of what is small."""
        from gpu_pipelines.data.source_check import require_usable_source

        folders = _folders_of_classes(settings)
        if archive_of(settings):
            return  # it is unpacked by the step that reads it
        if not folders:
            require_usable_source(find_files(settings), settings)
        elif _folders(f"{settings.source.rstrip('/')}/{folders[0]}"):  # else they may hold tables
            require_classes_not_splits(folders, settings.source)

    def open(self, settings: PrepareSettings, scratch: Path) -> SourceFiles:
        archive = archive_of(settings)
        if archive is None:
            return find_files(settings)
        folder = unpacked(archive, scratch, in_classes=settings.has_labels)
        found = replace(find_files(replace(settings, source=str(folder))), given=settings.source)
        if settings.has_labels:
            try:
                require_classes_not_splits({name.split("/")[0] for name in found.names}, settings.source)
            except UserError as error:
                raise UserError(error.problem, "Unpack it, and give its folders as source and test_source.") from None
        return found

    def state(self, uri: str, billing_project: str) -> list[Any]:
        """Names, sizes, and the checksum that the object storage keeps, or on this machine the time of the last change.

        Images that a table names by their paths are not looked at.
        """
        if is_remote(uri):
            found = listed(uri, is_pattern(uri)).items()
            return [(place, f"{info.get('size')} {_version_of(info)}") for place, info in found]
        return [(repr(name), state) for name, state in states_of_files(uri)]


def states_of_files(path: str) -> Iterator[tuple[str, str]]:
    """The size and the time of the last change of each file on this machine that a path or a pattern names.

    Raises:
        UserError: they cannot be read.
    """
    try:
        listing = list_source(path)
        for name in listing.files:
            status = Path(f"{listing.root}{name}").stat()
            yield name, f"{status.st_size} {status.st_mtime_ns}"
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(path, error) from None


def contents_of_files(place: str) -> list[tuple[str, str]]:
    """The names of the files at a place, and their SHA-256, or the checksums that the object storage keeps.

    Raises:
        UserError: they cannot be read.
    """
    try:
        listing = list_source(place)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(place, error) from None
    found = listed(place) if is_remote(place) else {}
    places = ((name, f"{listing.root}{name}") for name in listing.files)
    return [(repr(name), _version_of(found[at]) if at in found else sha256_of_file(Path(at))) for name, at in places]


def _version_of(info: Mapping[str, Any]) -> str:
    """What tells one content of an object from another; Cloud Storage has no MD5 of objects that were composed."""
    return str(next((info[key] for key in ("md5Hash", "crc32c", "ETag", "etag", "mtime") if info.get(key)), ""))


def _unreadable(path: str, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or error
    return UserError(f"The source {shown_path(path)[:200]} cannot be read: {reason}.")


def _folders(place: str) -> list[str]:
    return folders_in(place) if is_remote(place) else [path.name for path in class_folders(Path(place).expanduser())]


def _folders_of_classes(settings: PrepareSettings) -> list[str]:
    """The folders of a source of images in two at least, else none: listing all their files can take minutes."""
    if "images" not in task_named(settings.task).formats or settings.source_format != "auto":
        return []
    try:
        if is_pattern(settings.source):
            return []
        path = Path(settings.source).expanduser()
        if not is_remote(settings.source) and not path.is_dir():
            return []
        folders = _folders(settings.source)
        filled = folders if is_remote(settings.source) else filter(has_files, map(path.joinpath, folders))
        return folders if len(list(islice(filled, 2))) == 2 else []
    except (OSError, RuntimeError, ValueError):
        return []


def find_files(settings: PrepareSettings) -> SourceFiles:
    """Finds the files of a source.

    Args:
        settings: `source`, `source_format`, `task`, the columns, `delimiter`, `encoding` and `image_root` are read.

    Raises:
        UserError: there are none, they are in several formats, or in one that the task does not read.
    """
    source = shown_path(settings.source)[:200]
    try:
        listing = list_source(settings.source)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(settings.source, error) from None
    if listing.kind == "nothing":
        raise UserError(f"The source {source} does not exist.", _remedy(settings.task))
    if listing.kind == "folder":
        return _folder(settings, listing)
    if not listing.files:
        raise UserError(f"No file matches {source}.", _remedy(settings.task))
    kinds = _kinds(settings, listing, listing.files, named=True)
    return _of_one_format(settings, listing, listing.files, kinds, settings.source_format)


def _kinds(
    settings: PrepareSettings, listing: Listing, names: Iterable[str], *, named: bool = False
) -> dict[str, str | None]:
    return kinds_of(listing.root, list(names), settings, settings.dialect, named=named)


def _folder(settings: PrepareSettings, listing: Listing) -> SourceFiles:
    files, wanted = listing.files, settings.source_format
    read = task_named(settings.task).formats
    if not settings.has_labels:
        return _folder_without_labels(settings, listing, read)
    if wanted == "auto" and "images" in read and _has_sub_folders(listing) and not _hold_tables_alone(listing):
        wanted = "images"
    kinds = {} if wanted == "images" else _kinds(settings, listing, files)
    if wanted == "auto" and "images" in read:
        wanted = wanted if (set(kinds.values()) - {"images"}) & set(read) else "images"
    if wanted == "images":
        return _images_by_class(settings, listing)
    if wanted == "auto":
        chosen = {name: size for name, size in files.items() if kinds[name] in read}
    else:
        chosen = {name: size for name, size in files.items() if kinds[name] == wanted}
        # What distributed programs write (part-00000) may be text that no header tells.
        chosen = chosen or {name: size for name, size in files.items() if has_no_suffix(name)}
    if not chosen:
        raise _nothing_to_read(settings, listing)
    left = {name: _why_not(kind, settings.task, read) for name, kind in kinds.items() if name not in chosen}
    return _of_one_format(settings, listing, chosen, kinds, wanted, left)


def _folder_without_labels(settings: PrepareSettings, listing: Listing, read: tuple[str, ...]) -> SourceFiles:
    """What of a folder is read where nothing is learned: folders name no classes, and images may be at any depth."""
    files, wanted = listing.files, settings.source_format
    kinds = _kinds(settings, listing, files)
    # Beside tables there may be the images that they name.
    tables = {kind for kind in kinds.values() if kind in read and kind != "images"}
    taken = (wanted,) if wanted != "auto" else tuple(tables) or read
    # Where images are asked for by name, what is none is a row that is rejected.
    chosen = {name: size for name, size in files.items() if wanted == "images" or kinds[name] in taken}
    if not chosen:
        raise _nothing_to_read(settings, listing)
    left = {name: _why_not(kind, settings.task, taken) for name, kind in kinds.items() if name not in chosen}
    return _of_one_format(settings, listing, chosen, kinds, wanted, left)


def _nothing_to_read(settings: PrepareSettings, listing: Listing) -> UserError:
    what = f"holds no files that {settings.task} reads" if listing.files else "is empty"
    remedy = _remedy(settings.task)
    if found := [name for name in listing.files if is_json(name)]:
        folders = "**/" if any("/" in name for name in found) else ""
        names = "*.json" if found[0].lower().endswith(".json") else "*.json.*"
        pattern = f"{settings.source.rstrip('/')}/{folders}{names}"
        remedy = f"A .json in a folder may be about its data. If these hold rows, give -p source='{pattern}'."
    return UserError(f"The folder {settings.source} {what}{_passed_over(listing)}.", remedy)


def _why_not(kind: str | None, task: str, read: tuple[str, ...]) -> str:
    if kind is None:
        return UNKNOWN
    if kind == "images" and "image_root" in task_named(task).parameters:
        return BESIDE_TABLES
    return f"in the format {kind}, which " + ("is not the one given" if kind in read else f"{task} does not read")


def _passed_over(listing: Listing) -> str:
    found = Counter(listing.passed_over.values())
    return f" ({', '.join(f'{count:,} × {reason}' for reason, count in sorted(found.items()))})" if found else ""


def _has_sub_folders(listing: Listing) -> bool:
    if is_remote(listing.root):
        return any("/" in name for name in listing.files)
    return bool(class_folders(Path(listing.root)))


def _hold_tables_alone(listing: Listing) -> bool:
    """Whether there are tables, and nothing else in sub-folders, as data sets of the hub have `data/`."""
    tables = (*TABLES, "tar")  # of a million images no more than the first is looked at
    is_alone = all(format_of(name) in tables for name in listing.files if "/" in name)
    return is_alone and any(format_of(name) in tables for name in listing.files)


def _images_by_class(settings: PrepareSettings, listing: Listing) -> SourceFiles:
    source = settings.source
    files = {name: size for name, size in listing.files.items() if "/" in name}
    if files:
        loose = (name for name in listing.files if "/" not in name)
        # As datasets has images: metadata.csv, and beside it folders, which need not be classes.
        beside = {name: TABLE_BESIDE if format_of(name) in TABLES else BESIDE_CLASSES for name in loose}
        return _source(settings, listing, "images", files, beside)
    if _has_sub_folders(listing):
        raise UserError(f"The sub-folders of {source} hold no files.", "Put the images of each class into them.")
    what = "has no sub-folders" if is_remote(source) or any(Path(listing.root).iterdir()) else "is empty"
    raise UserError(f"The folder {source} {what}.", "Put the images of each class into a sub-folder of its name.")


def _of_one_format(
    settings: PrepareSettings,
    listing: Listing,
    files: Mapping[str, int],
    kinds: Mapping[str, str | None],
    wanted: str,
    left: Mapping[str, str] | None = None,
) -> SourceFiles:
    if wanted == "auto":
        found = Counter(kinds[name] or "unknown" for name in files)
        if len(found) > 1:
            counts = some_of([f"{count:,} × {name}" for name, count in found.items()], most=8)
            remedy = "Give a pattern for one of them (such as folder/*.jsonl), or source_format."
            tables = [name for name in files if kinds[name] in TABLES]
            if len(tables) == 1 and "images" in found:  # as data sets of the hub have images: metadata.csv beside them
                remedy = remedy_of_table(settings.source, tables[0])
            raise UserError(f"The source {settings.source} has files in several formats: {counts}.", remedy)
        wanted = next(iter(found))
    read = task_named(settings.task).formats
    if wanted not in read or (wanted == "images" and listing.kind == "file" and settings.has_labels):
        is_other_json = any(kinds[name] is None and is_json(name) for name in files)
        remedy = _ROWS_OF_JSON if is_other_json else _remedy(settings.task)
        if any(kinds[name] == "tar" or name.lower().endswith(".zip") for name in files):
            remedy = f"{remedy} {REMEDY_OF_ARCHIVE}"
        if "images" in read:
            raise UserError(
                f"The source {settings.source} is neither a folder nor a table ({', '.join(read)}).", remedy
            )
        raise UserError(
            f"The source {settings.source} is not a file of texts that {settings.task} reads ({', '.join(read)}).",
            remedy,
        )
    return _source(settings, listing, wanted, files, left or {})


def _source(
    settings: PrepareSettings, listing: Listing, kind: str, files: Mapping[str, int], left: Mapping[str, str]
) -> SourceFiles:
    dialect: Dialect = settings.dialect
    if dialect.delimiter and kind != "csv":
        raise UserError(f"delimiter is given, but the source {settings.source} is {kind}, not CSV.", "Leave it out.")
    if dialect.encoding and not FORMATS[kind].is_text:
        raise UserError(f"encoding is given, but the source {settings.source} is {kind}, not text.", "Leave it out.")
    if settings.image_root and not FORMATS[kind].is_table:
        raise UserError(
            f"image_root is given, but the source {settings.source} is {kind}, not a table that names images.",
            "Leave it out.",
        )
    return SourceFiles(
        kind,
        listing.root,
        tuple(files),
        tuple(files.values()),
        given=settings.source,
        dialect=dialect,
        passed_over={**listing.passed_over, **left},
    )


def _remedy(task: str) -> str:
    read = task_named(task).formats
    more = (", text" if "text" in read else "") + (", tar shards" if "tar" in read else "")
    classes = ", or a folder with one sub-folder of images per class" if "images" in read else ""
    return (
        f"Give files (JSONL, CSV, TSV, Parquet, Arrow{more}){classes}: a path, a pattern or gs://…; or a sample. "
        "source_format says what a suffix does not."
    )
