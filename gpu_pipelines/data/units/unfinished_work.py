"""Where the parts of a preparation are kept until it is finished, so that an interrupted one can be continued.

A part is a folder with `done.json`, which is written last and has the hash of every other file in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.digests import digest_of_program
from gpu_pipelines.artifacts.documents import read_document, sha256_of_file, sha256_of_tree, write_document
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.artifacts.scratch import scratch_folder
from gpu_pipelines.component_interface.step import place_of
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.fingerprint import source_fingerprint
from gpu_pipelines.data.sources.sources import source_of
from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import UNFINISHED_WORK

#: Beside an artifact's own place: `…/RUN/STEP-ATTEMPT/dataset` on Vertex AI, `…/RUN/STEP/ATTEMPT/dataset` on Kubeflow.
_FOLDERS_OF_AN_ATTEMPT = 2
MARKER = "done.json"
_LOCK = ".lock"


def place_of_work(artifact: Any, folder: str) -> str:
    """Where the unfinished work of a step is: the same for all attempts at the step in one run.

    Args:
        artifact: an output of the step, a KFP artifact.
        folder: what the place is called beside the attempts; only used if the environment names none.
    """
    if named := os.environ.get(UNFINISHED_WORK):
        return named
    place = place_of(artifact).rstrip("/")
    for _ in range(_FOLDERS_OF_AN_ATTEMPT):
        place = place.rpartition("/")[0]
    return f"{place}/{folder}"


class UnfinishedWork:
    """The parts that are done.

    Args:
        uri: a directory, or `gs://…`; several machines need one that all of them see.
        staging: an empty local directory for what is in object storage; not used for a local one.
    """

    def __init__(self, uri: str, staging: Path) -> None:
        self.uri = uri
        self._remote = RemoteFolder(uri) if is_remote(uri) else None
        self._directory = staging if self._remote else Path(uri)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._found: dict[str, dict[str, Any]] = {}
        # Of object storage: sorted, as a part is looked for among a million others.
        self._names: list[str] = []
        self.look()

    def look(self) -> None:
        """Looks for the parts that other machines have done since."""
        if self._remote is not None:
            self._names = self._remote.names()

    def path(self, name: str) -> Path:
        """The folder of a part, here."""
        return self._directory / name

    def here(self) -> UnfinishedWork:
        """The parts that are on this machine, as work that other processes of it see."""
        return UnfinishedWork(str(self._directory), self._directory)

    def has(self, name: str) -> bool:
        """Whether a part is done, as far as its marker tells."""
        if self._remote is not None:
            return f"{name}/{MARKER}" in self._there(name)
        return (self.path(name) / MARKER).is_file()

    def _there(self, name: str) -> list[str]:
        """The names of a part's files in object storage."""
        # The character after the slash ends what begins with it.
        return self._names[bisect_left(self._names, f"{name}/") : bisect_left(self._names, f"{name}0")]

    def said(self, name: str) -> dict[str, Any]:
        """What was said of a part that is done, without its files."""
        if name in self._found:
            return self._found[name]
        return dict(json.loads(self.read(name, MARKER)))

    def read(self, name: str, file: str, start: int = 0, stop: int | None = None) -> bytes:
        """Some bytes of a file of a part that is done; all of them by themselves."""
        if self._remote is not None:
            return self._remote.read(f"{name}/{file}", start, stop)
        with (self.path(name) / file).open("rb") as content:
            content.seek(start)
            return content.read(-1 if stop is None else stop - start)

    def let_go(self, name: str) -> None:
        """Deletes this machine's copy of a part that is in object storage too."""
        if self._remote is not None:
            self._found.pop(name, None)
            shutil.rmtree(self.path(name), ignore_errors=True)

    def begin(self, name: str) -> Path:
        """Makes the empty folder of a part; what an interrupted attempt left there is deleted."""
        self._forget(name)
        self.path(name).mkdir(parents=True)
        return self.path(name)

    def commit(self, name: str, content: Mapping[str, Any], hashes: Mapping[str, str] | None = None) -> None:
        """Says that a part is done.

        Args:
            name: the part.
            content: what there is to say of it.
            hashes: hex SHA-256 of those of its files of which it is known already.
        """
        folder, known = self.path(name), dict(hashes or {})
        files = {**known, **sha256_of_tree(folder, leave_out=(MARKER, *known))}
        if self._remote is not None:
            self._remote.upload(self._directory, [f"{name}/{file}" for file in files])
        write_document(folder / MARKER, {"files": files, **content})
        if self._remote is not None:
            self._remote.upload(self._directory, [f"{name}/{MARKER}"])
            for file in (*files, MARKER):
                insort(self._names, f"{name}/{file}")
        self._found[name] = {"files": files, **content}

    def find(self, name: str) -> dict[str, Any] | None:
        """What was said of a part when it was done, with its files made local; None if it is not done or damaged."""
        if name not in self._found:
            try:
                content = self._fetched(name)
            except UserError as error:
                print(f"done again because it is damaged: {error.problem}", flush=True)
                self._forget(name)
                return None
            if content is None:
                return None
            self._found[name] = content
        return self._found[name]

    def _fetched(self, name: str) -> dict[str, Any] | None:
        folder = self.path(name)
        if self._remote is not None:
            if not self.has(name):
                return None
            self._remote.download(self._there(name), self._directory)
        if not (folder / MARKER).is_file():
            return None
        content = read_document(folder / MARKER, "part of a preparation")
        for file, digest in content.get("files", {}).items():
            if not (folder / file).is_file() or sha256_of_file(folder / file) != digest:
                raise UserError(f"{name}/{file} differs from what was written.")
        return content

    def require(self, name: str) -> dict[str, Any]:
        """As `find`, of a part that another machine has done.

        Raises:
            UserError: it is not there, or is damaged.
        """
        content = self.find(name)
        if content is None:
            raise UserError(
                f"{name} of the preparation is not in {self.uri}, or was damaged there.",
                "Give a place that all machines see, such as gs://…. Run the same again to continue.",
            )
        return content

    def _forget(self, name: str) -> None:
        self._found.pop(name, None)
        (self.path(name) / MARKER).unlink(missing_ok=True)
        if self._remote is not None:
            there = self._there(name)
            self._remote.delete([file for file in there if file.endswith(f"/{MARKER}")])
            self._remote.delete([file for file in there if not file.endswith(f"/{MARKER}")])
            start = bisect_left(self._names, f"{name}/")
            del self._names[start : start + len(there)]
        shutil.rmtree(self.path(name), ignore_errors=True)

    def remove(self) -> None:
        """Deletes everything; the dataset is where it belongs."""
        if self._remote is not None:
            self._remote.delete(self._remote.names())
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.with_suffix(_LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # others' unfinished work is there
            self._directory.parent.rmdir()


@contextmanager
def unfinished_work(settings: PrepareSettings, base: str) -> Iterator[UnfinishedWork]:
    """The place of the unfinished work of one preparation; whoever finishes it calls `remove`.

    Args:
        settings: what is prepared; other settings, another source or another program have a place of their own.
        base: a directory or `gs://…` below which each preparation has its place.

    Raises:
        UserError: the source or the place cannot be read.
    """
    is_repeatable = all(source_of(source).is_repeatable for source in settings.sources.values())
    place = f"{base.rstrip('/')}/{_key(settings)}" if is_repeatable else ""
    with kept_work(place, "prepares the same data") as work:
        yield work


@contextmanager
def kept_work(place: str, doing: str) -> Iterator[UnfinishedWork]:
    """The unfinished work in a place; whoever finishes it calls `remove`.

    Args:
        place: a directory, or `gs://…`, whose name is of `place_name`; empty for one that is gone afterwards.
        doing: what another run does that has the place, for the log.

    Raises:
        UserError: the place cannot be read.
    """
    with scratch_folder("work") as scratch, ExitStack() as held:
        alone = f"{scratch}/alone"
        # Two runs that know nothing of each other must not share the place.
        if place and not is_remote(place) and not _is_ours(Path(place), held):
            print(f"another run {doing} at this moment; this one shares nothing with it", flush=True)
            place = ""
        if place and not is_remote(place):
            _remove_outdated(Path(place))
        yield UnfinishedWork(place or alone, scratch / "parts")


def place_name(asked: Any, state: Any) -> str:
    """The name of a place of unfinished work, of hashes.

    Args:
        asked: what is asked for, to be written as JSON.
        state: what else the parts depend on, such as the files of the source as they are now. With another one the
            parts in the place are of no use to whoever asks for the same.
    """
    return "-".join(hashlib.sha256(json.dumps(each).encode()).hexdigest()[:16] for each in (asked, state))


def _is_ours(place: Path, held: ExitStack) -> bool:
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = held.enter_context(place.with_suffix(_LOCK).open("a"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    lock.truncate(0)
    lock.write(socket.gethostname())
    lock.flush()
    return True


def _remove_outdated(place: Path) -> None:
    """Removes what killed processes of this machine have left of the same work on a source that has changed since.

    Of another machine's, with which this one may share the disk, a lock need not be known here.
    """
    for lock in place.parent.glob(f"{place.name.partition('-')[0]}-*{_LOCK}"):
        if lock == place.with_suffix(_LOCK):
            continue
        with suppress(OSError), lock.open() as held:  # its process goes on, or has just ended
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if held.read() == socket.gethostname():
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink()


def _key(settings: PrepareSettings) -> str:
    # How many rows may be rejected is looked at when all is done; machines change no byte.
    said = {name: value for name, value in asdict(settings).items() if name not in ("max_rejected", "ray_address")}
    # A source is asked for its state by a right name only.
    sources = () if settings.problems() else settings.sources.values()
    try:
        state = "".join(source_fingerprint(source, settings.billing_project) for source in sources)
    except (OSError, RuntimeError, ValueError):
        state = ""  # what is wrong with it is said when it is read
    return place_name(said, [state, digest_of_program()])
