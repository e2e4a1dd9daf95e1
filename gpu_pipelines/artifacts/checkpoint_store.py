"""Where checkpoints are kept: a local directory, or object storage with a local directory for staging."""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint import (
    CONFIGURATION,
    MARKER,
    METRICS,
    SET_ASIDE,
    TENSORBOARD,
    Checkpoint,
    differing_settings,
    told_differences,
)
from gpu_pipelines.artifacts.checkpoint import complete_checkpoints as local_checkpoints
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote, read_remote
from gpu_pipelines.artifacts.upload import Upload
from gpu_pipelines.errors import UnavailableError, UserError

_CHECKPOINT = re.compile(r"step-\d{8,}")
#: Files in the folder of a checkpoint before its marker: shards, and a marker that is being written.
_BEFORE_THE_MARKER = re.compile(rf"shard-\d+-.*\.safetensors|\.{re.escape(MARKER)}\..*")
#: How often files are listed if some are deleted while they are read.
_MOST_LOOKS = 5
#: How long an unavailable storage may hold up a checkpoint before the training ends. Other processes wait for this one
#: for half an hour at most.
PATIENCE_SECONDS = 600.0
_SECONDS_BETWEEN_TRIES = 5.0


class CheckpointStore:
    """The checkpoints of one training.

    Args:
        uri: a directory, or `gs://…`.
        staging: local directory for files written to or read from object storage; not used for a local directory.

    Attributes:
        directory: where checkpoints are written before they are published, and read after they are fetched; for a
            local URI they stay there.
    """

    def __init__(self, uri: str, staging: Path) -> None:
        self.uri = uri
        self._remote = RemoteFolder(uri) if is_remote(uri) else None
        self.directory = staging if self._remote else Path(uri)
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def is_local(self) -> bool:
        """Whether the checkpoints stay in `directory`."""
        return self._remote is None

    def complete(self) -> list[Checkpoint]:
        """All checkpoints that have their marker, by step; their files are local only after `fetch`."""
        markers = self._fetch_those(lambda name: name.startswith("step-") and name.endswith(f"/{MARKER}"))
        if self._remote is not None:
            there = {name[: -len(MARKER) - 1] for name in markers}
            for stale in {path.name for path in self.directory.glob("step-*")} - there:
                self.forget_staged(stale)
        return local_checkpoints(self.directory)

    def fetch(self, checkpoint: Checkpoint, weights_only: bool = False) -> None:
        """Makes the files of a checkpoint local; `Checkpoint.damaged_file` shows missing ones.

        Args:
            checkpoint: one of `complete`.
            weights_only: leaves out what only a training needs.
        """
        names = {f"{checkpoint.name}/{file}" for file in (*checkpoint.files(weights_only), MARKER)}
        self._fetch_those(names.__contains__)

    def fetch_file(self, name: str) -> Path:
        """Makes one file local and returns its path.

        Args:
            name: relative path.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if self._remote is not None:
            self._remote.download([name], self.directory)
        return self.directory / name

    def read_part(self, name: str, start: int, length: int) -> bytes:
        """A part of a file, as it is stored; shorter if the file ends before.

        Args:
            name: relative path.
            start: first byte.
            length: bytes.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if self._remote is not None:
            return read_remote(f"{self.uri}/{name}", length, start)
        with (self.directory / name).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def stage_part(self, name: str, start: int, content: bytes, size: int) -> int:
        """Makes a part of a file local; parts that are not staged are holes. Does nothing for a local store.

        Args:
            name: relative path.
            start: first byte.
            content: of the part.
            size: bytes of the whole file.

        Returns:
            Bytes that were written.
        """
        if self._remote is None:
            return 0
        place = self.directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.truncate(size)
            file.seek(start)
            return file.write(content)

    def fetch_log(self) -> None:
        """Makes `metrics.jsonl` and `training.json` local, if they exist."""
        self._fetch_those((METRICS, CONFIGURATION).__contains__)

    def _fetch_those(self, wanted: Callable[[str], bool]) -> list[str]:
        """Makes the wanted files that exist local; returns their relative paths. Does nothing for a local store.

        A training may delete older checkpoints while others read them; then they are listed once more.
        """
        if self._remote is None:
            return []
        for _ in range(_MOST_LOOKS):
            names = [name for name in self._remote.names() if wanted(name)]
            with suppress(FileNotFoundError):
                self._remote.download(names, self.directory)
                return names
        raise UserError(f"{self.uri} cannot be read: a file that it lists is missing.", "Try again.")

    def publish(self, names: Sequence[str], watched: Upload | None = None) -> None:
        """Uploads files of `directory`; does nothing for a local store.

        Args:
            names: relative paths.
            watched: reports its progress, and may be given up.
        """
        if self._remote is not None and names:
            patiently(partial(self._remote.upload, self.directory, names, watched))

    def publish_log(self, events_uri: str = "") -> None:
        """Uploads `metrics.jsonl` and the TensorBoard events as they are now.

        Args:
            events_uri: folder in object storage that also gets the events; empty for none.
        """
        events = [path for path in (self.directory / TENSORBOARD).rglob("*") if path.is_file()]
        names = [path.relative_to(self.directory).as_posix() for path in events]
        self.publish([*names, METRICS] if (self.directory / METRICS).exists() else names)
        if events_uri and events:
            folder = self.directory / TENSORBOARD
            names = [path.relative_to(folder).as_posix() for path in events]
            patiently(partial(RemoteFolder(events_uri).upload, folder, names))

    def forget_staged(self, name: str) -> None:
        """Removes the local copy of a checkpoint that has been published."""
        if self._remote is not None:
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def begin(self, name: str) -> Path:
        """Makes the empty folder of a checkpoint, and deletes what an interrupted attempt left there."""
        self.delete(name)
        path = self.directory / name
        path.mkdir(parents=True)
        return path

    def delete_unfinished(self) -> None:
        """Deletes the folders of checkpoints without a marker, from attempts that were interrupted or given up.

        Only folders with nothing but what is written before the marker: others may be another program's.
        """
        if self._remote is None:
            there = [path.relative_to(self.directory).as_posix() for path in self.directory.glob("step-*/**/*")]
        else:
            there = self._remote.names()
        held: dict[str, list[str]] = {path.name: [] for path in self.directory.glob("step-*")}
        for name in there:
            folder, _, file = name.partition("/")
            held.setdefault(folder, []).append(file)
        for folder, files in held.items():
            if _CHECKPOINT.fullmatch(folder) and all(map(_BEFORE_THE_MARKER.fullmatch, files)):
                self.delete(folder)

    def set_aside(self, checkpoint: Checkpoint) -> None:
        """Makes a checkpoint not count as long as its marker has another name; its files stay."""
        marker = f"{checkpoint.name}/{MARKER}"
        (self.directory / marker).rename(self.directory / checkpoint.name / SET_ASIDE)
        self.publish([f"{checkpoint.name}/{SET_ASIDE}"])
        if self._remote is not None:
            self._remote.delete([marker])

    def delete(self, name: str) -> None:
        """Deletes a checkpoint, its marker first, so that a half-deleted one does not count."""
        if self._remote is not None:
            patiently(partial(self._delete_remote, self._remote, name))
        path = self.directory / name
        (path / MARKER).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)

    @staticmethod
    def _delete_remote(remote: RemoteFolder, name: str) -> None:
        names = [path for path in remote.names() if path.startswith(f"{name}/")]
        remote.delete([path for path in names if path.endswith(f"/{MARKER}")])
        remote.delete([path for path in names if not path.endswith(f"/{MARKER}")])


def patiently(work: Callable[[], None]) -> None:
    """Works with a storage, and tries again while it is not available: the training since would be lost.

    Args:
        work: may be repeated after an interruption.

    Raises:
        UnavailableError: the storage was not available for `PATIENCE_SECONDS`.
        UserError: the storage failed in another way.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return work()
        except UnavailableError as error:
            if time.monotonic() > deadline:
                raise
            print(f"warning: {error.problem} It is asked again, for {PATIENCE_SECONDS / 60:.0f} minutes.", flush=True)
        time.sleep(_SECONDS_BETWEEN_TRIES)


def holds_training(uri: str) -> bool:
    """Whether a directory or `gs://…` holds the checkpoints of a training of this project.

    Raises:
        UserError: the storage cannot be read.
    """
    if is_remote(uri):
        return CONFIGURATION in RemoteFolder(uri).names()
    return (Path(uri) / CONFIGURATION).is_file()


def require_same_training(
    uri: str,
    settings: Mapping[str, Any],
    configuration_hashes: Collection[str],
    fixed_in: Callable[[Mapping[str, tuple[Any, Any]]], Collection[str]],
    from_step: int = 0,
) -> None:
    """Checks, before the data is known, that a training can continue from the checkpoints of a URI.

    Args:
        uri: a directory, or `gs://…`.
        settings: those of the training that shape its weights.
        configuration_hashes: hashes that the training can have.
        fixed_in: returns those of the differing settings that may not change with `from_step` either.
        from_step: step of the checkpoint to continue from, also with other settings; 0 for the newest.

    Raises:
        UserError: there are none, or they have another configuration; or the storage cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-markers-") as staging:
        store = CheckpointStore(uri, Path(staging)) if is_remote(uri) or Path(uri).is_dir() else None
        found = {checkpoint.info.step: checkpoint for checkpoint in store.complete()} if store else {}
        if not found or not store:
            raise UserError(
                f"checkpoint_uri is {uri}, which has no checkpoint.",
                "Give the folder that holds step-00000100 and so on, or leave it out to start anew.",
            )
        if from_step and from_step not in found:
            raise UserError(f"resume_from_step is {from_step}; {uri} has {', '.join(map(str, found))}.")
        chosen = found[from_step or max(found)]
        if chosen.info.configuration_hash not in configuration_hashes:
            store.fetch_log()
            differing = differing_settings(store.directory, settings)
            fixed, told = fixed_in(differing), told_differences(differing)
            if fixed or not from_step:
                again = f", or resume_from_step={chosen.info.step} to continue from there with these"
                raise UserError(
                    f"checkpoint_uri is {uri}, and {chosen.name} there was trained with other parameters{told}.",
                    f"Give those of that run, or leave out checkpoint_uri to start anew{'' if fixed else again}.",
                )
    print(f"the training continues from {chosen.name} in {uri}", flush=True)


def read_metrics(path: Path, up_to_step: int | None = None) -> list[dict[str, float]]:
    """The entries of a `metrics.jsonl`, by step, without lines that a crash cut off or damaged.

    Lines of a script whose step is not a number are left out, too.
    """
    lines = path.read_bytes().splitlines() if path.exists() else []
    entries = (entry for line in lines if (entry := _metrics_in(line)))
    return [entry for entry in entries if up_to_step is None or entry["step"] <= up_to_step]


def last_metrics(path: Path, names: Collection[str]) -> dict[str, float]:
    """The last number for each name in a `metrics.jsonl`, from the lines that `read_metrics` reads.

    Each is searched from the end: the file of a long training has 100 MB, and callers that show its progress ask every
    few seconds.

    Args:
        path: the file; it need not exist.
        names: of figures; those that have no number are left out.
    """
    if not path.exists() or not path.stat().st_size:
        return {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = {name: _last_number(content, name) for name in names}
    return {name: number for name, number in found.items() if number is not None}


def _last_number(content: mmap.mmap, name: str) -> float | None:
    key, end = json.dumps(name).encode(), len(content)
    while (place := content.rfind(key, 0, end)) >= 0:
        content.seek(begin := content.rfind(b"\n", 0, place) + 1)
        value = _metrics_in(content.readline()).get(name)
        if isinstance(value, int | float):
            return value
        end = begin
    return None


def _metrics_in(line: bytes) -> dict[str, float]:
    """The numbers in a line of a `metrics.jsonl`; empty if it is damaged, or its step is not a number."""
    with suppress(ValueError, KeyError, TypeError):
        entry: dict[str, float] = json.loads(line)
        if math.isfinite(entry["step"]):
            return entry
    return {}
