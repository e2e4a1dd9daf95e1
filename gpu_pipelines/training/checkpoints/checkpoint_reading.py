"""Reading a checkpoint: each process verifies what it needs, and one of several replicas reads for all.

Files in a directory are verified in place. From object storage a node fetches the blocks that its processes need,
into files of the same names, with holes in place of the others.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gpu_pipelines.artifacts.checkpoint import Checkpoint
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.documents import sha256_of_file
from gpu_pipelines.errors import DamagedError, UserError
from gpu_pipelines.tasks.checkpoint_state import State, load_state, local_tensors, ranges_of

_AT_ONCE = 8
#: Number of a file's first block, which is its header.
_HEADER = 0
#: A block of a file. A file of a version that wrote no hashes of blocks is one block, its header included.
_Block = tuple[str, int]
Made = TypeVar("Made")


class CheckpointReader:
    """Reads checkpoints into a state; all processes make the same calls.

    Args:
        store: where they are.
        mesh: over which the state is sharded; None if every process holds the whole state.
    """

    def __init__(self, store: CheckpointStore, mesh: DeviceMesh | None) -> None:
        self._store = store
        rank, world = dist.get_rank(), dist.get_world_size()
        self._per_node = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        self._node, self._local_rank = divmod(rank, self._per_node)
        # The last dimension of a mesh is that of the shards: the first replica has the first ranks.
        readers = 1 if mesh is None else mesh.size(-1)
        self._reads, self._node_reads = rank < readers, self._node * self._per_node < readers
        self._replicas = dist.group.WORLD if mesh is None else mesh.get_group(0) if mesh.ndim > 1 else None

    def read(self, checkpoint: Checkpoint, state: Callable[[], State]) -> None:
        """Reads a checkpoint into the state, after verifying everything that is needed of it.

        Args:
            checkpoint: found by rank 0.
            state: returns the tensors to read into; not called if a file is missing or its header damaged.

        Raises:
            DamagedError: a file is missing or differs from what was written; nothing was read.
            UserError: it cannot be read, or is of another model. All processes raise the same error.
        """
        began = time.monotonic()
        path = self._store.directory / checkpoint.name
        headers = [(name, _HEADER) for name in checkpoint.files()] if self._node_reads else []
        fetched = self._verify(checkpoint, headers)
        tensors = state()
        wanted = agreed(lambda: _blocks_of(checkpoint, ranges_of(tensors, path)) if self._reads else set())
        on_node = wanted[self._node * self._per_node : (self._node + 1) * self._per_node]
        fetched += self._verify(checkpoint, sorted(set().union(*on_node)))
        agreed(lambda: load_state(tensors, path) if self._reads else None)
        self._give_to_replicas(tensors)
        if fetched and dist.get_rank() == 0:
            seconds = time.monotonic() - began
            print(f"{checkpoint.name}: {fetched / 1e9:.3g} GB fetched and verified in {seconds:.1f} s", flush=True)

    def _verify(self, checkpoint: Checkpoint, blocks: Sequence[_Block]) -> int:
        """Verifies blocks that processes of this node need, shared among all of them; gives bytes fetched everywhere.

        Raises:
            DamagedError: some are damaged, or their files missing.
            UserError: they cannot be read.
        """
        found = agreed(lambda: self._verify_own(checkpoint, blocks[self._local_rank :: self._per_node]))
        missing: dict[int, set[str]] = {}
        for rank, (_, files) in enumerate(found):
            missing.setdefault(rank // self._per_node, set()).update(files)
        for node, files in missing.items():
            if files and (not self._store.is_local or files & missing[0]):
                raise DamagedError(f"{min(files)} is missing")
            if files:
                raise UserError(
                    f"{checkpoint.path / min(files)} cannot be read on node {node}.",
                    "Give a gs:// checkpoint_uri or a directory on a file system that all nodes mount.",
                )
        return sum(fetched for fetched, _ in found)

    def _verify_own(self, checkpoint: Checkpoint, blocks: Sequence[_Block]) -> tuple[int, set[str]]:
        """Bytes fetched, and the files that are not there."""

        def one(block: _Block) -> tuple[int, str]:
            try:
                return self._verify_one(checkpoint, *block), ""
            except FileNotFoundError:
                return 0, block[0]
            except OSError as error:
                raise UserError(f"{checkpoint.path / block[0]} cannot be read: {error}.") from None

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            each = list(threads.map(one, blocks))
        return sum(fetched for fetched, _ in each), {file for _, file in each if file}

    def _verify_one(self, checkpoint: Checkpoint, file: str, number: int) -> int:
        name, blocks = f"{checkpoint.name}/{file}", checkpoint.info.blocks.get(file)
        if blocks is None:
            place = self._store.fetch_file(name)
            good = sha256_of_file(place) == checkpoint.info.files[file]
            fetched = 0 if self._store.is_local else place.stat().st_size
        else:
            start, end = blocks.span(number)
            content = self._store.read_part(name, start, end - start)
            good = hashlib.sha256(content).hexdigest() == blocks.sha256[number]
            if good and number == _HEADER and self._store.is_local:
                good = (self._store.directory / name).stat().st_size == blocks.size
            fetched = self._store.stage_part(name, start, content, blocks.size) if good else 0
        if not good:
            raise DamagedError(f"{file} is damaged")
        return fetched

    def _give_to_replicas(self, state: State) -> None:
        """Gives what the first replica has read to the others."""
        group = self._replicas
        if group is None or dist.get_world_size(group) == 1:
            return
        source = dist.get_global_rank(group, 0)
        with torch.no_grad():
            for tensor in local_tensors(state):
                if not tensor.numel():
                    continue
                whole = tensor.contiguous()
                dist.broadcast(whole, src=source, group=group)
                if whole is not tensor:
                    tensor.copy_(whole)


def agreed(work: Callable[[], Made]) -> list[Made]:
    """The result of some work in each process, by rank; if it fails in one, it fails in all with the same error.

    Raises:
        UserError: the error of one process, preferably one that is not a damaged file.
    """
    mine: tuple[Any, UserError | None]
    try:
        mine = work(), None
    except UserError as error:
        mine = None, error
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    if errors := [error for _, error in everyones if error is not None]:
        raise min(errors, key=lambda error: isinstance(error, DamagedError))
    return [made for made, _ in everyones]


def _blocks_of(checkpoint: Checkpoint, ranges: dict[str, list[tuple[int, int]]]) -> set[_Block]:
    known = checkpoint.info.blocks
    return {
        (name, number)
        for name, parts in ranges.items()
        if name in known
        for start, end in parts
        for number in known[name].covering(start, end)
    }
