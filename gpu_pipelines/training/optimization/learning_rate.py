"""The learning rate of each step, as a share of its peak."""

from __future__ import annotations

import math


def schedule(kind: str, step: int, total: int, warmup: int) -> float:
    """Share of the peak learning rate at `step` (from 0): a linear warm-up, then down to 0, or constant.

    Source of the cosine: Loshchilov and Hutter, SGDR, https://arxiv.org/abs/1608.03983, equation 5.

    Args:
        kind: cosine, linear or constant.
        step: steps taken.
        total: steps in all.
        warmup: steps of warm-up, at most a tenth of all.
    """
    warmup = min(warmup, max(1, total // 10))
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, total - warmup)
    return {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[kind]
