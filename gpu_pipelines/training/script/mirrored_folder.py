"""An ordinary folder for a script to write to, and its copy in object storage."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from gpu_pipelines.artifacts.checkpoint import METRICS
from gpu_pipelines.artifacts.checkpoint_lock import LOCK
from gpu_pipelines.artifacts.checkpoint_store import patiently
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.machine.nccl_dumps import NCCL

_SECONDS_BETWEEN_LOOKS = 5.0
_MOST_AT_A_TIME = 8
#: What stands in a folder of the storage while a part of it may be missing there begins so; the node's number follows.
_UNFINISHED = ".copying-"
#: Bytes, and when it was written, in nanoseconds.
_State = tuple[int, int]


class MirroredFolder:
    """Keeps a copy of a local folder in object storage for as long as its context lasts.

    At the start the folder gets what the storage has, without what NCCL did last and without folders that an earlier
    copy has left unfinished: a program would take half a checkpoint for its newest. After that the storage gets what is
    written to the folder, once it has not changed between two looks, and loses what is deleted from it; at the end it
    gets the rest. Files that have never been in the folder, such as those of other nodes, stay.

    Args:
        uri: such as `gs://bucket/folder`.
        directory: the local folder.
        node: number of this machine among those that write there.
    """

    def __init__(self, uri: str, directory: Path, node: int = 0) -> None:
        self._remote = RemoteFolder(uri)
        self._directory = directory
        self._mark = f"{_UNFINISHED}{node}"
        self._seen: dict[str, _State] = {}
        self._copied: dict[str, _State] = {}
        self._unfinished: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mirrored-folder", daemon=True)

    def __enter__(self) -> MirroredFolder:
        """Fetches what the storage has.

        Raises:
            UserError: it cannot be read.
        """
        names = self._remote.names()
        unfinished = {_top(name) for name in names if name.partition("/")[2].startswith(_UNFINISHED)}
        for folder in sorted(unfinished):
            print(
                f"{self._remote.uri}/{folder} is left out: an earlier run was interrupted while it was copied",
                flush=True,
            )
        left_out = {NCCL, *unfinished}  # what NCCL did before is for people, and may be large
        self._remote.download([name for name in names if name != LOCK and _top(name) not in left_out], self._directory)
        self._copied = self._states()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Copies the rest, also where the work in the context has failed.

        Raises:
            UserError: it cannot be written, and nothing else has failed.
        """
        self._ended.set()
        self._thread.join()
        try:
            patiently(partial(self._copy, is_last=True))
        except UserError as problem:
            if error is None:
                raise
            print(f"warning: what was written last is lost: {problem}", flush=True)

    def _watch(self) -> None:
        told = ""
        while not self._ended.wait(_SECONDS_BETWEEN_LOOKS):
            try:
                self._copy()
            except UserError as error:
                if str(error) != told:
                    print(f"warning: {error} It is tried again.", flush=True)
                told = str(error)

    def _copy(self, *, is_last: bool = False) -> None:
        before, self._seen = self._seen, self._states()
        # A script may append to its metrics more often than it is looked at them; half a line at their end is no harm.
        settled = {
            name: state for name, state in self._seen.items() if is_last or before.get(name) == state or name == METRICS
        }
        changed = {name: state for name, state in settled.items() if self._copied.get(name) != state}
        if is_last and changed:
            size = sum(size for size, _ in changed.values()) / 1e9
            print(f"copying the last {len(changed)} files ({size:.2f} GB) to {self._remote.uri}", flush=True)
        for folder in {_top(name) for name in changed} - self._unfinished - {""}:
            self._remote.write(f"{folder}/{self._mark}", b"")
            self._unfinished.add(folder)
        with ThreadPoolExecutor(_MOST_AT_A_TIME) as pool:
            list(pool.map(self._upload, changed, changed.values()))
        gone = [name for name in self._copied if name not in self._seen]
        self._remote.delete(gone)
        for name in gone:
            del self._copied[name]
        lacking = {_top(name) for name, state in self._seen.items() if self._copied.get(name) != state}
        self._remote.delete([f"{folder}/{self._mark}" for folder in self._unfinished - lacking])
        self._unfinished &= lacking

    def _upload(self, name: str, state: _State) -> None:
        with suppress(FileNotFoundError):  # deleted since
            self._remote.upload(self._directory, [name])
            self._copied[name] = state

    def _states(self) -> dict[str, _State]:
        found = {}
        for path in self._directory.rglob("*"):
            with suppress(FileNotFoundError):  # deleted since
                if path.is_file():
                    status = path.stat()
                    found[path.relative_to(self._directory).as_posix()] = (status.st_size, status.st_mtime_ns)
        return found


def _top(name: str) -> str:
    """The folder right in the mirrored one in which a file is; empty for one that is in none."""
    return name.partition("/")[0] if "/" in name else ""
