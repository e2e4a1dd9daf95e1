"""JSON documents with a `format_version`, and file hashes: the basis of all artifact formats."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.errors import DamagedError, NewerFormatError, UserError

#: Versions of the documents' format: the one that is written, and the newest that can be read.
_FORMAT_VERSION = 1
Made = TypeVar("Made")
_hints_of = cache(get_type_hints)


def write_document(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON document in one step: a reader sees the whole of it or nothing.

    Args:
        path: the file; its directory must exist.
        content: what to write; NaN and infinity are refused, because JSON has neither.
    """
    replace_file(path, _written(content))


def write_document_at(place: str, content: dict[str, Any]) -> None:
    """Writes a JSON document on this machine, or in object storage; see `write_document`.

    Args:
        place: the file; its directory must exist on this machine.
        content: what to write.

    Raises:
        UserError: the storage cannot be written to.
    """
    if not is_remote(place):
        write_document(Path(place), content)
        return
    folder, _, file = place.rpartition("/")
    RemoteFolder(folder).write(file, _written(content))


def _written(content: dict[str, Any]) -> bytes:
    return f"{json.dumps({'format_version': _FORMAT_VERSION, **content}, indent=2, allow_nan=False)}\n".encode()


def replace_file(path: Path, content: bytes) -> None:
    """Replaces a file by a whole one, or writes a new one: on a full disk, the old content stays.

    Args:
        path: the file; its directory must exist.
        content: all of it.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files, but other users read an artifact, such as in an evaluation container.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        # The error of a failed write does not name the file.
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def read_document(path: Path, what: str) -> dict[str, Any]:
    """Reads a JSON document that `write_document` wrote.

    Args:
        path: the file.
        what: kind of the document, for the message ("dataset", "evaluation").

    Raises:
        DamagedError: the file is not such JSON.
        NewerFormatError: it has a newer format.
        UserError: the file is missing or cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        lacks = f"has no {path.name}" if path.parent.exists() else "does not exist"
        raise UserError(f"{path.parent} is no {what}: it {lacks}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    return document_in(content, str(path))


def document_in(text: bytes, place: str) -> dict[str, Any]:
    """A JSON document that `write_document` wrote, wherever it was read.

    Args:
        text: all of it.
        place: where it is, for messages.

    Raises:
        DamagedError: it is not such JSON.
        NewerFormatError: it has a newer format.
    """
    try:
        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{place} is damaged: {error}.") from None
    version = content.get("format_version") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise DamagedError(f"{place} is damaged: it has format_version {version!r}.")
    if version > _FORMAT_VERSION:
        raise NewerFormatError(
            f"{place} has format_version {version!r}; this program reads up to {_FORMAT_VERSION}.",
            "Use the version of gpu-pipelines that wrote it, or a newer one.",
        )
    return dict(content)


def read_as(path: Path, what: str, make: Callable[[dict[str, Any]], Made]) -> Made:
    """Reads a document and makes an object of it.

    Args:
        path: the file.
        what: kind of the document, for the message.
        make: called with the content; may raise the usual errors for missing or mistyped entries.

    Raises:
        UserError: as `read_document`, or the content is not what `make` expects.
    """
    return made_of(read_document(path, what), str(path), what, make)


def made_of(content: dict[str, Any], place: str, what: str, make: Callable[[dict[str, Any]], Made]) -> Made:
    """Makes an object of a document, wherever it was read; arguments and errors as of `read_as`."""
    try:
        return make(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"{place} is damaged: {type(error).__name__}: {error}.", f"It is no {what}.") from None


def fields_in(kind: type[Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that a document has; other entries are from a later version.

    Raises:
        KeyError: it lacks a field without a default.
    """
    needed = {each.name for each in fields(kind) if each.default is each.default_factory is MISSING}
    return {each.name: content[each.name] for each in fields(kind) if each.name in needed | content.keys()}


def require_types(made: Any) -> None:
    """Checks that the fields of a dataclass hold the types that they declare, as deep as the declarations go.

    Args:
        made: from a document, whose values may be of any type.

    Raises:
        TypeError: a field holds another type.
    """
    for name, hint in _hints_of(type(made)).items():  # type: ignore[arg-type]
        if not _is_of(getattr(made, name), hint):
            raise TypeError(f"{name} is {str(getattr(made, name))[:80]!r}")


def _is_of(value: Any, hint: Any) -> bool:
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is UnionType:
        return any(_is_of(value, each) for each in inner)
    if kind is Any:
        return True
    # A number without a fraction is an integer to JSON.
    if not isinstance(value, (int, float) if kind is float else kind):
        return False
    if is_dataclass(value):
        require_types(value)
    # A list of runs reads thousands of records, each with a hundred parameters of any type.
    if not isinstance(value, dict | list) or inner[-1:] == (Any,):
        return True
    return all(_is_of(each, inner[-1]) for each in (value.values() if isinstance(value, dict) else value))


def sha256_of_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def sha256_of_tree(directory: Path, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
    """Hex SHA-256 of every file below a directory, by path relative to it, sorted; links are followed, as by copies.

    Args:
        directory: where to look.
        leave_out: relative paths that are not hashed (the document that will hold the hashes).
    """

    def failed(error: OSError) -> None:
        raise error

    walked = os.walk(directory, onerror=failed, followlinks=True) if directory.is_dir() else ()
    files = sorted(path for folder, _, names in walked for name in names if (path := Path(folder, name)).is_file())
    named = ((path.relative_to(directory).as_posix(), path) for path in files)
    return {name: sha256_of_file(path) for name, path in named if name not in leave_out}
