"""The folder in which an emulator keeps what it knows, so that it survives a restart and a kill at any moment.

Each resource is a file of JSON, written beside its place and then moved there; logs are lines that are added to a file.
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.errors import UserError

FORMAT_VERSION = 1
_RECORD, _LOCK, _RESOURCES, _LOGS = "emulator.json", "emulator.lock", "resources", "logs.jsonl"
_NEW = ".new"


class StateFolder:
    """A folder of one emulator.

    Args:
        folder: where it is; made if it is not there.

    Attributes:
        folder: where it is.

    Raises:
        UserError: it cannot be written, is in use, or was written by another version.
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

    def write(self, kind: str, name: str, document: Mapping[str, Any]) -> None:
        """Keeps a resource.

        Args:
            kind: of resource, such as customJobs.
            name: its name, which no other of its kind has.
            document: its JSON.

        Raises:
            ApiError: it cannot be written; what was kept before is still there.
        """
        path = self._path(kind, name)
        try:
            path.parent.mkdir(exist_ok=True)
            replace_file(path, json.dumps(document).encode())
        except OSError as error:
            raise self._refusal(error) from error

    def remove(self, kind: str, name: str) -> None:
        """Forgets a resource; nothing happens if it is not kept."""
        try:
            self._path(kind, name).unlink(missing_ok=True)
        except OSError as error:
            raise self._refusal(error) from error

    def documents(self, kind: str) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The resources of a kind: the file of each and its JSON, in the order of the files' names.

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
        """Adds to what grows with a resource.

        Args:
            kind: of what grows.
            name: of the resource.
            entries: the JSON of each line.

        Raises:
            ApiError: they cannot be written.
        """
        path = self._lines(kind, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                # One that a killed emulator has not written whole is on a line of its own.
                file.write("".join(f"\n{json.dumps(entry)}" for entry in entries))
        except OSError as error:
            raise self._refusal(error) from error

    def lines(self, kind: str, name: str) -> Iterator[dict[str, Any]]:
        """What has grown with a resource; a line that was not written whole is left out."""
        yield from _whole_lines(self._lines(kind, name))

    def remove_lines(self, kind: str, name: str) -> None:
        """Forgets what has grown with a resource."""
        try:
            self._lines(kind, name).unlink(missing_ok=True)
        except OSError as error:
            raise self._refusal(error) from error

    def log(self, entry: Mapping[str, Any]) -> None:
        """Adds an entry of a log; without room for it, it is lost, which is said on stderr."""
        try:
            if self._logs is None:
                self._logs = (self.folder / _LOGS).open("a", encoding="utf-8")
            self._logs.write(json.dumps(entry) + "\n")
            self._logs.flush()
        except OSError as error:
            print(f"warning: {self._refusal(error).message}", file=sys.stderr)

    def logs(self) -> Iterator[dict[str, Any]]:
        """The entries of the logs; a line that was not written whole is left out."""
        yield from _whole_lines(self.folder / _LOGS)

    def close(self) -> None:
        """Lets another emulator use it."""
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
        if record.exists():
            found = _read(record).get("format_version")
            if found != FORMAT_VERSION:
                raise UserError(
                    f"The state in {self.folder} has the format {found!r}; this version reads {FORMAT_VERSION}.",
                    "Give another --state, or start the version of gpu-pipelines that has written it.",
                )
            return
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
    """Writes a file whole: whoever reads it finds what was there before, or all of the new content."""
    new = path.with_name(path.name + _NEW)
    try:
        new.write_bytes(content)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def damaged(path: Path, why: object) -> UserError:
    """That a file of the state cannot be read."""
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
