"""Watches a trial while it is trained: reports its losses, records its time, and ends it with the budget."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from gpu_pipelines.artifacts.checkpoint import METRICS
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore, read_metrics
from gpu_pipelines.errors import UserError
from gpu_pipelines.tuning.service.records import BUDGET, Price, Record, Records
from gpu_pipelines.tuning.service.tellers import Teller

_SECONDS_BETWEEN_LOOKS = 1.0


def end_this_training() -> None:
    """Asks the launcher of this process to save the state and end, like a platform that takes the machine away."""
    # Before the launcher listens there is nothing to save; the caller calls this again.
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN, None):
        os.kill(os.getpid(), signal.SIGTERM)


class Watch:
    """Watches the training of a trial, on rank 0. It is the `tracked` of that training.

    Args:
        record: the earlier record of the trial.
        records: the records of the study.
        price: the price of the machines, and the budget.
        teller: gets the losses.
        rows_per_step: rows of a step of the training.
        place: the place of its checkpoints.
        end: ends the training; called until it has ended.

    Attributes:
        record: the current record.
    """

    def __init__(
        self,
        record: Record,
        records: Records,
        price: Price,
        teller: Teller,
        rows_per_step: int,
        place: str,
        end: Callable[[], None] = end_this_training,
    ) -> None:
        self.record = record
        self._records, self._price, self._teller, self._end = records, price, teller, end
        self._rows_per_step, self._place = rows_per_step, place
        self._before, self._began = record.seconds, time.monotonic()
        self._folder: Path | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="trial")

    @property
    def seconds(self) -> float:
        """The time of use of the trial's machines, over all its starts."""
        return self._before + time.monotonic() - self._began

    def add(self, facts: Any) -> None:
        """Ignores facts for a tracker: those of the dataset are the same in all trials."""

    def follow(self, folder: Path) -> None:
        """Begins to read what the training writes.

        Args:
            folder: where its log will be.
        """
        self._folder = folder

    def __enter__(self) -> Watch:
        self._write(self.seconds + self._price.seconds_ahead)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        try:
            self._look_at_the_end()
            self._write(self.seconds)
        except (UserError, OSError) as problem:
            if error is None:
                raise
            # It must not replace the error that ended the training.
            _warn(problem)

    def close(self, outcome: str, error: str = "") -> None:
        """Records how the trial has ended."""
        self.record = replace(self.record, outcome=outcome, error=error)
        self._write(self.seconds)

    def _run(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_LOOKS):
            try:
                changed = self._look()
                if changed or self.record.seconds - self.seconds < self._price.seconds_ahead / 2:
                    self._write(self.seconds + self._price.seconds_ahead)
                    self._end_with_the_budget()
            except (UserError, OSError) as problem:  # from the storage; the training continues without it
                _warn(problem)
            if self.record.outcome == BUDGET:
                self._end()

    def _look(self) -> bool:
        """Reads the log of the training; returns whether there is something new."""
        if self._folder is None:
            return False
        entries = read_metrics(self._folder / METRICS)
        # A training that was cut off reaches the same losses again.
        told = {int(each["step"]): float(each["val_loss"]) for each in entries if each.get("val_loss") is not None}
        curve = tuple(sorted({**dict(self.record.curve), **told}.items()))
        step = max([self.record.step, *(int(each["step"]) for each in entries)])
        is_new = curve != self.record.curve
        self.record = replace(self.record, curve=curve, step=step, rows=step * self._rows_per_step)
        if is_new or told:
            self._teller.tell(curve)
        return is_new

    def _look_at_the_end(self) -> None:
        """Reads the whole log from its place: the local file of a training in a bucket is removed at its end."""
        if self._folder is None:
            return
        with tempfile.TemporaryDirectory(prefix="gpu-pipelines-log-") as scratch:
            store = CheckpointStore(self._place, Path(scratch))
            store.fetch_log()
            self._folder = store.directory
            self._look()

    def _end_with_the_budget(self) -> None:
        if self._price.is_spent(self._records.all()):
            print("the budget of the study is spent: this trial saves its state and ends", flush=True)
            # Recorded before it ends, so that the other nodes of the trial find the reason. The time for that is
            # recorded ahead.
            self.record = replace(self.record, outcome=BUDGET)
            self._records.write(self.record)

    def _write(self, seconds: float) -> None:
        self.record = replace(self.record, seconds=round(seconds, 3))
        self._records.write(self.record)


def _warn(problem: Exception) -> None:
    print(f"warning: {problem}", file=sys.stderr, flush=True)
