"""What this machine has of a dataset that would fill its disk."""

from __future__ import annotations

from pathlib import Path

from gpu_pipelines.artifacts.dataset_manifest import manifest_at
from gpu_pipelines.artifacts.remote_files import (
    RemoteFolder,
    fetched_folder,
    folder_at,
    is_large_for_the_disk,
    is_remote,
)


def dataset_to_evaluate(place: str) -> Path:
    """The directory of a dataset; of one in object storage that is larger than half of the free disk, all but `train`.

    Args:
        place: a directory, or a folder in object storage.

    Raises:
        UserError: it is no dataset, or the storage cannot be read.
    """
    if not is_remote(place):
        return folder_at(place)
    # What is no dataset is told of by its own name, and before all of it is copied.
    manifest_at(place)
    sizes = RemoteFolder(place).sizes()
    if not is_large_for_the_disk(sum(sizes.values())):
        return fetched_folder(place)
    train = {name for name in sizes if name.startswith("train/")}
    kept = sum(size for name, size in sizes.items() if name not in train)
    told = f"all but train is copied, {kept / 1e9:,.2f} GB"
    print(f"{place} is larger than half of the free disk: {told}", flush=True)
    return fetched_folder(place, without=train.__contains__)
