"""Where a training makes the host wait for the GPU, with PyTorch's sync debug mode; imported as a recipe.

A line of progress waits, once a second at most, and so does a checkpoint; a step must not.
Source: https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html.
"""

from __future__ import annotations

import json
import os
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel

RECIPE = "host_waits:WatchedText"
#: The output file.
VARIABLE = "BENCHMARK_HOST_WAITS"
#: Steps to watch, none of which writes a checkpoint.
FIRST, LAST = 12, 18


class WatchedText(CausalLanguageModel):
    """Causal language modelling."""


def install() -> None:
    """Watches the steps of this process."""
    taken, places = 0, Counter[str]()

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "called a synchronizing" in str(message):
            ours = [frame for frame in traceback.extract_stack() if "gpu_pipelines" in frame.filename]
            places[" < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(ours[-4:]))] += 1

    def after_step(optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == FIRST:
            warnings.simplefilter("always")
            warnings.showwarning = note
            torch.cuda.set_sync_debug_mode("warn")
        if taken == LAST:
            torch.cuda.set_sync_debug_mode("default")
            told = {"steps": LAST - FIRST, "places": dict(places)}
            Path(os.environ[VARIABLE]).write_text(json.dumps(told), encoding="utf-8")

    register_optimizer_step_post_hook(after_step)


def show(waits: dict[str, Any]) -> None:
    """Prints the result of a watched training."""
    if "failed" in waits:
        print("\n    ".join(["host waits: FAILED", *waits["failed"]]))
        return
    print(f"the host waited for the GPU {sum(waits['places'].values())} times in {waits['steps']} steps")
    for place, times in sorted(waits["places"].items(), key=lambda each: -each[1]):
        print(f"    {times:4} × {place}")


if os.environ.get(VARIABLE):
    install()
