"""Spreads rows and checkpoints over processes, so that all of them finish together.

This process works too, on the first device. Each of the others has one device, builds the model once and takes shards
of rows, as long as there are any of the checkpoint whose weights it has; then it takes the next checkpoint, and at the
end it helps with one that another process has begun.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu_pipelines.accelerators import plan
from gpu_pipelines.distributed.processes import killed_is_said, one_process
from gpu_pipelines.errors import ProcessFailedError, UnfitParametersError, UserError, named, out_of_memory
from gpu_pipelines.evaluation.models.candidates import WorkOnModels
from gpu_pipelines.evaluation.models.loading import ModelSource
from gpu_pipelines.evaluation.scorers.runner import Runner, RunnerSettings
from gpu_pipelines.processors import compute_on_cores_alone, cores
from gpu_pipelines.step_environment import ACCELERATOR, REHEARSE

#: Shards that the rows of a split are cut into for each process.
SHARDS_OF_A_PROCESS = 4
#: Seconds of work left that are worth starting CPU processes for, which takes them several seconds of all cores.
WORTH_STARTING = 40.0
CPU_PROCESSES = 2


class Shard(NamedTuple):
    """A part of the work with the model of a source.

    Attributes:
        source: number of the model.
        number: of the part among those of all models.
        function: does it, in whichever process; takes the runner and the source, then the arguments.
        arguments: whatever it takes besides.
    """

    source: int
    number: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Shards:
    """What is still to be done, shared by the threads that wait for the processes.

    Args:
        shards: all of it; those of one model in the order in which they are taken.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._left: dict[int, list[Shard]] = {}
        for shard in shards:
            self._left.setdefault(shard.source, []).append(shard)
        self._begun: set[int] = set()
        self._lock = threading.Lock()

    def take(self, last: int | None) -> Shard | None:
        """The next shard for a process that has the model of source `last` in memory; None if there is none."""
        with self._lock:
            left = {source: shards for source, shards in self._left.items() if shards}
            if not left:
                return None
            if last not in left:
                new = [source for source in left if source not in self._begun]
                last = min(new) if new else max(left, key=lambda source: len(left[source]))
            assert last is not None
            self._begun.add(last)
            return self._left[last].pop(0)

    def stop(self) -> None:
        """Leaves nothing to be done."""
        with self._lock:
            self._left = {}

    @property
    def left(self) -> int:
        """Number of shards that nobody has taken."""
        with self._lock:
            return sum(len(shards) for shards in self._left.values())


class ShardedRunner:
    """Runs models over rows in several processes.

    Args:
        settings: what each process needs to know.
        devices: of each process, the first that of this one.
        at_once: whether the others are started in any case; else when there is enough to do on CPUs.
    """

    def __init__(self, settings: RunnerSettings, devices: Sequence[str], at_once: bool) -> None:
        self._settings = settings
        self._devices = list(devices)
        self._pools: list[ProcessPoolExecutor] = []
        self._ready: list[Future[None]] = []
        compute_on_cores_alone()
        self._at_once = len(devices) > 1 and (at_once or devices[0] != "cpu")
        if self._at_once:
            self._start_others()
        self.runner = Runner(settings, self._devices[0])

    def close(self) -> None:
        """Ends the processes that were started, each after the shard that it is at."""
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)

    def predict(
        self,
        sources: Sequence[ModelSource],
        split: str,
        rows: int,
        done: Callable[[int, np.ndarray], None] = lambda number, predicted: None,
    ) -> None:
        """Predicts all rows of a split with several models.

        Args:
            sources: the models.
            split: `val` or `test`.
            rows: of the split.
            done: is called in this thread with the number of a source and its predictions, once it has them all.

        Raises:
            UserError: a model cannot be loaded, or a process was killed.
        """
        size = self._shard_size(rows)
        places = [(start, min(rows, start + size)) for start in range(0, rows, size)]
        self._sharded(sources, Runner.predict, split, places, done)

    def write(
        self, sources: Sequence[ModelSource], split: str, units: int, done: Callable[[int, np.ndarray], None]
    ) -> None:
        """Writes text for the prompts of a split with several models; as `predict`, but for units of prompts."""
        self._sharded(sources, Runner.write, split, [(unit, unit + 1) for unit in range(units)], done)

    def _sharded(
        self,
        sources: Sequence[ModelSource],
        function: Callable[..., np.ndarray],
        split: str,
        places: Sequence[tuple[int, int]],
        done: Callable[[int, np.ndarray], None],
    ) -> None:
        parts = [(source, place) for source in range(len(sources)) for place in places]
        shards = [Shard(source, number, function, (split, *place)) for number, (source, place) in enumerate(parts)]
        self._work(_Job(sources, shards), lambda source, found: done(source, np.concatenate(found)))

    def each(self, sources: Sequence[ModelSource], work: WorkOnModels) -> None:
        """Does other work with several models than to predict rows.

        Raises:
            UserError: a model cannot be loaded, the function raises it, or a process was killed.
        """
        parts = enumerate(work.arguments)
        shards = [Shard(source, number, work.function, (each,)) for number, (source, each) in parts]
        self._work(_Job(sources, shards), work.done)

    def _work(self, job: _Job, done: Callable[[int, list[Any]], None]) -> None:
        threads = [self._waiting_thread(number, job) for number in range(len(self._pools))]
        while (shard := job.shards.take(job.last)) is not None and job.error is None:
            started = time.monotonic()
            job.last = shard.source
            try:
                job.add(shard, shard.function(self.runner, job.sources[shard.source], *shard.arguments))
            except Exception as error:  # the others stop first: after a champion that fails, the work goes on
                job.fail(_full(error, self._devices[0]) or error)
                break
            job.report(done)
            if not self._pools and self._worth_starting(job, time.monotonic() - started):
                self._start_others()
                threads = [self._waiting_thread(number, job) for number in range(len(self._pools))]
        for thread in threads:
            thread.join()
        job.require_no_error()
        job.report(done)

    def _shard_size(self, rows: int) -> int:
        """Whole batches, so that each row is predicted in the same batch however the rows are sharded."""
        batch = self._settings.rows_per_batch
        if len(self._devices) == 1:
            return rows
        return -(-max(1, rows // (SHARDS_OF_A_PROCESS * len(self._devices))) // batch) * batch

    def _worth_starting(self, job: _Job, took: float) -> bool:
        return len(self._devices) > 1 and job.shards.left * took > WORTH_STARTING

    def _start_others(self) -> None:
        if self._devices[0] == "cpu":
            threads = max(1, cores() // len(self._devices))
            torch.set_num_threads(threads)
        else:
            threads = torch.get_num_threads()
        # This process hashes the frozen weights, at the latest for the export; that the others have the same is known.
        theirs = replace(self._settings, frozen_sha256="")
        for device in self._devices[1:]:
            pool = one_process(_start, (theirs, device, threads))
            self._ready.append(pool.submit(_warm))
            self._pools.append(pool)

    def _waiting_thread(self, number: int, job: _Job) -> threading.Thread:
        thread = threading.Thread(target=self._wait_for, args=(number, job), daemon=True)
        thread.start()
        return thread

    def _wait_for(self, number: int, job: _Job) -> None:
        """Gives shards to one process, one after the other, and notes how that fails."""
        device = self._devices[number + 1]
        try:
            with killed_is_said(f"The process that evaluates on {device}"):
                self._give_shards(number, job)
        except UserError as error:
            job.fail(error)
        except Exception as error:  # whatever the model raises there: out of memory, a broken GPU
            said = named(error)
            job.fail(_full(error, device) or ProcessFailedError(f"The evaluation on {device} failed: {said}"))

    def _give_shards(self, number: int, job: _Job) -> None:
        last = None
        # A process that is not ready when all is done is not waited for.
        while not wait([self._ready[number]], timeout=0.05).done:
            if not job.shards.left:
                return
        self._ready[number].result()
        while (shard := job.shards.take(last)) is not None:
            last = shard.source
            work = self._pools[number].submit(_in_process, shard.function, job.sources[last], *shard.arguments)
            job.add(shard, work.result())


class _Job:
    """What is to be done with some models, and what is done."""

    def __init__(self, sources: Sequence[ModelSource], shards: Sequence[Shard]) -> None:
        self.sources = sources
        self.shards = Shards(shards)
        self.last: int | None = None
        self.error: Exception | None = None
        self._wanted = Counter(shard.source for shard in shards)
        self._found: dict[int, dict[int, Any]] = {source: {} for source in self._wanted}
        self._lock = threading.Lock()

    def add(self, shard: Shard, answer: Any) -> None:
        with self._lock:
            self._found[shard.source][shard.number] = answer

    def fail(self, error: Exception) -> None:
        with self._lock:
            self.error = self.error or error
        self.shards.stop()

    def require_no_error(self) -> None:
        """Raises the error that the work failed with, if it has, and keeps none: its frames hold the model."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error

    def report(self, done: Callable[[int, list[Any]], None]) -> None:
        """Gives away the answers of the sources that have all of them, in order of the sources."""
        with self._lock:
            whole = [source for source, parts in self._found.items() if len(parts) == self._wanted[source]]
            parts = {source: self._found.pop(source) for source in whole}
        for source, found in parts.items():
            done(source, [found[number] for number in sorted(found)])


def _full(error: Exception, device: str) -> UserError | None:
    """What to do about a GPU whose memory is full; None for another error."""
    if not isinstance(error, torch.OutOfMemoryError):
        return None
    return UnfitParametersError(
        out_of_memory(f"The evaluation on {device}", error),
        "Models are evaluated in fp32, 4 bytes for each parameter. Give --evaluation-accelerator with a GPU of more "
        "memory (gpu-pipelines accelerators list), and let no other program use it.",
    )


# Of a process that another one has started.
_runner: list[Runner] = []


def _start(settings: RunnerSettings, device: str, threads: int) -> None:
    torch.set_num_threads(threads)
    # The first process meets the same errors, and says so.
    with suppress(UserError):
        _runner.append(Runner(settings, device))


def _warm() -> None:
    """Makes the pool start its process now."""


def _in_process(function: Callable[..., Any], source: ModelSource, *arguments: Any) -> Any:
    return function(_runner[0], source, *arguments)


def evaluation_devices(gpus_visible: int, processes: int | None = None) -> list[str]:
    """The device of each process, in the terms of torch: all GPUs of the machine, else CPU processes.

    The first is that of this process.

    Args:
        gpus_visible: number of GPUs that torch sees.
        processes: how many of them, or of CPU processes; None for all GPUs, or for as many CPU processes as the
            training has.

    Raises:
        UserError: the step was placed on GPUs, and torch sees none.
    """
    spec = os.environ.get(REHEARSE, "") or os.environ.get(ACCELERATOR, "")
    placed = plan(spec) if spec else None
    on_cpus = placed is not None and placed.is_local
    if gpus_visible and not on_cpus:
        return [f"cuda:{index}" for index in range(min(gpus_visible, processes or gpus_visible))]
    if placed is not None and not on_cpus:  # days on the CPUs of a machine with GPUs would be the first sign of it
        raise UserError(
            f"The evaluation was placed on {placed.spec}, but PyTorch sees no GPU.",
            "Check the driver (nvidia-smi), the image's PyTorch and CUDA_VISIBLE_DEVICES; "
            f"to evaluate without GPUs, set {REHEARSE}=cpu:2.",
        )
    return ["cpu"] * (processes or (placed.count if placed is not None else CPU_PROCESSES))
