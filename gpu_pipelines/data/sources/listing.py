"""The files of a source of data, on this machine or in object storage, and what lies there and is no file of it."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import is_remote, listed
from gpu_pipelines.data.sources.files import SourceFile
from gpu_pipelines.errors import UserError

#: Why something in a folder is passed over.
HIDDEN = "hidden"
BROKEN_LINK = "link that leads nowhere"
LINKED_FOLDER = "linked folder below the first level"
EMPTY_FOLDER = "folder without files"
NO_FILE = "neither a file nor a folder"
CACHE = "kept by datasets of a map, a filter or a shuffle"
BESIDE_CLASSES = "beside the class folders"
TABLE_BESIDE = f"table {BESIDE_CLASSES}, whose names are the classes; if the table has these, give it as source"
#: What to do with files that are packed into one.
REMEDY_OF_ARCHIVE = "Unpack any other archive, and give its folder."
ABOUT_FILES = "kept by Spark, Dask or Databricks about the files beside it"
DELTA_LOG = "log of a Delta table, which alone tells which of the files are still of the table; all are read here"
SAVED_BEFORE = "left of a data set that datasets saved there before"

#: What `datasets` writes beside the files of a data set that was loaded from disk: rows once more, or their numbers.
_CACHE = re.compile(r"(.*/)?cache-[0-9a-f]{16}(_\d{5}_of_\d{5})?\.arrow")
#: What these write beside the rows, and files of tasks that have not come to their end.
_ABOUT_FILES = re.compile(
    r"(.*/)?(_SUCCESS|_metadata|_common_metadata|_(committed|started)_\d+|(_temporary|_spark_metadata)/.*)"
)
_DELTA_LOG = re.compile(r"(.*/)?_delta_log/.*")
_SAVED = re.compile(r"(?P<folder>.*/)?data-\d{5}-of-(?P<files>\d{5})\.arrow")
#: What reading a document that is missing or by something else than `datasets` raises.
_NOT_OF_DATASETS = (OSError, ValueError, KeyError, TypeError)


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as text; what is not UTF-8 of it is shown as escapes."""
    text = os.fspath(path)
    try:
        return os.fsencode(text).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte; no file has such a name
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True)
class Listing:
    """Files by name.

    Attributes:
        root: what all names begin with.
        files: the rest of each name, and the file's size in bytes.
        kind: what was named: file, folder, pattern or nothing.
        passed_over: the rest of the name of what lies there too, and why it is no file of the source.
    """

    root: str
    files: dict[str, int]
    kind: str
    passed_over: dict[str, str] = field(default_factory=dict)


def is_pattern(source: str) -> bool:
    """Whether a source has `*`, `?` or `[…]` in it and is not the name of something that exists."""
    return glob.has_magic(source) and (is_remote(source) or not Path(source).expanduser().exists())


def is_listed_in(source: str, place: str) -> bool:
    """Whether what is written to a place would be read as files of a source that is a folder.

    Args:
        source: the name of a source; a pattern, a file and what no file is of hold nothing.
        place: a path of this machine or the name of a place in object storage.
    """
    if is_remote(source) or is_remote(place):
        above, below = f"{source.rstrip('/')}/", f"{place.rstrip('/')}/"
        return not is_pattern(source) and below.startswith(above) and not _is_hidden(below[len(above) :])
    try:
        folder, inner = Path(source).expanduser().resolve(), Path(place).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):  # no path; whoever reads or writes there says so
        return False
    if not folder.is_dir() or not inner.is_relative_to(folder):
        return False
    return not _is_hidden("/".join(inner.relative_to(folder).parts))


def list_source(source: str) -> Listing:
    """The files that a source names; hidden ones are passed over, and so is what programs leave beside their own.

    Raises:
        OSError, RuntimeError, ValueError: the path cannot be read, or is none.
        UserError: the object storage does not answer, or a folder cannot be read.
    """
    found = _list_remote(source.rstrip("/")) if is_remote(source) else _list_here(source)
    if found.kind == "file":
        return found
    known = {CACHE: _CACHE, ABOUT_FILES: _ABOUT_FILES, DELTA_LOG: _DELTA_LOG}
    left = {name: why for why, form in known.items() for name in filter(form.fullmatch, found.files)}
    left.update(dict.fromkeys(_saved_before(found.root, found.files), SAVED_BEFORE))
    files = {name: size for name, size in found.files.items() if name not in left}
    return replace(found, files=files, passed_over={**found.passed_over, **left})


def _saved_before(root: str, names: Iterable[str]) -> Iterator[str]:
    """Files of `save_to_disk` that are no part of what was saved last, which had other splits or numbers of files."""
    folders: dict[str, dict[str, str]] = {}
    for name in names:
        if match := _SAVED.fullmatch(name):
            folders.setdefault(match["folder"] or "", {})[name] = match["files"]
    for folder, numbers in folders.items():
        above, slash, split = folder.rstrip("/").rpartition("/")
        with suppress(*_NOT_OF_DATASETS):
            if split and split not in _document(f"{root}{above}{slash}dataset_dict.json")["splits"]:
                yield from numbers
                continue
        with suppress(*_NOT_OF_DATASETS):
            if len(set(numbers.values())) > 1:
                last = _document(f"{root}{folder}state.json")["_data_files"]
                yield from numbers.keys() - {f"{folder}{file['filename']}" for file in last}


def remedy_of_table(folder: str, table: str) -> str:
    """What to give for a folder of images with a table, which may name them and their classes."""
    place = f"{folder.rstrip('/')}/{table}"
    place = f"'{place}'" if is_pattern(place) else place  # a shell would find its files
    return f"If the table names the images, give -p source={place} -p image_column=…, such as file_name."


def _document(place: str) -> Any:
    return json.loads(SourceFile(place, place).read())


def _list_here(source: str) -> Listing:
    path = Path(source).expanduser()
    passed_over: dict[str, str] = {}
    if is_pattern(source):
        root, kind = _fixed_part(str(path)), "pattern"
        # pathlib takes no absolute patterns.
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207
        found = [place for place in matches if Path(place).is_file()]
        passed_over = {place[len(root) :]: BROKEN_LINK for place in matches if _leads_nowhere(place)}
    elif path.is_dir():
        # pathlib puts nothing before the names in the folder that the program runs in.
        root, kind = "" if path == Path() else f"{str(path).rstrip('/')}/", "folder"
        found = list(_files_below(path, passed_over))
        passed_over = {place[len(root) :]: reason for place, reason in passed_over.items()}
    else:
        if path.exists() and not path.is_file():
            # Its content can be read once only, or never ends.
            raise UserError(f"The source {source} is a pipe or a device.", "Give a file, or a folder.")
        root, kind = str(path)[: str(path).rfind("/") + 1], "file" if path.exists() else "nothing"
        found = [str(path)] if path.exists() else []
    names = sorted((place[len(root) :] for place in found), key=lambda name: name.split("/"))
    return Listing(root, {name: Path(f"{root}{name}").stat().st_size for name in names}, kind, passed_over)


def _list_remote(source: str) -> Listing:
    found = listed(source, is_pattern(source))
    if is_pattern(source):
        root, kind = _fixed_part(source), "pattern"
    elif source in found:
        root, kind = source[: source.rindex("/") + 1], "file"
    else:
        root, kind = f"{source}/", "folder" if found else "nothing"
    names = {place[len(root) :]: int(info.get("size") or 0) for place, info in found.items()}
    shown = sorted((name for name in names if not _is_hidden(name)), key=lambda name: name.split("/"))
    hidden = {name: HIDDEN for name in names if _is_hidden(name)} if kind == "folder" else {}
    return Listing(root, {name: names[name] for name in shown}, kind, hidden)


def _fixed_part(pattern: str) -> str:
    """The folders of a pattern before the first one that is left open."""
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    return "".join(f"{part}/" for part in parts[:fixed])


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _leads_nowhere(place: str) -> bool:
    return os.path.islink(place) and not os.path.exists(place)  # noqa: PTH110, PTH114 (speed)


def _files_below(folder: Path, passed_over: dict[str, str]) -> Iterator[str]:
    """The places of the files of a folder; `passed_over` gets the places of what else is there, and why."""
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            passed_over.update(dict.fromkeys(_hidden_files(entry), HIDDEN))
        elif entry.is_file():
            yield str(entry)
        elif not entry.is_dir():
            passed_over[str(entry)] = _why_no_file(str(entry))
    # Only at the first level a link to a folder is followed; deeper ones could lead in a circle.
    for below in class_folders(folder):
        is_empty = True
        for place in _files_deep_below(below, passed_over):
            is_empty = False
            yield place
        if is_empty:
            passed_over[f"{below}/"] = EMPTY_FOLDER


def _files_deep_below(folder: Path, passed_over: dict[str, str]) -> Iterator[str]:
    for place, folders, files in os.walk(folder, onerror=_refuse):
        for name in list(folders):
            path = os.path.join(place, name)  # noqa: PTH118 (speed)
            if name.startswith("."):
                folders.remove(name)
                passed_over.update(dict.fromkeys(_hidden_files(Path(path)), HIDDEN))
            elif os.path.islink(path):  # noqa: PTH114 (speed)
                passed_over[f"{path}/"] = LINKED_FOLDER
        for name in files:
            path = os.path.join(place, name)  # noqa: PTH118 (speed)
            if name.startswith("."):
                passed_over[path] = HIDDEN
            elif os.path.isfile(path):  # noqa: PTH113 (speed)
                yield path
            else:
                passed_over[path] = _why_no_file(path)


def _refuse(error: OSError) -> None:
    raise UserError(
        f"The folder {shown_path(error.filename)} cannot be read: {error.strerror}.", "Fix its permissions."
    )


def _hidden_files(entry: Path) -> Iterator[str]:
    """A hidden file, or each file of a hidden folder."""
    if entry.is_symlink() or not entry.is_dir():
        yield str(entry)
        return
    for place, _, files in os.walk(entry):
        yield from (f"{place}/{name}" for name in files)


def _why_no_file(path: str) -> str:
    return BROKEN_LINK if _leads_nowhere(path) else NO_FILE


def class_folders(folder: Path) -> list[Path]:
    """The sub-folders that name the classes, sorted; hidden ones are none."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def has_files(folder: Path) -> bool:
    """Whether there is a file below a folder, hidden ones aside; looks no further than the first."""
    return next(_files_deep_below(folder, {}), None) is not None
