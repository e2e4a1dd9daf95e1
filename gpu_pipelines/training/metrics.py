"""The output of a training: metrics as JSON lines, TensorBoard events, and lines of progress."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gpu_pipelines.artifacts.checkpoint import METRICS
from gpu_pipelines.artifacts.checkpoint_store import read_metrics
from gpu_pipelines.artifacts.documents import replace_file
from gpu_pipelines.numbers import finite_or_none, throughput, throughput_told

#: Lines of progress are not printed more often.
PROGRESS_SECONDS = 1.0


class Speed:
    """The speed of a training since the last entry, without the time of validation, but with that of checkpoints.

    Args:
        rows_per_step: global batch size.
        flops_per_row: floating-point operations to train on one row.
        peak_flops: peak of all devices together, operations per second; None if it is not known.
    """

    def __init__(self, rows_per_step: int, flops_per_row: float, peak_flops: float | None) -> None:
        self._rows_per_step = rows_per_step
        self._flops_per_row = flops_per_row
        self._peak = peak_flops
        self._began = time.monotonic()
        self._steps = 0
        self._loading = 0.0

    def step(self, seconds_loading: float) -> None:
        """Counts a step, with the seconds of it spent waiting for data."""
        self._steps += 1
        self._loading += seconds_loading

    def leave_out(self, seconds: float) -> None:
        """Leaves out time that was not spent on training."""
        self._began += seconds

    def take(self) -> dict[str, float]:
        """The figures since the last call."""
        now = time.monotonic()
        seconds = max(now - self._began, 1e-9)
        rows = self._steps * self._rows_per_step / seconds
        figures = {
            "samples_per_second": throughput(rows),
            "memory_gb": round(peak_memory() / 1e9, 3),
            "data_loading_share": round(self._loading / seconds, 4),
        }
        if self._peak:
            figures["mfu"] = round(rows * self._flops_per_row / self._peak, 4)
        self._began, self._steps, self._loading = now, 0, 0.0
        return figures


def peak_memory() -> int:
    """Peak memory of this process, bytes: of its GPU, or of the host if it uses none."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    # Linux counts KiB, macOS bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Losses:
    """Sums of losses on this process's device; `means` averages them over all processes.

    Args:
        device: where the losses are.

    Attributes:
        seconds: between the last two times that means were taken, averaged over all processes, the same on all of them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._totals: list[torch.Tensor] = []
        self._loss_tokens = 0
        self._entries: list[tuple[torch.Tensor, int]] = []
        self._began = time.monotonic()
        self.seconds = 0.0

    def add(self, total: torch.Tensor, loss_tokens: int) -> None:
        """Adds the sum of some losses and the number of their tokens, without waiting."""
        self._totals.append(total.detach())
        self._loss_tokens += loss_tokens

    def end_entry(self) -> None:
        """Ends an entry, without waiting: losses added since the last one have a mean of their own."""
        nothing = torch.zeros((), dtype=torch.float64, device=self._device)
        total = torch.stack(self._totals).double().sum() if self._totals else nothing
        self._entries.append((total, self._loss_tokens))
        self._totals, self._loss_tokens = [], 0

    def means(self) -> list[float]:
        """For each entry that ended since the last call, the mean over the terms of all processes; all call it."""
        entries, self._entries = self._entries, []
        now = time.monotonic()
        counted = [now - self._began, *(loss_tokens for _, loss_tokens in entries)]
        self._began = now
        totals = torch.stack([total for total, _ in entries])
        own = torch.cat([totals.new_tensor(counted), totals])
        of_all = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        # Not summed by all-reduce: in which order it adds a number up depends on how many others are beside it.
        dist.all_gather(of_all, own)
        seconds, *sums = (sum(values) for values in zip(*torch.stack(of_all).tolist(), strict=True))
        self.seconds = seconds / dist.get_world_size()
        return [
            total / loss_tokens if loss_tokens else 0.0
            for loss_tokens, total in zip(sums[: len(entries)], sums[len(entries) :], strict=True)
        ]


class Entry(NamedTuple):
    """The log's record of some steps.

    Attributes:
        step: the last of them.
        epoch: number of passes over the rows by then.
        loss: mean of the steps since the last entry.
        learning_rate: of that step.
        time: when that step ended, in seconds since 1970.
    """

    step: int
    epoch: float
    loss: float
    learning_rate: float
    time: float


class MetricsLog:
    """Writes entries from rank 0; on other processes it writes nothing.

    Args:
        directory: gets `metrics.jsonl`; entries after `step` are cut off.
        events: directory of the TensorBoard event files.
        total: steps of the training.
        step: step that it continues from.
        is_rank_0: whether this process writes.
        validated: whether the checkpoint of that step has a loss on val; else it is measured again.
    """

    def __init__(
        self, directory: Path, events: Path, total: int, step: int, is_rank_0: bool, *, validated: bool = True
    ) -> None:
        self._path = directory / METRICS
        self._total = total
        self._is_rank_0 = is_rank_0
        self._printed = 0.0
        self._events: Any = None
        if not is_rank_0:
            return
        found = read_metrics(self._path, up_to_step=step)
        kept = [entry for entry in found if validated or entry["step"] < step or "val_loss" not in entry]
        # In one step: whoever is killed meanwhile keeps the entries of all steps before.
        replace_file(self._path, "".join(json.dumps(entry) + "\n" for entry in kept).encode())
        from torch.utils.tensorboard.writer import FileWriter

        self._events = FileWriter(str(events))
        if step:
            self._leave_out_from(step + 1)

    def _leave_out_from(self, step: int) -> None:
        """Tells TensorBoard that what it has of this step and those after it was written before an interruption."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._events.add_event(Event(step=step, file_version="brain.Event:2"))
        self._events.add_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def training(self, entries: list[Entry], speed: dict[str, float], streaming: dict[str, float]) -> None:
        """Writes entries of the training, and shows the last one.

        Args:
            entries: with losses that are numbers.
            speed: figures of the time since those before; they stand in each.
            streaming: how fetching went in that time; it stands in the last one alone, because seconds are added up.
        """
        if not entries:
            return
        written = [{**entry._asdict(), "epoch": round(entry.epoch, 4), **speed} for entry in entries]
        written[-1] |= streaming
        for each in written:
            self._write(each)
        now = time.monotonic()
        step, epoch, loss, rate, _ = entries[-1]
        if self._is_rank_0 and (now - self._printed > PROGRESS_SECONDS or step == self._total):
            self._printed = now
            utilization = f"  MFU {speed['mfu']:.1%}" if "mfu" in speed else ""
            print(
                f"step {step}/{self._total}  epoch {epoch:.2f}  loss {loss:.4f}  lr {rate:.2e}  "
                f"{throughput_told(speed['samples_per_second'])} samples/s  {speed['memory_gb']:.1f} GB{utilization}"
                f"{_told_streaming(streaming)}",
                flush=True,
            )

    def validation(self, step: int, epoch: float, loss: float) -> None:
        """Writes the loss on val."""
        told = {"step": step, "epoch": round(epoch, 4), "val_loss": finite_or_none(loss)}
        self._write({**told, "time": time.time()})
        if self._is_rank_0:
            print(f"step {step}/{self._total}  epoch {epoch:.2f}  loss on val {loss:.4f}", flush=True)

    def close(self) -> None:
        """Ends the event file."""
        if self._events is not None:
            self._events.close()

    def _write(self, entry: dict[str, Any]) -> None:
        if not self._is_rank_0:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**entry, "time": round(entry["time"], 3)}) + "\n")
        from tensorboard.compat.proto.summary_pb2 import Summary

        curves = {name: value for name, value in entry.items() if name not in ("step", "time") and value is not None}
        # One event of all: SummaryWriter would write one of each, which takes as many times as long.
        values = [Summary.Value(tag=_TAGS.get(name, name), simple_value=value) for name, value in curves.items()]
        self._events.add_summary(Summary(value=values), entry["step"], entry["time"])


def _told_streaming(figures: dict[str, float]) -> str:
    if not figures:
        return ""
    return (
        f"  fetched {figures['fetched_mb_per_second']:,.1f} MB/s  stalled {figures['stalled_seconds']:.1f} s  "
        f"cache {figures['cache_gb']:.2f} GB"
    )


_TAGS = {"loss": "loss/train", "val_loss": "loss/val"}
