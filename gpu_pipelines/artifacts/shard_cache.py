"""A bounded folder with the shards of a dataset in object storage needed now or soon, for all processes here.

A shard is named by its hash, and is there only once all of it has come and has that hash. Every process fetches. Kernel
locks (flock), which end with the process however it ends, keep two from fetching the same shard, and a shard from being
deleted while it is read. The space of a shard is taken before it is fetched. Shards needed last are deleted first, and
each process tells the others what it reads next, so that they keep it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from gpu_pipelines.artifacts.remote_files import read_remote
from gpu_pipelines.errors import DamagedError, NotFoundError, UserError, is_of_a_full_disk

_LOCK = ".lock"
_SHARD, _PART, _ASKED = ".arrow", ".part", ".asked"
#: Most bytes of the names that a process asks for.
_MOST_ASKED = 1 << 16
_PIECE = 16 << 20
#: How long a thread waits for a change that another process may make.
_READER_LOOKS, _FETCHER_LOOKS = 0.01, 0.1


@dataclass(frozen=True)
class StoredShard:
    """A shard in object storage: its size in bytes, and their hex SHA-256."""

    size: int
    sha256: str


class HeldShard:
    """A shard that stays in the cache until it is let go; `path` is its file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def let_go(self) -> None:
        """Allows its deletion; it must no longer be mapped into memory."""
        os.close(self._descriptor)


class ShardCache:
    """This process's part of the cache.

    Args:
        uri: folder of the dataset in object storage.
        shards: all shards by their path in the dataset.
        directory: the cache; only for this dataset and one training, shared by its processes on this machine.
        bound: most bytes of all files in it together.
        fetchers: shards that this process fetches at once.
    """

    def __init__(
        self, uri: str, shards: Mapping[str, StoredShard], directory: Path, bound: int, fetchers: int = 4
    ) -> None:
        self.shards = shards
        self.bound = bound
        self._uri, self._directory = uri.rstrip("/"), directory
        self._expected: list[str] = []
        self._due: dict[str, int] = {}
        self._asked_by: dict[int, list[str]] = {}
        self._failures: dict[str, tuple[Exception, bool]] = {}
        self._choosing, self._telling = threading.Lock(), threading.Lock()
        self._changed, self._arrived = threading.Event(), threading.Event()
        self._closed = False
        self._bytes, self._stalled = 0, 0.0
        directory.mkdir(parents=True, exist_ok=True)
        with self._alone():
            self._told = _Told(directory)
        self._threads = [threading.Thread(target=self._fetch_what_comes, daemon=True) for _ in range(fetchers)]
        for thread in self._threads:
            thread.start()

    def expect(self, paths: Sequence[str]) -> None:
        """Sets the shards that are needed next, in order; they are fetched as far as there is room."""
        self._due = {self._file(path): place for place, path in reversed(list(enumerate(paths)))}
        self._expected = list(paths)
        self._changed.set()

    def ask(self, paths: Sequence[str]) -> None:
        """Sets the shards that this thread reads next, replacing those that it asked for before."""
        with self._telling:
            self._asked_by[threading.get_ident()] = list(paths)
            self._told.tell([self._file(path) for path in self._asked()])
        self._changed.set()

    def hold(self, path: str, then: Sequence[str] = ()) -> HeldShard:
        """Waits for a shard, and keeps it.

        Args:
            path: the shard.
            then: the next shards, to be fetched meanwhile.

        Raises:
            UserError: it cannot be fetched, or is damaged, or the disk is full.
        """
        self.ask([path, *then])  # of this thread: rows of val may be read while another thread reads ahead
        began = time.monotonic()
        while (held := self._held(path)) is None:
            error, was_asked = self._failures.get(path, (None, False))
            if error is not None and was_asked:
                raise error
            if self._closed:
                raise RuntimeError("The cache is closed.")
            self._arrived.wait(_READER_LOOKS)
            self._arrived.clear()
        self.ask(then)
        self._stalled += time.monotonic() - began
        return held

    def taken(self) -> tuple[int, float]:
        """Bytes that this process fetched, and seconds that it waited for shards, since the last call."""
        (fetched, self._bytes), (stalled, self._stalled) = (self._bytes, 0), (self._stalled, 0.0)
        return fetched, stalled

    def used(self) -> int:
        """Bytes of all files in the cache."""
        return sum(files_in(self._directory).values())

    def close(self) -> None:
        """Ends fetching."""
        self._closed = True
        self._changed.set()
        for thread in self._threads:
            thread.join(_FETCHER_LOOKS)  # a thread that fetches ends with its shard, or with the process
        self._told.close()

    def _asked(self) -> list[str]:
        return [path for asked in list(self._asked_by.values()) for path in asked]

    def _file(self, path: str) -> str:
        return self.shards[path].sha256 + _SHARD

    def _dues(self, others: Sequence[Sequence[str]]) -> Callable[[str], float]:
        """When files are needed: first those asked for, then those expected, each in order; the rest never."""
        asked = [[self._file(path) for path in self._asked()], *others]
        places = [(place, name) for names in asked for place, name in enumerate(names)]
        first = {name: place - len(places) for place, name in sorted(places, reverse=True)}
        expected = self._due
        return lambda name: first.get(name, expected.get(name, inf))

    def _held(self, path: str) -> HeldShard | None:
        place = self._directory / self._file(path)
        try:
            descriptor = os.open(place, os.O_RDONLY)
        except FileNotFoundError:
            return None
        if _is_locked(descriptor, fcntl.LOCK_SH):
            status = os.fstat(descriptor)
            # A file that was deleted between the two calls no longer has a name.
            if status.st_nlink and status.st_size == self.shards[path].size:
                return HeldShard(place, descriptor)
        os.close(descriptor)
        return None

    def _fetch_what_comes(self) -> None:
        while not self._closed:
            with self._choosing:  # the others wait here until one has found something
                while self._closed or (begun := self._begin_next()) is None:
                    if self._closed:
                        return
                    self._changed.wait(_FETCHER_LOOKS)
                    self._changed.clear()
            path, descriptor = begun
            with self._failure_noted(path):
                try:
                    self._fetch(path, descriptor)
                finally:
                    os.close(descriptor)

    def _begin_next(self) -> tuple[str, int] | None:
        """The shard to fetch now, and a locked file with its space; None if there is none, or no room for it."""
        there, asked = files_in(self._directory), self._asked()
        for path in [*asked, *self._expected]:
            if self._is_there(there, path) or self._is_given_up(path, path in asked):
                continue
            with self._failure_noted(path):
                try:
                    if (descriptor := self._take_space(path)) is not None:
                        return path, descriptor
                except _NoRoomError:
                    return None
        return None

    @contextmanager
    def _failure_noted(self, path: str) -> Iterator[None]:
        """Keeps the error of a shard for the thread that asks for it, if one ever does."""
        asked = path in self._asked()
        try:
            yield
            self._failures.pop(path, None)
        except _NoRoomError:
            raise
        except Exception as error:
            self._failures[path] = (error, asked)
        finally:
            self._arrived.set()

    def _is_given_up(self, path: str, asked: bool) -> bool:
        """Whether a shard is not fetched because that failed; it is tried once more when it is asked for."""
        _, was_asked = self._failures.get(path, (None, None))
        return was_asked is not None and (was_asked or not asked)

    def _is_there(self, there: Mapping[str, int], path: str) -> bool:
        return there.get(self._file(path)) == self.shards[path].size

    def _take_space(self, path: str) -> int | None:
        """A locked file with the space of a shard; None if another process fetches it.

        Raises:
            _NoRoomError: all files in the cache are needed sooner, or in use.
            UserError: the disk is full.
        """
        size, part = self.shards[path].size, self.shards[path].sha256 + _PART
        with self._alone():
            others = self._told.by_others()
            due = self._dues(others)
            # Reading in order needs room again and again; it would soon delete what others took meanwhile.
            only_free = path not in self._asked() and any([self._asked(), *others])
            before = inf if only_free else due(self._file(path))
            there = files_in(self._directory)
            if self._is_there(there, path):
                return None
            descriptor = os.open(self._directory / part, os.O_RDWR | os.O_CREAT, 0o600)
            if not _is_locked(descriptor, fcntl.LOCK_EX):
                os.close(descriptor)
                return None
            try:
                there.pop(part, None)
                self._make_room(there, sum(there.values()) + size - self.bound, due, before)
                os.ftruncate(descriptor, min(size, os.fstat(descriptor).st_size))
                if sys.platform == "linux":
                    os.posix_fallocate(descriptor, 0, size)
                else:  # a full disk is noticed later
                    os.ftruncate(descriptor, size)
            except (OSError, _NoRoomError) as error:
                (self._directory / part).unlink()
                os.close(descriptor)
                if isinstance(error, OSError):
                    raise self._not_written(error, size) from None
                raise
            return descriptor

    def _make_room(self, there: Mapping[str, int], missing: int, due: Callable[[str], float], before: float) -> None:
        """Deletes files that are needed later than `before` and not open anywhere, those needed last first."""
        victims: list[tuple[str, int]] = []
        try:
            for name in sorted(there, key=due, reverse=True):
                if missing <= 0 or due(name) <= before:
                    break
                try:
                    descriptor = os.open(self._directory / name, os.O_RDONLY)
                except FileNotFoundError:  # a part that has just become whole
                    continue
                if not _is_locked(descriptor, fcntl.LOCK_EX):
                    os.close(descriptor)
                    continue
                victims.append((name, descriptor))
                missing -= there[name]
            if missing > 0:
                raise _NoRoomError
            for name, _ in victims:
                (self._directory / name).unlink()
        finally:
            for _, descriptor in victims:
                os.close(descriptor)

    def _fetch(self, path: str, descriptor: int) -> None:
        """Fills a file, and gives it its name once its hash is right; a damaged copy is fetched once more."""
        shard, uri = self.shards[path], f"{self._uri}/{path}"
        part = self._directory / (shard.sha256 + _PART)
        for _ in range(2):
            if self._copied(uri, descriptor, shard.size) == shard.sha256:
                # A name that survives a power loss must mean that the content did.
                os.fsync(descriptor)
                with self._alone():  # whoever counts the space must see one of the two names
                    part.rename(self._directory / self._file(path))
                return
        part.unlink()
        raise DamagedError(
            f"The shard {uri} is not the one that dataset.json names: it has another SHA-256.",
            "Prepare the dataset again; the training continues if its rows are the same.",
        )

    def _copied(self, uri: str, descriptor: int, size: int) -> str:
        """Copies a file of a bucket, and returns the hex SHA-256 of the bytes; empty if they are too few."""
        digest, place = hashlib.sha256(), 0
        try:
            while place < size:
                piece = read_remote(uri, min(_PIECE, size - place), place)
                if not piece:
                    return ""
                digest.update(piece)
                os.pwrite(descriptor, piece, place)
                place += len(piece)
                self._bytes += len(piece)
        except FileNotFoundError:
            raise NotFoundError(
                f"The shard {uri} is gone.", "Prepare the dataset again, or give a dataset that has it."
            ) from None
        except OSError as error:
            raise self._not_written(error, size) from None
        return digest.hexdigest()

    def _not_written(self, error: OSError, size: int) -> UserError:
        free = shutil.disk_usage(self._directory).free
        if is_of_a_full_disk(error):
            return UserError(
                f"The disk of {self._directory} is full: {free / 1e9:.2f} GB are free, and a shard of {size / 1e9:.2f} "
                f"GB is to be kept in a cache of {self.bound / 1e9:.2f} GB.",
                "Free some space, give a smaller cache_gb, or set TMPDIR to a larger disk.",
            )
        return UserError(f"{self._directory} cannot be written to: {error.strerror or error}.", "Set TMPDIR.")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other processes from taking space."""
        with (self._directory / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def files_in(directory: Path) -> dict[str, int]:
    """Bytes of each file of a cache, by its name."""
    found = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith((_SHARD, _PART)):
                with suppress(FileNotFoundError):
                    found[entry.name] = entry.stat().st_size
    return found


class _Told:
    """What the processes of a machine read next: a file of each, locked while it lives.

    Args:
        directory: the cache; nobody else changes its files meanwhile.
    """

    def __init__(self, directory: Path) -> None:
        descriptor, name = tempfile.mkstemp(_ASKED, dir=directory)
        self._path, self._file, self._content = Path(name), os.fdopen(descriptor, "wb", buffering=0), b""
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def tell(self, names: Sequence[str]) -> None:
        """Tells the others which files this process reads next, in order.

        A process that reads it during the change sees some of the old names, and keeps files in vain once.
        """
        content = "\n".join(names).encode()[:_MOST_ASKED]
        if content != self._content:
            with suppress(OSError):  # on a full disk this process tells them the next time
                os.pwrite(self._file.fileno(), content, 0)
                self._file.truncate(len(content))
                self._content = content

    def by_others(self) -> list[list[str]]:
        """What each of the other processes reads next; call it only while nobody else changes the files."""
        found = []
        for path in self._path.parent.glob(f"*{_ASKED}"):
            if path == self._path:
                continue
            with suppress(FileNotFoundError), path.open("rb") as file:
                if _is_locked(file.fileno(), fcntl.LOCK_SH):
                    path.unlink()  # its process has ended
                else:
                    found.append(file.read(_MOST_ASKED).decode().split())
        return found

    def close(self) -> None:
        """Tells the others nothing from now on."""
        self._path.unlink(missing_ok=True)


class _NoRoomError(Exception):
    """No file can be deleted for a shard now."""


def _is_locked(descriptor: int, kind: int) -> bool:
    """Locks a file unless another process holds a conflicting lock."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
