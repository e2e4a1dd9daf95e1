"""Which files a source is: a path or a pattern, on this machine or in object storage, and the format they are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.file_kinds import kinds_of
from gpu_pipelines.data.sources.files import (
    WITH_ENCODING,
    Dialect,
    Source,
    has_no_suffix,
)
from gpu_pipelines.data.sources.listing import Listing, class_folders, list_source, shown_path
from gpu_pipelines.data.sources.names import is_bigquery, is_hub_id
from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.tasks.formats import TABLES
from gpu_pipelines.tasks.tasks import task_named

#: Why a file of a folder is not read.
BESIDE_CLASSES = "beside the class folders"
UNKNOWN = "neither its name nor its content tells a format that is read"


def find_source(settings: PrepareSettings) -> Source:
    """Finds the files of a source.

    Args:
        settings: `source`, `source_format`, `task`, the columns, `delimiter`, `encoding` and `image_root` are read.

    Raises:
        UserError: there are none, they are in several formats, or in one that the task does not read.
    """
    if is_bigquery(settings.source):
        from gpu_pipelines.data.sources.bigquery_source import find_table

        return find_table(settings)
    if is_hub_id(settings.source):
        from gpu_pipelines.data.sources.hub_source import find_data_set

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
    kinds = _kinds(settings, listing, listing.files)
    return _of_one_format(settings, listing, listing.files, kinds, settings.source_format)


def _kinds(settings: PrepareSettings, listing: Listing, names: Iterable[str]) -> dict[str, str | None]:
    return kinds_of(listing.root, list(names), settings, settings.dialect)


def _folder(settings: PrepareSettings, listing: Listing) -> Source:
    files, wanted = listing.files, settings.source_format
    read = task_named(settings.task).formats
    if wanted == "auto" and "images" in read and _has_sub_folders(listing):
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
        what = f"holds no files that {settings.task} reads" if files else "is empty"
        raise UserError(f"The folder {settings.source} {what}{_passed_over(listing)}.", _remedy(settings.task))
    left = {name: _why_not(kind, settings.task, read) for name, kind in kinds.items() if name not in chosen}
    return _of_one_format(settings, listing, chosen, kinds, wanted, left)


def _why_not(kind: str | None, task: str, read: tuple[str, ...]) -> str:
    if kind is None:
        return UNKNOWN
    return f"in the format {kind}, which " + ("is not the one given" if kind in read else f"{task} does not read")


def _passed_over(listing: Listing) -> str:
    found = Counter(listing.passed_over.values())
    return f" ({', '.join(f'{count:,} × {reason}' for reason, count in sorted(found.items()))})" if found else ""


def _has_sub_folders(listing: Listing) -> bool:
    if is_remote(listing.root):
        return any("/" in name for name in listing.files)
    return bool(class_folders(Path(listing.root)))


def _images_by_class(settings: PrepareSettings, listing: Listing) -> Source:
    source = settings.source
    files = {name: size for name, size in listing.files.items() if "/" in name}
    if files:
        beside = {name: BESIDE_CLASSES for name in listing.files if "/" not in name}
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
) -> Source:
    if wanted == "auto":
        found = Counter(kinds[name] or "unknown" for name in files)
        if len(found) > 1:
            counts = some_of([f"{count:,} × {name}" for name, count in found.items()], most=8)
            raise UserError(
                f"The source {settings.source} has files in several formats: {counts}.",
                "Give a pattern for one of them (such as folder/*.jsonl), or source_format.",
            )
        wanted = next(iter(found))
    read = task_named(settings.task).formats
    if wanted not in read or (wanted == "images" and listing.kind == "file"):
        if "images" in read:
            raise UserError(
                f"The source {settings.source} is neither a folder nor a table ({', '.join(read)}).",
                _remedy(settings.task),
            )
        raise UserError(
            f"The source {settings.source} is no file of texts that {settings.task} reads ({', '.join(read)}).",
            _remedy(settings.task),
        )
    return _source(settings, listing, wanted, files, left or {})


def _source(
    settings: PrepareSettings, listing: Listing, kind: str, files: Mapping[str, int], left: Mapping[str, str]
) -> Source:
    dialect: Dialect = settings.dialect
    if dialect.delimiter and kind != "csv":
        raise UserError(f"delimiter is given, but the source {settings.source} is {kind}, not CSV.", "Leave it out.")
    if dialect.encoding and kind not in WITH_ENCODING:
        raise UserError(f"encoding is given, but the source {settings.source} is {kind}, not text.", "Leave it out.")
    if settings.image_root and kind not in TABLES:
        raise UserError(
            f"image_root is given, but the source {settings.source} is {kind}, and no table that names images.",
            "Leave it out.",
        )
    return Source(
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
