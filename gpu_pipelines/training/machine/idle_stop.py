"""The parameter `idle_stop`, which every step that trains has."""

from __future__ import annotations

import math

#: Minutes. What a healthy training does without its GPUs takes less: it writes a checkpoint of hundreds of GB, fetches
#: shards again, compiles. More would cost more: an H100 that hangs over a night is paid until its time limit.
IDLE_STOP = 30.0
IDLE_STOP_TEXT = (
    "Minutes after which a training is stopped, with a checkpoint, if its GPUs, or its processes on CPUs, do nothing; "
    "the step then fails. 0 never."
)


def problems_of_idle_stop(minutes: float) -> list[str]:
    """What is wrong with a value."""
    if 0 <= minutes < math.inf:
        return []
    return [f"idle_stop is {minutes}; give minutes, or 0 for never."]
