"""The manifest of a dataset, wherever it is: of one in object storage nothing else is read."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu_pipelines.artifacts.dataset import MANIFEST, Dataset, Manifest
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.errors import NotFoundError


def manifest_at(place: str) -> Manifest:
    """The manifest of a dataset.

    Args:
        place: a directory, or `gs://…`.

    Raises:
        UserError: there is no dataset, or it is damaged.
    """
    if not is_remote(place):
        return Dataset(Path(place)).manifest
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-dataset-") as scratch:
        try:
            Path(scratch, MANIFEST).write_bytes(RemoteFolder(place).read(MANIFEST))
        except FileNotFoundError:
            raise NotFoundError(
                f"{place} is not a dataset: it has no {MANIFEST}.", "Give the folder that prepare_data wrote."
            ) from None
        return Dataset(Path(scratch)).manifest
