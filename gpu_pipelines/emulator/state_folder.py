"""The folder of an emulator's state, which survives a restart and a kill at any moment.

Each resource is a JSON file, written beside its place and then moved there; logs are lines appended to a file.
"""

from __future__ import annotations

import fcntl
import json
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.errors import UserError

FORMAT_VERSION = 2
#: It has the records of all objects in one file, and is still read.
_BEFORE = 1
_RECORD, _LOCK, _RESOURCES, _LOGS = "emulator.json", "emulator.lock", "resources", "logs.jsonl"
_NEW = ".new"


class StateFolder:
    """The folder of one emulator.

    Args:
        folder: its path; created if it does not exist.

    Attributes:
        folder: its path.

    Raises:
        UserError: it cannot be written to, is in use, or was written by another version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            (folder / _RESOURCES).mkdir(parents=True, exist_ok=True)
            self._lock = (folder / _LOCK).open("w")
        except OSError as error:
            raise _unwritable(folder, error) from error
        self._take()
        self._check_version()
        self._logs: IO[str] | None = None
        self._writing = threading.Lock()

    def write(self, kind: str, name: str, document: Mapping[str, Any]) -> None:
        """Saves a resource.

        Args:
            kind: the kind of resource, such as customJobs.
            name: its unique name.
            document: its JSON.

        Raises:
            ApiError: it cannot be written; the earlier version is still there.
        """
        path = self._path(kind, name)
        try:
            path.parent.mkdir(exist_ok=True)
            with self._writing:  # two equal tasks may end at once, and have one result in the cache
                replace_file(path, json.dumps(document).encode())
        except OSError as error:
            raise self._refusal(error) from error

    def remove(self, kind: str, name: str) -> None:
        """Removes a resource; nothing happens if it does not exist."""
        try:
            self._path(kind, name).unlink(missing_ok=True)
        except OSError as error:
            raise self._refusal(error) from error

    def documents(self, kind: str) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The resources of a kind: the file of each and its JSON, ordered by file name.

        Raises:
            UserError: a file is damaged.
        """
        for path in sorted((self.folder / _RESOURCES / kind).glob("*")):
            if path.name.endswith(_NEW):
                # Left by an emulator that was killed while it wrote.
                path.unlink()
                continue
            yield path, _read(path)

    def add_lines(self, kind: str, name: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Appends to a resource's growing data.

        Args:
            kind: the kind of data.
            name: the name of the resource.
            entries: the JSON of each line.

        Raises:
            ApiError: they cannot be written.
        """
        path = self._lines(kind, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                # A partial line of a killed emulator stays on a line of its own.
                file.write("".join(f"\n{json.dumps(entry)}" for entry in entries))
        except OSError as error:
            raise self._refusal(error) from error

    def lines(self, kind: str, name: str) -> Iterator[dict[str, Any]]:
        """A resource's growing data, without partial lines."""
        yield from _whole_lines(self._lines(kind, name))

    def remove_lines(self, kind: str, name: str) -> None:
        """Removes a resource's growing data."""
        try:
            self._lines(kind, name).unlink(missing_ok=True)
        except OSError as error:
            raise self._refusal(error) from error

    def log(self, entry: Mapping[str, Any]) -> None:
        """Appends a log entry; without room for it, it is lost, which is reported on stderr."""
        try:
            if self._logs is None:
                self._logs = (self.folder / _LOGS).open("a", encoding="utf-8")
            self._logs.write(json.dumps(entry) + "\n")
            self._logs.flush()
        except OSError as error:
            print(f"warning: {self._refusal(error).message}", file=sys.stderr)

    def logs(self) -> Iterator[dict[str, Any]]:
        """The log entries, without partial lines."""
        yield from _whole_lines(self.folder / _LOGS)

    def close(self) -> None:
        """Allows another emulator to use it."""
        if self._logs is not None:
            self._logs.close()
        self._lock.close()

    def _lines(self, kind: str, name: str) -> Path:
        return self.folder / kind / f"{quote(name, safe='@')}.jsonl"

    def _path(self, kind: str, name: str) -> Path:
        return self.folder / _RESOURCES / kind / f"{quote(name, safe='@')}.json"

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"The state in {self.folder} is in use by another emulator.",
                "Stop that one, or give another --state.",
            ) from error

    def _check_version(self) -> None:
        record = self.folder / _RECORD
        found = _read(record).get("format_version") if record.exists() else None
        if found == FORMAT_VERSION:
            return
        if record.exists() and found != _BEFORE:
            raise UserError(
                f"The state in {self.folder} has the format {found!r}; this version reads {FORMAT_VERSION}.",
                "Give another --state, or start the version of gpu-pipelines that has written it.",
            )
        try:
            replace_file(record, json.dumps({"format_version": FORMAT_VERSION}).encode())
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _refusal(self, error: OSError) -> ApiError:
        text = f"The emulator cannot write its state in {self.folder}: {error.strerror or error}. Free space there."
        return ApiError(400, text, "FAILED_PRECONDITION")


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                continue


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file as a whole: a reader finds either the old content, or all of the new."""
    new = path.with_name(path.name + _NEW)
    try:
        new.write_bytes(content)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def damaged(path: Path, why: object) -> UserError:
    """The error for a file of the state that cannot be read."""
    return UserError(
        f"The emulator's state is damaged: {path} is not what an emulator has written ({why}).",
        "Delete that file to go on without what it held, or give another --state.",
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    if not isinstance(found, dict):
        raise damaged(path, "no JSON object")
    return found


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"The emulator cannot write its state in {folder}: {error.strerror or error}.",
        "Free space there, or give another --state.",
    )
