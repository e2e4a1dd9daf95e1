"""A process that hangs is named by those who wait for it."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from types import SimpleNamespace as Namespace

import pytest
import torch
import torch.distributed as dist
from test_placement_on_processes import on_processes

from gpu_pipelines.training import engine
from gpu_pipelines.training.engine import Trainer
from gpu_pipelines.training.machine.lateness import NEXT_STEPS, Progress, bound, latest
from gpu_pipelines.training.model.parallelism import mesh_of


def one_hangs() -> dict[str, str]:
    """Rank 1 stops after step 7; the others wait for it in step 8."""
    mesh = mesh_of("hsdp", "cpu", 2, 1)
    assert mesh is not None
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    store.set(f"progress/{rank}", str(8 - rank))
    if rank == 1:
        store.wait(["over"])
        return {}
    store.wait(["progress/1"])
    bound(timedelta(seconds=0.3), mesh)
    bounds = [group._get_backend(torch.device("cpu")).options._timeout for group in mesh.get_all_groups()]
    assert set(bounds) == {timedelta(seconds=0.3)}, "those of the shards and of the replicas too"
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
    assert waiting["told"] == "Rank 1 is the furthest behind: it has begun step 7, and others step 8."


def test_rank_0_names_the_one_that_is_late_while_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """NCCL's watchdog ends a process that waits too long, and no exception reaches it."""
    store = dist.HashStore()
    progress = [Progress(store, rank, 2, patience=0.02) for rank in (0, 1)]
    for step, each in zip((8, 7), progress, strict=True):
        each.note(step)
    time.sleep(0.2)
    for each in progress:
        each.close()
    told = re.fullmatch(r"warning: no step has begun for 0 s\. (Rank 1 .*)\n", capsys.readouterr().out)
    assert told, "once"
    assert told[1] == latest(store, 2)


def test_nobody_is_blamed_where_all_are_as_far() -> None:
    store = dist.HashStore()
    assert latest(store, 2) == ""
    for rank in (0, 1):
        progress = Progress(store, rank, 2)
        progress.note(5)
        progress.close()
    assert latest(store, 2) == ""
    assert latest(store, 3) == "Rank 2 is the furthest behind: it has begun no step, and others step 5."


def test_nobody_goes_by_a_shorter_bound_before_all_have_come_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that still compiles goes by the longer one, and others must not have begun what waits for it."""
    done: list[object] = []
    trainer = Trainer.__new__(Trainer)
    trainer._device, trainer._model = torch.device("cuda"), Namespace(mesh=None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("this GPU"))
    monkeypatch.setattr(trainer, "_meet", lambda: done.append("the others"))
    monkeypatch.setattr(engine, "bound", lambda waiting, mesh: done.append(waiting))
    trainer._bound(NEXT_STEPS)
    assert done == ["this GPU", "the others", NEXT_STEPS]
