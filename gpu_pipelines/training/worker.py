"""One process of the training: what the launcher starts once per GPU, or per CPU process."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.accelerators.workload import NOT_SHARDED
from gpu_pipelines.distributed.processes import leave_for_the_launcher, note_work
from gpu_pipelines.errors import (
    INTERRUPTED,
    ConnectionLostError,
    ProcessFailedError,
    UnfitParametersError,
    UserError,
    out_of_memory,
)
from gpu_pipelines.garbage import collect_as_usual, collect_rarely
from gpu_pipelines.training.machine.detached_output import output_may_break
from gpu_pipelines.training.settings import TrainingSettings

if TYPE_CHECKING:
    import torch

    from gpu_pipelines.training.machine.lateness import Progress
    from gpu_pipelines.training.machine.local_devices import Devices

#: How long a process waits for the others. The slowest thing one does alone is to fetch or verify a checkpoint.
PATIENCE = timedelta(minutes=30)


def main(job_file: str) -> None:
    """Trains as the job says.

    Args:
        job_file: JSON with `data`, `checkpoint_uri`, `staging`, `devices`, `settings` and `until`; written by
            `train_model`.
    """
    # Depthwise convolutions have such strides in every process and step; there is nothing the user could do about it.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    # The thread that writes checkpoints must not hold up the training for the 5 ms that are usual between threads.
    sys.setswitchinterval(0.0005)
    threading.Thread(target=_end_with_the_launcher, args=(os.getppid(),), daemon=True).start()
    collect_rarely()
    finished = True
    try:
        with output_may_break():
            finished = _train(json.loads(Path(job_file).read_text(encoding="utf-8")))
    except UserError as error:
        # A worker that prints its error and exits would be followed by the launcher's.
        leave_for_the_launcher(error)
        sys.exit(1)
    if not finished:
        sys.exit(INTERRUPTED)


def _end_with_the_launcher(launcher: int) -> None:
    """Kills this process once the launcher is gone, however it went: nobody else would, and it would train on.

    The kernel's own way, PR_SET_PDEATHSIG, goes by the thread that started the process, not by the launcher.
    """
    while os.getppid() == launcher:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def _train(job: dict[str, Any]) -> bool:
    import torch
    import torch.distributed as dist

    from gpu_pipelines.training.machine.lateness import Progress
    from gpu_pipelines.training.machine.local_devices import Devices
    from gpu_pipelines.training.model.compiling import not_compiled
    from gpu_pipelines.training.model.recomputing import not_kept

    devices = Devices(**job["devices"])
    device = torch.device("cpu")
    if devices.kind == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if devices.kind == "cuda" else "gloo"
    shared, rank, processes = next(iter(dist.rendezvous("env://", timeout=PATIENCE)))
    # What processes left there that were started before these ones must not meet them.
    store = dist.PrefixStore(os.environ["TORCHELASTIC_RUN_ID"], shared)
    own = dist.PrefixStore("training", store)
    # With the device NCCL connects at once, and a GPU that cannot be reached is said before anything is built.
    on_gpu = device if devices.kind == "cuda" else None
    dist.init_process_group(backend, store=own, rank=rank, world_size=processes, timeout=PATIENCE, device_id=on_gpu)
    progress = Progress(store, rank, processes)
    try:
        return _train_in_group(job, devices, device, progress)
    except UserError:
        raise
    except Exception as error:
        settings = TrainingSettings.from_json(job["settings"])
        known = _out_of_memory(error, device, settings) or not_compiled(error) or not_kept(error)
        if known is not None:
            raise known from None
        leave_for_the_launcher(_explained(error, store, processes))
        raise
    finally:
        progress.close()


def _out_of_memory(error: Exception, device: torch.device, settings: TrainingSettings) -> UserError | None:
    """What to do about memory that is not enough; None for another error."""
    import torch

    if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
        return None
    rows = settings.rows_at_once(int(os.environ["WORLD_SIZE"]))
    ways = [f"Give a smaller micro_batch_size ({rows} rows now; the global batch stays what it is)"]
    if not settings.activation_checkpointing:
        ways.append("activation_checkpointing")
    elif settings.recompute == "selective":
        ways.append("recompute=layers")
    if settings.optimizer not in NOT_SHARDED:
        ways += ["parallelism=fsdp"] if settings.parallelism in ("auto", "ddp") else []
    return UnfitParametersError(
        out_of_memory(str(device), error),
        f"{', '.join(ways)}, or an accelerator with more memory (gpu-pipelines accelerators advise).",
    )


def _explained(error: Exception, store: Any, processes: int) -> ProcessFailedError:
    """Tells the cause from what follows from it: of several processes that fail, the first to say so is the cause.

    It says so before it ends, and so before the others miss it.
    """
    from gpu_pipelines.training.machine.lateness import latest

    text = f"{type(error).__name__}: {error}"
    if "imed out" in text or "imeout" in text:
        text = f"{text}\n  {latest(store, processes)}".rstrip()
    try:
        first = store.add("failures", 1) == 1
    except RuntimeError:  # the machine of the store is gone
        first = False
    return ProcessFailedError(text) if first else ConnectionLostError(text)


def _train_in_group(job: dict[str, Any], devices: Devices, device: torch.device, progress: Progress) -> bool:
    import torch.distributed as dist

    from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
    from gpu_pipelines.tasks.building import load_recipe
    from gpu_pipelines.training.engine import Trainer
    from gpu_pipelines.training.machine.link_rate import say_link_rate
    from gpu_pipelines.training.rows.streaming import GivenData, agreed

    say_link_rate(device, int(os.environ["GROUP_WORLD_SIZE"]))
    note_work("building the model", "take a machine with more memory for each of its processes")
    data = agreed(GivenData.from_json(job["data"]))
    dataset = data.dataset()
    settings = replace(TrainingSettings.from_json(job["settings"]), streaming=data.streaming)
    recipe = load_recipe(settings.recipe, dataset.manifest.task).for_dataset(dataset)
    store = CheckpointStore(job["checkpoint_uri"], Path(job["staging"]))
    trainer = Trainer(recipe, dataset, settings, store, devices, device, progress, until=job["until"])
    note_work("training", "give a smaller micro_batch_size, or take a machine with more memory")
    collect_as_usual()
    finished = trainer.train()
    dist.destroy_process_group()
    return finished


if __name__ == "__main__":
    main(*sys.argv[1:])
