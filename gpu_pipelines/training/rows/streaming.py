"""Where the rows of a training come from: a copy on this machine, or a bounded cache that its shards pass through."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint import CONFIGURATION, read_configuration
from gpu_pipelines.artifacts.dataset import SPLITS, Dataset, Manifest
from gpu_pipelines.artifacts.dataset_manifest import manifest_at
from gpu_pipelines.artifacts.remote_files import (
    RemoteFolder,
    fetched_folder,
    is_large_for_the_disk,
    is_remote,
    own_folder,
)
from gpu_pipelines.artifacts.shard_cache import files_in
from gpu_pipelines.artifacts.streamed_dataset import ShardPlace, StreamedDataset, stored_shards
from gpu_pipelines.errors import NotFoundError, UserError
from gpu_pipelines.training.rows.streamed_order import Windows
from gpu_pipelines.training.settings import TrainingSettings

#: What a cache takes of the free disk by itself.
_SHARE_OF_DISK = 0.5
#: Shards that all processes of a machine fetch at once.
_FETCHERS = 8
#: Shards of val that stay in the cache at most: each takes two open files, of which a process has 1,024.
_MOST_KEPT = 128


@dataclass(frozen=True)
class GivenData:
    """The dataset of a training as a process opens it.

    Attributes:
        directory: the dataset, or what of it is no shard.
        shards: where the shards are; None where they are in the directory.
        streaming: `on` or `off`: whether the rows have the streamed order.
    """

    directory: Path
    shards: ShardPlace | None
    streaming: str

    def dataset(self) -> Dataset:
        """Opens it."""
        return Dataset(self.directory) if self.shards is None else StreamedDataset(self.directory, self.shards)

    def told(self) -> list[str]:
        """What is to be known of it; nothing where the rows are on this machine."""
        if self.shards is None:
            return []
        size, bound = sum(self.shards.sizes.values()) / 1e9, self.shards.bound / 1e9
        return [f"streaming {size:,.2f} GB from {self.shards.uri} through a cache of {bound:,.2f} GB"]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "directory": str(self.directory)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> GivenData:
        shards = content["shards"]
        place = ShardPlace(**{**shards, "whole": tuple(shards["whole"])}) if shards else None
        return cls(Path(content["directory"]), place, content["streaming"])


@contextmanager
def given_data(settings: TrainingSettings, place: str, checkpoint_uri: str, processes: int = 1) -> Iterator[GivenData]:
    """The dataset at a place: a copy on this machine, or, where it is streamed, the files that are no shards.

    Args:
        settings: what the training is asked to do.
        place: a directory, or a folder in object storage.
        checkpoint_uri: where checkpoints go; a training there is continued in its order of rows.
        processes: of this machine.

    Raises:
        UserError: it cannot be read, or the cache is too small for what is read at once.
    """
    if not is_remote(place):
        yield GivenData(Path(place), None, "on" if settings.streaming == "on" else "off")
        return
    # What is no dataset is told of by its own name, and before all of it is copied.
    manifest_at(place)
    sizes: dict[str, int] = {}
    if settings.streaming != "off":
        sizes = {name: size for name, size in RemoteFolder(place).sizes().items() if _is_shard(name)}
    if settings.streaming != "auto":
        streaming = settings.streaming
    else:
        large = is_large_for_the_disk(sum(sizes.values()))
        streaming = _continued(checkpoint_uri) or ("on" if large else "off")
    if streaming == "off":
        yield GivenData(fetched_folder(place), None, streaming)
        return
    directory = fetched_folder(place, without=_is_shard)
    manifest = Dataset(directory).manifest
    _require_all(manifest, sizes, place)
    with _own_cache(manifest) as cache:
        bound = _bound(settings, cache)
        whole = _room_for_val(settings, manifest, sizes, bound, processes)
        fetchers = max(2, _FETCHERS // processes)
        yield GivenData(directory, ShardPlace(place, str(cache), bound, sizes, whole, fetchers), streaming)


def agreed(data: GivenData) -> GivenData:
    """The same with the order of rows that the nodes agree on: streamed, where the disk of any of them is too small."""
    import torch
    import torch.distributed as dist

    streams = torch.tensor([data.streaming == "on"], dtype=torch.int64)
    dist.all_reduce(streams, op=dist.ReduceOp.MAX)
    return replace(data, streaming="on" if streams.item() else "off")


def _is_shard(name: str) -> bool:
    return name.partition("/")[0] in SPLITS and name.endswith(".arrow")


def _continued(checkpoint_uri: str) -> str:
    """How the training was told to read that left checkpoints there; empty where there is none, or it does not say."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(checkpoint_uri)
        if is_remote(checkpoint_uri):
            directory = Path(scratch)
            try:
                (directory / CONFIGURATION).write_bytes(RemoteFolder(checkpoint_uri).read(CONFIGURATION))
            except FileNotFoundError:
                return ""
        try:
            told = read_configuration(directory).get("settings", {}).get("streaming", "off")
        except UserError:
            return ""
    return told if told in ("on", "off") else "off"


def _require_all(manifest: Manifest, sizes: Mapping[str, int], place: str) -> None:
    files = [file.path for split in manifest.splits.values() for file in split]
    if missing := [path for path in files if path not in sizes]:
        raise NotFoundError(
            f"{place} has {len(files) - len(missing):,} of its {len(files):,} shards; {missing[0]} is gone.",
            "Prepare the dataset again.",
        )


def _bound(settings: TrainingSettings, cache: Path) -> int:
    """Bytes that the cache may have.

    Raises:
        UserError: there is not as much on the disk.
    """
    free = shutil.disk_usage(cache).free + sum(files_in(cache).values())
    if not settings.cache_gb:
        return int(_SHARE_OF_DISK * free)
    bound = int(settings.cache_gb * 1e9)
    if bound > free:
        raise UserError(
            f"cache_gb is {settings.cache_gb:g}, and {free / 1e9:.1f} GB are free in {cache.parent}.",
            "Give less, or set TMPDIR to a larger disk.",
        )
    return bound


def _room_for_val(
    settings: TrainingSettings, manifest: Manifest, sizes: Mapping[str, int], bound: int, processes: int
) -> tuple[str, ...]:
    """The splits that stay in the cache: val, where it has room beside the windows that are open at once.

    Raises:
        UserError: the cache has no room for these windows.
    """
    from gpu_pipelines.training.rows.batches import AHEAD  # imports torch, which takes seconds

    # One process may make a step ready while another makes one so far behind it.
    rows_at_once = (AHEAD + 1) * settings.resolved(manifest.task, manifest.rows("train")).global_batch_size
    shards = stored_shards(manifest, sizes)

    def largest(split: str, number: int) -> int:
        return sum(sorted((shards[file.path].size for file in manifest.splits[split]), reverse=True)[:number])

    def open_at_once(split: str, shuffle_shards: int) -> int:
        rows = [file.rows for file in manifest.splits[split]]
        windows = Windows(len(rows), shuffle_shards)
        return largest(split, windows.largest * windows.open_at_once(rows, rows_at_once))

    val = manifest.splits["val"]
    train = open_at_once("train", settings.shuffle_shards)
    in_order = min(open_at_once("val", 1), largest("val", 2 * processes)) if val else 0
    if bound < train + in_order:
        needed = (train + in_order) / 1e9
        given = "cache_gb" if settings.cache_gb else "half of the free disk"
        together = Windows(len(manifest.splits["train"]), settings.shuffle_shards).largest
        raise UserError(
            f"The cache is too small: {given} is {bound / 1e9:.6g} GB, and {needed:.6g} GB are needed for what is read "
            f"at once, because rows are shuffled over {together} shard{'s' * (together > 1)}.",
            f"Give cache_gb={_rounded_up(needed)} or more, "
            f"{'a smaller shuffle_shards, ' if together > 1 else ''}or take a larger disk.",
        )
    fits = len(val) <= _MOST_KEPT and train + largest("val", len(val)) <= bound
    return ("val",) if fits else ()


def _rounded_up(gigabytes: float) -> str:
    """A number of GB of two digits that is not less."""
    step = 10.0 ** (math.floor(math.log10(gigabytes)) - 1)
    return f"{math.ceil(gigabytes / step) * step:.3g}"


@contextmanager
def _own_cache(manifest: Manifest) -> Iterator[Path]:
    """The folder of a cache that no other training has: one that an earlier training left, if there is one.

    Those of other datasets that nobody has are deleted.
    """
    place, number = own_folder("shards"), 0
    wanted = manifest.fingerprint[:16]
    while True:
        name = f"{wanted}-{number}"
        lock = os.open(place / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            os.close(lock)
            number += 1
    try:
        for other in place.iterdir():
            if other.is_dir() and not other.name.startswith(wanted):
                _delete_unused(other)
        (place / name).mkdir(exist_ok=True)
        yield place / name
    finally:
        os.close(lock)


def _delete_unused(cache: Path) -> None:
    with cache.with_name(f"{cache.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(cache, ignore_errors=True)
