"""Batches whose logits are too many to be made at once, as of a large model: called in the processes of a training."""

from __future__ import annotations

from gpu_pipelines.tasks.causal_lm import chunked_loss


def use_few_logits(_: str) -> None:
    """Lets no more logits be made at once than those of a few tokens."""
    chunked_loss.LOGITS_AT_ONCE = 30_000
