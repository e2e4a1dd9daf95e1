"""Trials that are forked from this process instead of started: the same trainings without 6 s of imports for each part.

Each has one process on a CPU, without the launcher. The rest of a study is the product's own code.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.errors import ERROR_FILE, Interrupted, ProcessKilledError, UserError, left_error
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.halving import Part

_CONTEXT = get_context("fork")


@dataclass
class _Running:
    process: Any
    folder: Path
    began: float


class ForkedTrials:
    """Has the methods of `gpu_pipelines.tuning.processes.Processes` that a study calls.

    Args:
        shares: the shares of the machine; a trial takes one CPU.
        run: ignored, like the next.
        study: ignored.
    """

    def __init__(self, shares: Any, run: str, study: str = "") -> None:
        self._running: dict[Part, _Running] = {}

    def start(self, part: Part, folder: Path, job: dict[str, Any]) -> None:
        """Begins to train a part."""
        (folder / "error.json").unlink(missing_ok=True)
        process = _CONTEXT.Process(target=_train, args=(job, folder), daemon=True)
        process.start()
        self._running[part] = _Running(process, folder, time.monotonic())

    def ended(self) -> list[tuple[Part, Path]]:
        """The parts that have ended and were not taken yet."""
        return [(part, each.folder) for part, each in self._running.items() if not each.process.is_alive()]

    def take(self, part: Part) -> tuple[float, UserError | Interrupted | None]:
        """The seconds of a part, and its error if it failed."""
        ended = self._running.pop(part)
        seconds = time.monotonic() - ended.began
        if ended.process.exitcode == 0:
            return seconds, None
        error = left_error(ended.folder / "error.json")
        if error is None:
            raise ProcessKilledError(f"Trial {part.trial} has ended with status {ended.process.exitcode}.", "")
        return seconds, error

    @property
    def are_running(self) -> bool:
        """Whether any is."""
        return any(each.process.is_alive() for each in self._running.values())

    def stop(self) -> None:
        """Ends all."""
        self.kill()

    def stop_and_wait(self) -> None:
        """Ends all."""
        self.kill()

    def kill(self) -> None:
        """Ends all."""
        for each in self._running.values():
            each.process.kill()
            each.process.join()
        self._running.clear()


def import_once() -> None:
    """Imports in this process what the trials need, so that none of them has to."""
    for name in (
        "gpu_pipelines.tasks.image_classification.recipe",
        "gpu_pipelines.training.engine",
        "transformers.models.resnet.modeling_resnet",
    ):
        import_module(name)


def _train(job: dict[str, Any], folder: Path) -> None:
    import torch
    import torch.distributed as dist

    from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
    from gpu_pipelines.tasks.building import load_recipe
    from gpu_pipelines.training.engine import Trainer
    from gpu_pipelines.training.machine.local_devices import Devices
    from gpu_pipelines.training.rows.streaming import given_data

    os.environ |= {ERROR_FILE: str(folder / "error.json"), "LOCAL_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    torch.set_num_threads(1)
    settings, uri = TrainingSettings.from_json(job["settings"]), job["checkpoints"]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with (folder / "log.txt").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    with (
        own_process(),
        tempfile.TemporaryDirectory() as staging,
        given_data(settings, job["dataset"], uri) as given,
    ):
        data = given.dataset()
        settings = replace(settings, streaming=given.streaming)
        settings = settings.resolved(data.manifest.task, data.manifest.rows("train"))
        recipe = load_recipe(settings.recipe, data.manifest.task).for_dataset(data)
        store = CheckpointStore(uri, Path(staging))
        here = Devices("cpu", 1), torch.device("cpu")
        Trainer(recipe, data, settings, store, *here, until=job["until"]).train()
    os._exit(0)  # the threads of gloo may not end the process
