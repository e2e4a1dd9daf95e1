"""The local part of a dataset that would fill the disk of this machine."""

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
    """The directory of a dataset; without `train` if it is in object storage and larger than half of the free disk.

    Args:
        place: a directory, or a folder in object storage.

    Raises:
        UserError: it is not a dataset, or the storage cannot be read.
    """
    if not is_remote(place):
        return folder_at(place)
    # An error about something that is not a dataset must use its own name, and come before all of it is copied.
    manifest_at(place)
    sizes = RemoteFolder(place).sizes()
    if not is_large_for_the_disk(sum(sizes.values())):
        return fetched_folder(place)
    train = {name for name in sizes if name.startswith("train/")}
    kept = sum(size for name, size in sizes.items() if name not in train)
    told = f"all but train is copied, {kept / 1e9:,.2f} GB"
    print(f"{place} is larger than half of the free disk: {told}", flush=True)
    return fetched_folder(place, without=train.__contains__)
