"""Copies of checkpoints in object storage; if the disk has no room for all, one at a time is on it."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_pipelines.artifacts.checkpoint import CONFIGURATION, Checkpoint, complete_checkpoints
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.documents import read_document, write_document
from gpu_pipelines.artifacts.remote_files import (
    RemoteFolder,
    free_for_temporary_files,
    is_large_for_the_disk,
    is_remote,
)
from gpu_pipelines.errors import UserError

#: In a copy without weights: their place, and the names of the files there.
_LEFT, _URI, _FILES = "left-in-storage.json", "uri", "files"
_WHAT, _LOCK = "copy of checkpoints", ".weights.lock"
#: Files that transformers' Trainer, Accelerate and DeepSpeed need to continue a training, and an evaluation does not.
_OF_A_TRAINING = re.compile(
    r"(.*/)?(optimizer\.(pt|bin)|scheduler\.(pt|bin)|scaler\.pt|rng_state[^/]*\.pth|(optimizer_\d+|global_step\d+)/.*)"
)


def local_copy(uri: str, directory: Path, *, foreign: bool = False, weights_only: bool = False) -> Path:
    """The checkpoints of a URI as a local directory: itself, or a download of all that is complete there.

    Args:
        uri: a directory, or `gs://…`.
        directory: where to download to.
        foreign: whether they may have another format than this project's.
        weights_only: leaves out what only a training needs: with AdamW two thirds of the bytes. If the weights are
            more than half of the free disk, they are left out too, until `with_weights` fetches those of a checkpoint.

    Raises:
        UserError: there are none, they cannot be read, or the disk has no room for them.
    """
    if not is_remote(uri):
        return Path(uri)
    if foreign:
        _copy_foreign(RemoteFolder(uri), directory, weights_only=weights_only)
        return directory
    store = CheckpointStore(uri, directory)
    store.fetch_log()
    found = store.complete()
    if not weights_only or not _leave(uri, found, directory):
        for checkpoint in found:
            store.fetch(checkpoint, weights_only)
    if not (directory / CONFIGURATION).is_file():
        raise UserError(f"{uri} holds no training run: it has no {CONFIGURATION}.")
    return directory


def damaged_weights(checkpoint: Checkpoint) -> str | None:
    """Relative path of a file with weights that is missing or damaged, or None.

    Weights that were left in object storage are verified when they are fetched; here they only have to exist.
    """
    left = checkpoint.path.parent / _LEFT
    if not left.is_file():
        return checkpoint.damaged_file(weights_only=True)
    there, names = set(read_document(left, _WHAT)[_FILES]), checkpoint.files(weights_only=True)
    return next((name for name in names if f"{checkpoint.name}/{name}" not in there), None)


@contextmanager
def with_weights(path: Path) -> Iterator[None]:
    """Keeps the weights of a checkpoint in its folder, if `local_copy` left them in object storage.

    One process of this machine at a time is in such a context. The weights stay until another checkpoint is fetched.

    Args:
        path: folder of the checkpoint, or of any model.

    Raises:
        UserError: they cannot be read, or are damaged.
    """
    left = path.parent / _LEFT
    if not left.is_file():
        yield
        return
    with (path.parent / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fetch_in_place_of_others(path, read_document(left, _WHAT)[_URI])
        yield


def _leave(uri: str, found: list[Checkpoint], directory: Path) -> bool:
    """Whether the disk has no room for the weights of all checkpoints; then their place is noted."""
    sizes = RemoteFolder(uri).sizes()
    names = [f"{checkpoint.name}/{file}" for checkpoint in found for file in checkpoint.files(weights_only=True)]
    needed = sum(sizes.get(name, 0) for name in names)
    if not is_large_for_the_disk(needed):
        return False
    write_document(directory / _LEFT, {_URI: uri, _FILES: sorted(sizes)})
    print(
        f"the weights of {len(found)} checkpoints in {uri} are larger than half of the free disk: they are fetched "
        f"checkpoint by checkpoint, {needed / 1e9:,.2f} GB in all",
        flush=True,
    )
    return True


def _fetch_in_place_of_others(path: Path, uri: str) -> None:
    found = {checkpoint.path: checkpoint for checkpoint in complete_checkpoints(path.parent)}
    checkpoint = found.pop(path)
    if all((path / file).is_file() for file in checkpoint.files(weights_only=True)):
        return
    for other in found.values():
        _delete(other)
    CheckpointStore(uri, path.parent).fetch(checkpoint, weights_only=True)
    if damaged := checkpoint.damaged_file(weights_only=True):
        _delete(checkpoint)
        raise UserError(
            f"{checkpoint.name} in {uri} is damaged: {damaged} is not as it was written.",
            f"Delete {uri}/{checkpoint.name}, and evaluate again.",
        )


def _delete(checkpoint: Checkpoint) -> None:
    for file in checkpoint.files(weights_only=True):
        (checkpoint.path / file).unlink(missing_ok=True)


def _copy_foreign(folder: RemoteFolder, directory: Path, *, weights_only: bool) -> None:
    sizes = folder.sizes()
    names = [name for name in sizes if not (weights_only and _OF_A_TRAINING.fullmatch(name))]
    needed, free = sum(sizes[name] for name in names), free_for_temporary_files()
    if needed > free:
        raise UserError(
            f"The checkpoints in {folder.uri} have {needed / 1e9:,.1f} GB, and the disk has {free / 1e9:,.1f} GB free.",
            "Let the script keep fewer of them, such as by save_total_limit, or set TMPDIR to a larger disk.",
        )
    folder.download(names, directory)
