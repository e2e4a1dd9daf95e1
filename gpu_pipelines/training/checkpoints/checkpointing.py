"""Writing checkpoints beside the training."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.device_mesh import DeviceMesh

from gpu_pipelines.accelerators.memory_estimate import BYTES_PER_WEIGHT
from gpu_pipelines.accelerators.workload import OPTIMIZER_BYTES
from gpu_pipelines.artifacts import checkpoint as checkpoints
from gpu_pipelines.artifacts.checkpoint import MARKER, Checkpoint, CheckpointInfo
from gpu_pipelines.artifacts.checkpoint_blocks import Blocks, hashes_of
from gpu_pipelines.artifacts.checkpoint_lock import CheckpointLock
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore, patiently
from gpu_pipelines.artifacts.upload import Upload, UploadGivenUpError
from gpu_pipelines.errors import UserError, first_line, is_of_a_full_disk
from gpu_pipelines.tasks.checkpoint_state import State, StateCopy, bytes_of, save_state
from gpu_pipelines.training.machine.interruption import Interruption
from gpu_pipelines.training.settings import TrainingSettings

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_WORTH_A_LINE = 1.0
#: What writing raises where the disk is full or gone; torch.distributed.checkpoint's own is no Exception.
_NOT_WRITTEN = (OSError, SafetensorError, CheckpointException)


@dataclass
class _Writing:
    """A checkpoint on its way.

    Attributes:
        name: of its folder.
        upload: of its tensors to object storage.
        held_up: seconds for which it held up the training: for the one before to be whole, and for its own copy.
        began: when its tensors had been copied, on the clock of `time.monotonic`.
        on_disk: when they were in files of this machine, on the same clock; None before.
        end: comes when it is whole.
    """

    name: str
    held_up: float
    upload: Upload = field(default_factory=Upload)
    began: float = field(default_factory=time.monotonic)
    on_disk: float | None = None
    end: Future[None] = field(default_factory=Future)

    def seconds_left(self) -> float:
        """Until its tensors are uploaded, at the rate so far; infinite where that is not known."""
        rate = self.upload.rate
        return (self.upload.total - self.upload.confirmed) / rate if rate else math.inf

    def seconds_again(self) -> float:
        """What another one would take from its beginning; 0 where that is not known."""
        rate = self.upload.rate
        return (self.on_disk or self.began) - self.began + self.upload.total / rate if rate else 0.0


class CheckpointWriter:
    """Writes checkpoints in a thread of its own while the training continues.

    Where every process holds the whole state, rank 0 alone writes; where it is sharded, each process writes its part
    and rank 0 the marker, last.

    Args:
        store: where they go.
        settings: how many are kept.
        lock: the right to write there, which rank 0 holds; None on other processes.
        mesh: over which the state is sharded; None where every process holds the whole. Of several replicas the first
            writes.
        interruption: of the training.
        events_uri: folder in object storage that gets the TensorBoard events as well; empty for none.
    """

    def __init__(
        self,
        store: CheckpointStore,
        settings: TrainingSettings,
        lock: CheckpointLock | None,
        mesh: DeviceMesh | None,
        interruption: Interruption,
        events_uri: str = "",
    ) -> None:
        self._store = store
        self._settings = settings
        self._lock = lock
        self._group, self._agreement = _groups(mesh)
        self._writes = dist.get_rank() == 0 if mesh is None else self._group is not None
        self._interruption = interruption
        self._events_uri = events_uri
        self._is_rank_0 = dist.get_rank() == 0
        self._copy: StateCopy | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: _Writing | None = None
        self._whole: dict[int, bool] = {}
        self._held_up = self._written_in = 0.0

    @property
    def newest_whole(self) -> int | None:
        """Step of the newest checkpoint, as far as this process knows; None if there is none."""
        return max(self._whole, default=None)

    def found(self, earlier: list[CheckpointInfo]) -> None:
        """Takes note of the checkpoint that the training continues from, and those before it."""
        self._whole.update({info.step: not info.interruption for info in earlier})

    def require_room(self, weights: State, averages: int = 0) -> None:
        """Checks that the disk has room for a checkpoint, before hours are spent on one that cannot be written.

        Args:
            weights: those that are trained; the optimizer keeps more for each.
            averages: number of averages of each weight that are kept as well.

        Raises:
            UserError: it has not.
        """
        if not self._writes:
            return
        on_this_node = 1 if self._group is None else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        of_optimizer = OPTIMIZER_BYTES[self._settings.optimizer] / BYTES_PER_WEIGHT
        needed = int(bytes_of(weights) * (1 + of_optimizer + averages) * on_this_node)
        free = shutil.disk_usage(self._store.directory).free
        if free < needed:
            raise UserError(
                f"A checkpoint takes {_gigabytes(needed)}, and {self._store.directory} has {_gigabytes(free)} free.",
                self._more_room,
            )

    def prepare(self, state: State) -> None:
        """Takes the host memory that checkpoints are copied to, once; on GPUs it is pinned, which takes seconds.

        Args:
            state: as `save` will get it.
        """
        if self._writes and self._copy is None:
            self._copy = StateCopy(state)

    def save(self, state: State, info: Mapping[str, Any]) -> None:
        """Copies the state and writes it in the background.

        It waits first if the one before is still being written. In an interruption there may be no time for both: then
        the one before is given up, if there is time for this one.

        Args:
            state: tensors, the same ones each time.
            info: what `checkpoint.json` says besides the files.
        """
        if not self._writes:
            return
        began = time.monotonic()
        self._make_way()
        self.prepare(state)
        assert self._copy is not None
        copied = self._copy.take()
        name = checkpoints.checkpoint_path(self._store.directory, info["step"]).name
        writing = _Writing(name, held_up=time.monotonic() - began)
        self._held_up = writing.held_up
        writing.end = self._thread.submit(self._write, writing, copied, dict(info))
        self._pending = writing

    def mark_again(self, whole: Checkpoint, info: Mapping[str, Any]) -> None:
        """Says more of a whole checkpoint, such as its loss on val. Written anew, it would be gone meanwhile.

        Args:
            whole: the checkpoint.
            info: what `checkpoint.json` says besides the files.
        """
        if self._lock is None:
            return
        path = self._store.directory / whole.name
        path.mkdir(exist_ok=True)  # of object storage, what was read of it is not here any more
        marked = self._mark(path, {**info, "files": whole.info.files, "blocks": whole.info.blocks})
        self._delete_superseded(marked)
        self._store.forget_staged(whole.name)

    def took(self) -> tuple[float, float]:
        """Seconds for which the last save held up the training, and in which the last whole checkpoint was written.

        Those of rank 0, on all processes, all of which call this.
        """
        measured = torch.tensor([self._held_up, self._written_in], dtype=torch.float64)
        dist.broadcast(measured, src=0)
        held_up, writing = measured.tolist()
        return held_up, writing

    def _make_way(self) -> None:
        while (pending := self._pending) is not None:
            unfinished, signalled = self._most(not pending.end.done(), self._interruption.is_known)
            if not unfinished:
                break
            if signalled and self._is_to_be_given_up(pending):
                pending.upload.give_up()
                break
            wait_for([pending.end], _SECONDS_BETWEEN_LOOKS)
        self.wait()

    def _is_to_be_given_up(self, pending: _Writing) -> bool:
        if self._store.is_local:
            return False
        left, again, gone = self._most(
            pending.seconds_left(), pending.seconds_again(), -self._interruption.seconds_left()
        )
        if not is_given_up(left, again, -gone):
            return False
        if self._is_rank_0:
            done, total = _gigabytes(pending.upload.confirmed), _gigabytes(pending.upload.total)
            print(
                f"{pending.name} is given up for the checkpoint of the interruption: {done} of {total} were uploaded",
                flush=True,
            )
        return True

    def _most(self, *values: float) -> list[float]:
        """The largest of each value over the processes that write."""
        if self._agreement is None:
            return list(values)
        together = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(together, dist.ReduceOp.MAX, group=self._agreement)
        return [float(value) for value in together.tolist()]

    def require_no_failure(self) -> None:
        """Raises at once if the last checkpoint could not be written; called after each step.

        Raises:
            UserError: it could not be written.
        """
        if self._pending is not None and self._pending.end.done() and self._pending.end.exception() is not None:
            self.wait()

    def wait(self) -> None:
        """Waits until the last checkpoint is whole, or given up.

        Raises:
            UserError: it could not be written.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.end.result()
        except UploadGivenUpError:
            return
        except _NOT_WRITTEN as error:
            raise self._not_written(error) from None

    def _not_written(self, error: BaseException) -> UserError:
        causes = [error]
        if isinstance(error, CheckpointException):  # what each process says, with its stack
            causes = [cause[0] if isinstance(cause, tuple) else cause for cause in error.failures.values()]
        full = [cause for cause in causes if is_of_a_full_disk(cause)]
        free = _gigabytes(shutil.disk_usage(self._store.directory).free)
        return UserError(
            f"A checkpoint could not be written to {self._store.directory} ({free} free): "
            f"{first_line((full or causes)[0])}.",
            self._more_room if full else "",
        )

    @property
    def _more_room(self) -> str:
        if self._store.is_local:
            return "Give a checkpoint_uri with more room, or keep fewer checkpoints (keep_last)."
        return "It is written there before it is uploaded. Take a larger boot disk, or set TMPDIR."

    def close(self) -> None:
        """Waits, and ends the thread."""
        self.wait()
        self._thread.shutdown()

    def _write(self, writing: _Writing, state: State, info: dict[str, Any]) -> None:
        name = writing.name
        path = self._store.directory / name
        if self._lock is not None:
            patiently(self._lock.require_held)
            self._store.begin(name)
        if self._group is not None:
            dist.barrier(self._group)
            path.mkdir(parents=True, exist_ok=True)
        save_state(state, path, self._group)
        writing.on_disk = time.monotonic()
        hashes = self._publish_own(writing)
        if self._lock is not None:
            files = {name: whole for name, (whole, _) in sorted(hashes.items())}
            blocks = {name: parts for name, (_, parts) in sorted(hashes.items())}
            checkpoint = self._mark(path, {**info, "files": files, "blocks": blocks})
            self._tell(writing, sum(parts.size for parts in blocks.values()))
            self._delete_superseded(checkpoint)
        if self._group is not None:
            dist.barrier(self._group)
        self._store.forget_staged(name)

    def _mark(self, path: Path, info: dict[str, Any]) -> Checkpoint:
        assert self._lock is not None
        patiently(self._lock.require_held)
        checkpoint = checkpoints.mark_complete(path, **info)
        self._store.publish([f"{path.name}/{MARKER}"])
        self._store.publish_log(self._events_uri)
        self._whole[info["step"]] = not info["interruption"]
        return checkpoint

    def _publish_own(self, writing: _Writing) -> dict[str, tuple[str, Blocks]]:
        """Uploads what this process wrote; returns the hashes of what all of them wrote."""
        name = writing.name
        path = self._store.directory / name
        own = "*" if self._group is None else f"shard-{dist.get_rank(self._group) + 1:05d}-*"
        hashes: dict[str, tuple[str, Blocks]] | None = {file.name: hashes_of(file) for file in sorted(path.glob(own))}
        uploaded = [f"{name}/{file}" for file in hashes or ()]
        if self._group is None:
            self._store.publish(uploaded, writing.upload)
            return hashes or {}
        try:
            self._store.publish(uploaded, writing.upload)
        except UploadGivenUpError:
            hashes = None
        everyones: list[dict[str, tuple[str, Blocks]] | None] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everyones, hashes, group=self._group)
        together: dict[str, tuple[str, Blocks]] = {}
        for part in everyones:
            if part is None:
                raise UploadGivenUpError
            together |= part
        if self._is_rank_0 and self._store.is_local and (missing := [f for f in together if not (path / f).is_file()]):
            raise UserError(
                f"{self._store.uri} is not shared by the nodes: {missing[0]} of another node is not here.",
                "Give a gs:// checkpoint_uri or a directory on a file system that all nodes mount.",
            )
        return together

    def _tell(self, writing: _Writing, size: int) -> None:
        """Says what a checkpoint took, where it took long enough to matter: the training goes on meanwhile."""
        seconds = time.monotonic() - writing.began
        self._written_in = seconds
        if seconds < _SECONDS_WORTH_A_LINE:
            return
        on_disk = (writing.on_disk or writing.began) - writing.began
        parts = f"written in {on_disk:.1f} s"
        parts += "" if self._store.is_local else f", uploaded in {seconds - on_disk:.1f} s"
        held_up = f"the training stood still for {writing.held_up:.1f} s"
        print(f"{writing.name} is saved: {_gigabytes(size)} {parts}; {held_up}", flush=True)

    def _delete_superseded(self, newest: Checkpoint) -> None:
        keep = self._settings
        kept = (keep.keep_last, keep.keep_every_steps, newest.info.best_step, keep.resume_from_step)
        for step in superseded(self._whole, *kept):
            self._store.delete(checkpoints.checkpoint_path(self._store.directory, step).name)
            del self._whole[step]


def _groups(mesh: DeviceMesh | None) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """Groups of the processes that write their shards, for the thread that writes and for the training.

    On one group for both, or on that of the gradients, the thread's collectives would be mixed up with the training's.
    """
    if mesh is None:
        return None, None
    first_replica = mesh.mesh.reshape(-1, mesh.mesh.shape[-1])[0].tolist()
    # Those that stay outside must not be told: with a device bound to it, PyTorch would have them split NCCL's
    # communicator, and they would wait for ever for those inside, which split nothing for Gloo. From 2.14 on it gives
    # them a number in place of None.
    if dist.get_rank() not in first_replica:
        return None, None
    first, second = (dist.new_group(first_replica, backend="gloo", use_local_synchronization=True) for _ in range(2))
    return first, second


def is_given_up(left: float, again: float, time_left: float) -> bool:
    """Whether the upload of a checkpoint is given up for that of a newer one, when a training is interrupted.

    It is, where there is time for the newer one, but not for both. Where there is time for neither, or for the older
    one alone, the older one has more of the way behind it.

    Args:
        left: seconds until the older one is whole; infinite where nothing is known.
        again: seconds that the newer one takes; 0 where nothing is known.
        time_left: seconds until the processes are killed.
    """
    return again <= time_left < left + again


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def superseded(
    checkpoints: Mapping[int, bool], keep_last: int, keep_every_steps: int, best_step: int | None, from_step: int = 0
) -> list[int]:
    """Steps of the checkpoints that are not to be kept.

    Args:
        checkpoints: for the step of each checkpoint known to be whole, whether it was due; one that was written because
            of an interruption is kept only until there is a newer one, so that an interrupted training ends with the
            checkpoints of one that was not. The newest is always kept.
        keep_last: number of newest ones to keep; 0 keeps all.
        keep_every_steps: those at multiples of this are kept; 0 for none.
        best_step: step of the one with the lowest loss on val, which is kept; None if not known.
        from_step: step that the training was asked to continue from: a retry asks for it again; 0 for none.
    """
    newest = max(checkpoints)
    due = sorted(step for step, was_due in checkpoints.items() if was_due)
    kept = set(due if keep_last == 0 else due[-keep_last:]) | {best_step, from_step, newest}
    if keep_every_steps:
        kept |= {step for step in due if step % keep_every_steps == 0}
    return sorted(set(checkpoints) - kept)
