"""Profiles a window of steps: the time of each operation, and on a GPU the memory and its owners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.errors import UserError, first_line
from gpu_pipelines.training.settings import PROFILE

#: Allocations of the memory snapshot, the newest ones; torchtitan keeps as many.
_ALLOCATIONS = 100_000


class Profile:
    """The profile of one process.

    Args:
        steps: numbers of the steps, counted from 1; empty for none.
        store: of the checkpoints; gets the files.
        device: of this process.
    """

    def __init__(self, steps: range, store: CheckpointStore, device: torch.device) -> None:
        self._steps, self._store, self._device = steps, store, device
        self._running: profile | None = None
        self._first = self._last = 0

    @contextmanager
    def of(self, step: int) -> Iterator[None]:
        """Profiles this context, if the step is one of `steps`.

        Args:
            step: its number.
        """
        if self._running is None and step in self._steps:
            self._begin(step)
        self._last = step
        yield
        if step + 1 not in self._steps:
            self.close()

    def close(self) -> None:
        """Ends a running profile and writes it, even if the training ends in the middle of its steps."""
        running, self._running = self._running, None
        if running is None:
            return
        written = [f"{PROFILE}/steps-{self._first:08d}-{self._last:08d}.trace.json.gz"]
        try:
            running.stop()  # waits for the GPU
            (self._store.directory / PROFILE).mkdir(exist_ok=True)
            running.export_chrome_trace(str(self._store.directory / written[0]))
            if self._device.type == "cuda":
                written.append(written[0].replace(".trace.json.gz", ".memory.pickle"))
                torch.cuda.memory._dump_snapshot(str(self._store.directory / written[1]))
            self._store.publish(written)
            print(f"profiled steps {self._first} to {self._last}: {self._store.uri}/{written[0]}", flush=True)
        except (OSError, RuntimeError, UserError) as error:  # a training does not end because of its profile
            print(f"warning: the profile was not written: {first_line(error)}", flush=True)
        finally:
            if self._device.type == "cuda":
                torch.cuda.memory._record_memory_history(enabled=None)

    def _begin(self, step: int) -> None:
        self._first = step
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history(max_entries=_ALLOCATIONS)
        self._running = profile(activities=activities, acc_events=True)  # else it warns of several cycles
        self._running.start()
