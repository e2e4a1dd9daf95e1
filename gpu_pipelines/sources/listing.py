"""The files of a source of data, on this machine or in object storage."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_pipelines.artifacts.remote_files import is_remote, listed
from gpu_pipelines.errors import UserError


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as text; what is not UTF-8 of it is shown as escapes."""
    text = os.fspath(path)
    try:
        return os.fsencode(text).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte; no file has such a name
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True)
class Listing:
    """Files by name: what all begin with, the rest of each name with its size in bytes, and what was named."""

    root: str
    files: dict[str, int]
    kind: str  # file, folder, pattern or nothing


def is_pattern(source: str) -> bool:
    """Whether a source has `*`, `?` or `[…]` in it and is not the name of something that exists."""
    return glob.has_magic(source) and (is_remote(source) or not Path(source).expanduser().exists())


def list_source(source: str) -> Listing:
    """The files that a source names; hidden ones are passed over.

    Raises:
        OSError, RuntimeError, ValueError: the path cannot be read, or is none.
        UserError: the object storage does not answer, or a folder cannot be read.
    """
    if is_remote(source):
        return _list_remote(source.rstrip("/"))
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
    return Listing(root, {name: Path(f"{root}{name}").stat().st_size for name in names}, kind)


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
    return Listing(root, {name: names[name] for name in shown}, kind)


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
