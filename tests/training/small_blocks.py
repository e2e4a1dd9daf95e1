"""Checkpoints whose blocks are small, as many as a large model has: called in the processes of a training."""

from __future__ import annotations

from gpu_pipelines.artifacts import checkpoint_blocks


def use_small_blocks(_: str) -> None:
    """Lets files have blocks of 512 bytes."""
    checkpoint_blocks.BLOCK_BYTES = 512
