"""The size of a model, as far as its name says it, without a network and without torch."""

from __future__ import annotations

import re

from gpu_pipelines.tasks.tasks import TASKS

#: No model that is built from its name is larger; llama-1b has 1.24 billion parameters with its largest vocabulary.
LARGEST_BUILT_IN = 1.3e9
#: 8B, 0.5b, 125m, 8x7B: as hubs write sizes, between dashes, dots and underscores.
_SIZE = re.compile(r"(?<![a-z0-9])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")
_UNITS = {"m": 1e6, "b": 1e9}


def parameters_of_model(model: str, recipe: str = "") -> float | None:
    """The most parameters that a model may have, by its name; None if the name does not say it.

    Args:
        model: as the parameter `model` has it: an architecture, a directory, or a hub id such as
            `Qwen/Qwen2.5-7B-Instruct`, with or without a revision.
        recipe: a recipe of the user's own, which may interpret the name freely; empty for none.
    """
    if recipe:
        return None
    if any(model in task.models for task in TASKS.values()):
        return LARGEST_BUILT_IN
    # The largest that the last part of the name says: of 8x7B-32k-v0.1 that is 8x7B.
    sizes = _SIZE.findall(model.partition("@")[0].rstrip("/").rpartition("/")[2].lower())
    return max((float(times or 1) * float(size) * _UNITS[unit] for times, size, unit in sizes), default=None)
