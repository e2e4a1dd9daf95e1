"""A training that saves at every step, and notes it: called in its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.training import cadence


def save_often(uri: str) -> None:
    """Lets saves be due at once; the names of the checkpoints that are begun go to `begun` beside the directory."""
    for name in ("FIRST_SAVE", "LEAST_BETWEEN_SAVES", "MOST_BETWEEN_SAVES", "MOST_SHARE"):
        setattr(cadence, name, 1.0 if name == "MOST_SHARE" else 1e-9)
    begin = CheckpointStore.begin

    def noted(self: CheckpointStore, name: str) -> Any:
        with Path(uri).with_name("begun").open("a") as file:
            file.write(f"{name}\n")
        return begin(self, name)

    CheckpointStore.begin = noted  # type: ignore[method-assign]
