"""Writing checkpoints beside the training and finding the one to continue from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from gpu_pipelines.artifacts import checkpoint as checkpoints
from gpu_pipelines.artifacts.checkpoint import MARKER, Checkpoint, CheckpointInfo
from gpu_pipelines.artifacts.checkpoint_lock import CheckpointLock
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.documents import sha256_of_file, sha256_of_tree
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.checkpoint_state import State, StateCopy, load_state, save_state
from gpu_pipelines.training.settings import TrainingSettings


@dataclass(frozen=True)
class Identity:
    """What a checkpoint must share with the training that continues from it."""

    dataset_fingerprint: str
    configuration_hash: str
    frozen_weights_sha256: str


class CheckpointWriter:
    """Writes checkpoints in a thread of its own while the training goes on.

    Where every process holds the whole state, rank 0 alone writes; where it is sharded, each process writes its part
    and rank 0 the marker, last.

    Args:
        store: where they go.
        settings: how many are kept.
        lock: the right to write there, which rank 0 holds; None on other processes.
        group: a gloo group of all processes, used for nothing else, where the state is sharded; else None. On the
            training's own group the thread's collectives would be mixed up with those of the training.
        events_uri: folder in object storage that gets the TensorBoard events as well; empty for none.
    """

    def __init__(
        self,
        store: CheckpointStore,
        settings: TrainingSettings,
        lock: CheckpointLock | None,
        group: dist.ProcessGroup | None,
        events_uri: str = "",
    ) -> None:
        self._store = store
        self._settings = settings
        self._lock = lock
        self._group = group
        self._events_uri = events_uri
        self._is_rank_0 = dist.get_rank() == 0
        self._copy: StateCopy | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._whole: dict[int, bool] = {}

    def found(self, earlier: list[CheckpointInfo]) -> None:
        """Takes note of the checkpoint that the training continues from, and those before it."""
        self._whole.update({info.step: not info.interruption for info in earlier})

    def save(self, state: State, info: Mapping[str, Any]) -> None:
        """Copies the state and writes it in the background; waits first if the one before is still being written.

        Args:
            state: tensors, the same ones each time.
            info: what `checkpoint.json` says besides the files.
        """
        if not self._is_rank_0 and self._group is None:
            return
        self.wait()
        if self._copy is None:
            self._copy = StateCopy(state)
        self._pending = self._thread.submit(self._write, self._copy.take(), dict(info))

    def wait(self) -> None:
        """Waits until the last checkpoint is whole.

        Raises:
            UserError: it could not be written.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.result()
        except OSError as error:
            raise UserError(f"A checkpoint could not be written to {self._store.uri}: {error}.") from None

    def close(self) -> None:
        """Waits, and ends the thread."""
        self.wait()
        self._thread.shutdown()

    def _write(self, state: State, info: dict[str, Any]) -> None:
        name = checkpoints.checkpoint_path(self._store.directory, info["step"]).name
        path = self._store.directory / name
        if self._lock is not None:
            self._lock.require_held()
            self._store.begin(name)
        if self._group is not None:
            dist.barrier(self._group)
            path.mkdir(parents=True, exist_ok=True)
        save_state(state, path, self._group)
        files = self._publish_own(name)
        if self._lock is not None:
            self._lock.require_held()
            checkpoint = checkpoints.mark_complete(path, files=files, **info)
            self._store.publish([f"{name}/{MARKER}"])
            self._store.publish_log(self._events_uri)
            self._whole[info["step"]] = not info["interruption"]
            self._delete_superseded(checkpoint)
        if self._group is not None:
            dist.barrier(self._group)
        self._store.forget_staged(name)

    def _publish_own(self, name: str) -> dict[str, str]:
        """Uploads what this process wrote; returns the hashes of what all of them wrote."""
        path = self._store.directory / name
        if self._group is None:
            hashes = sha256_of_tree(path)
            self._store.publish([f"{name}/{file}" for file in hashes])
            return hashes
        rank = dist.get_rank(self._group)
        own = {file.name for file in path.glob(f"shard-{rank + 1:05d}-*")}
        hashes = {file: sha256_of_file(path / file) for file in own}
        self._store.publish([f"{name}/{file}" for file in own])
        everyones: list[dict[str, str]] = [{} for _ in range(dist.get_world_size(self._group))]
        dist.all_gather_object(everyones, hashes, group=self._group)
        together = {file: digest for part in everyones for file, digest in part.items()}
        if self._is_rank_0 and self._store.is_local and (missing := [f for f in together if not (path / f).is_file()]):
            raise UserError(
                f"{self._store.uri} is not shared by the nodes: {missing[0]} of another node is not here.",
                "Give a gs:// checkpoint_uri or a directory on a file system that all nodes mount.",
            )
        return together

    def _delete_superseded(self, newest: Checkpoint) -> None:
        keep = self._settings
        for step in superseded(self._whole, keep.keep_last, keep.keep_every_steps, newest.info.best_step):
            self._store.delete(checkpoints.checkpoint_path(self._store.directory, step).name)
            del self._whole[step]


def restore(
    state: Callable[[], State], store: CheckpointStore, identity: Identity, lock: CheckpointLock | None
) -> tuple[Checkpoint | None, list[CheckpointInfo]]:
    """Reads the newest good checkpoint into a state, in place; all processes call it.

    Rank 0 looks and verifies; the others follow it, so that all continue from the same one.

    Args:
        state: gives the tensors to read into; not called if there is no checkpoint.
        store: where to look.
        identity: what the checkpoint must share with this training.
        lock: the right to write there, which rank 0 waits for first; None on other processes.

    Returns:
        The checkpoint, or None if there is none, and what it and those before it say of themselves.

    Raises:
        UserError: another training writes there, the checkpoints are of another one, or they cannot be read.
    """
    chosen: list[Any] = [None]
    if lock is not None:
        try:
            lock.acquire()
            chosen = [_newest_good(store, identity)]
        except UserError as error:
            chosen = [error]
    dist.broadcast_object_list(chosen, src=0)
    if isinstance(chosen[0], UserError):
        raise chosen[0]
    if chosen[0] is None:
        return None, []
    newest, earlier = chosen[0]
    here = checkpoints.Checkpoint(store.directory / newest.name, newest.info)
    _require_readable_on_all_nodes(store, here)
    load_state(state(), here.path)
    dist.barrier()
    store.forget_staged(here.name)
    return here, [*earlier, here.info]


def _newest_good(store: CheckpointStore, identity: Identity) -> tuple[Checkpoint, list[CheckpointInfo]] | None:
    found = store.complete()
    for number in range(len(found) - 1, -1, -1):
        checkpoint = found[number]
        for what in ("dataset_fingerprint", "configuration_hash", "frozen_weights_sha256"):
            if getattr(checkpoint.info, what) != getattr(identity, what):
                raise UserError(
                    f"{checkpoint.path} was trained with another {what.replace('_', ' ')}.",
                    "Give an empty checkpoint directory, or the parameters and data of that run.",
                )
        store.fetch(checkpoint)
        if damaged := checkpoint.damaged_file():
            print(f"warning: passing over {checkpoint.name}: {damaged} is damaged", flush=True)
            store.forget_staged(checkpoint.name)
            continue
        store.fetch_log()
        return checkpoint, [earlier.info for earlier in found[:number]]
    return None


def _require_readable_on_all_nodes(store: CheckpointStore, checkpoint: Checkpoint) -> None:
    problem = ""
    if dist.get_rank() != 0 and os.environ.get("LOCAL_RANK") == "0":
        try:
            store.fetch(checkpoint)
            damaged = checkpoint.damaged_file()
            problem = (
                f"{checkpoint.path / damaged} cannot be read on node {os.environ['GROUP_RANK']}" if damaged else ""
            )
        except UserError as error:
            problem = str(error)
    problems: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    if found := [problem for problem in problems if problem]:
        raise UserError(
            f"{found[0]}.", "Give a gs:// checkpoint_uri or a directory on a file system that all nodes mount."
        )


def superseded(
    checkpoints: Mapping[int, bool], keep_last: int, keep_every_steps: int, best_step: int | None
) -> list[int]:
    """Steps of the checkpoints that are not to be kept.

    Args:
        checkpoints: for the step of each checkpoint known to be whole, whether it was due; one that was written because
            of an interruption is kept only until there is a newer one, so that an interrupted training ends with the
            checkpoints of one that was not. The newest is always kept.
        keep_last: number of newest ones to keep; 0 keeps all.
        keep_every_steps: those at multiples of this are kept; 0 for none.
        best_step: step of the one with the lowest loss on val, which is kept; None if not known.
    """
    newest = max(checkpoints)
    due = sorted(step for step, was_due in checkpoints.items() if was_due)
    kept = set(due if keep_last == 0 else due[-keep_last:]) | {best_step, newest}
    if keep_every_steps:
        kept |= {step for step in due if step % keep_every_steps == 0}
    return sorted(set(checkpoints) - kept)
