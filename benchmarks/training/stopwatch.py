"""Times the steps of any training loop from outside, the same way for all, with a hook on the optimizer's step."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

#: JSON with `file`, `warmup_steps` and `steps`.
VARIABLE = "BENCHMARK_STOPWATCH"


def install() -> None:
    """Measures from the end of the last warm-up step to the end of the last step, and writes the seconds.

    At both ends all processes wait for each other, and for their GPUs. The first process writes the results, including
    the CPU seconds of its threads, which show the cost of a step on a machine that is not quite idle.
    """
    what = json.loads(os.environ[VARIABLE])
    taken, began, cpu_began = 0, 0.0, 0.0

    def after_step(optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        nonlocal taken, began, cpu_began
        taken += 1
        if taken not in (what["warmup_steps"], what["steps"]):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        dist.barrier()
        if taken == what["warmup_steps"]:
            began, cpu_began = time.perf_counter(), time.process_time()
        elif dist.get_rank() == 0:
            measured = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu_began}
            Path(what["file"]).write_text(json.dumps(measured), encoding="utf-8")

    register_optimizer_step_post_hook(after_step)
