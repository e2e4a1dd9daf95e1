"""A process that hangs is named by those who wait for it."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from test_placement_on_processes import on_processes

from gpu_pipelines.training.lateness import Progress, bound, latest


def one_hangs() -> dict[str, str]:
    """Rank 1 stops after step 7; the others wait for it in step 8."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    progress = Progress(store, rank)
    progress.note(7)
    if rank == 1:
        store.wait(["over"])
        return {}
    store.wait(["progress/1"])
    time.sleep(2.1)  # one who was heard of within 2 s is not behind
    progress.note(8)
    bound(timedelta(seconds=0.3))
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        return {"raised": str(error), "told": latest(store, dist.get_world_size())}
    finally:
        store.set("over", "")
    return {}


def test_who_waits_too_long_ends_and_names_the_one_that_hangs() -> None:
    waiting, hanging = on_processes(one_hangs, processes=2, meet=False)
    assert hanging == {}
    assert "imed out" in waiting["raised"]
    said = r"Rank 1 is the furthest behind: it was last heard of at step 7, [2-9] s before"
    assert re.match(said, waiting["told"]), waiting["told"]


def test_nobody_is_blamed_where_all_are_as_far() -> None:
    store = dist.HashStore()
    assert latest(store, 2) == ""
    for rank in (0, 1):
        Progress(store, rank).note(5)
    assert latest(store, 2) == ""
    assert latest(store, 3) == "Rank 2 has not finished a step."
