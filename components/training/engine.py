"""The training loop: DDP over the processes of the group, checkpoints every N steps, metrics as JSON lines."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpu_pipelines.artifacts import checkpoint as checkpoints
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.components.training.sample_order import SampleOrder
from gpu_pipelines.components.training.settings import TrainingSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.recipes.checkpoint_state import load_state, save_state

METRICS_LINES = 200
PROGRESS_SECONDS = 1.0


class Trainer:
    """Trains a recipe's model on this process's share of every batch.

    Args:
        recipe: knows model, batches and loss.
        dataset: its `train` split is trained on.
        settings: hyperparameters.
        directory: where checkpoints and metrics go; an unfinished run found there is continued.
        device: this process's device.
    """

    def __init__(
        self, recipe: Any, dataset: Dataset, settings: TrainingSettings, directory: Path, device: torch.device
    ) -> None:
        self._recipe = recipe
        self._settings = settings
        self._directory = directory
        self._device = device
        self._chief = dist.get_rank() == 0
        self._rows = dataset.split("train")
        self._order = SampleOrder(
            len(self._rows), settings.global_batch_size, settings.seed, dist.get_rank(), dist.get_world_size()
        )
        self._total = settings.total_steps(len(self._rows))
        self._marker = {
            "world_size": dist.get_world_size(),
            "dataset_fingerprint": dataset.manifest.fingerprint,
            "configuration_hash": settings.configuration_hash(),
        }
        torch.manual_seed(settings.seed)
        self._model: nn.Module = recipe.build_model(settings.model).to(device)
        self._optimizer = _optimizer(self._model, settings)
        self._parallel = DistributedDataParallel(self._model, gradient_as_bucket_view=True)

    def train(self) -> None:
        """Trains to the last step, from the newest good checkpoint if there is one."""
        step = self._resume()
        meter = _Meter(self._directory / checkpoints.METRICS, self._total, step, self._chief)
        between = self._settings.steps_between_checkpoints(self._total)
        self._parallel.train()
        while step < self._total:
            loss, rate = self._step(step)
            step += 1
            meter.add(step, self._epoch(step), loss, rate, self._settings.global_batch_size)
            if step % between == 0 or step == self._total:
                meter.check_finite()
                self._save(step)
                meter.pause_over()

    def _step(self, step: int) -> tuple[torch.Tensor, float]:
        """One optimizer step; returns this process's mean loss and the learning rate."""
        # Dropout and the like draw from a generator that depends on nothing but seed, step and rank.
        torch.manual_seed((self._settings.seed * 1_000_003 + step) * 65_537 + dist.get_rank())
        batch = self._recipe.batch(self._rows.take(self._order.rows_of_step(step)), self._device)
        rate = self._settings.learning_rate * schedule(step, self._total, self._settings.warmup_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss = self._recipe.loss(self._parallel, batch)
        self._optimizer.zero_grad()
        loss.backward()
        if self._settings.gradient_clip:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.gradient_clip)
        self._optimizer.step()
        return loss.detach(), rate

    def _epoch(self, step: int) -> float:
        return step * self._settings.global_batch_size / len(self._rows)

    def _save(self, step: int) -> None:
        path = checkpoints.checkpoint_path(self._directory, step)
        save_state(self._model, self._optimizer, path)
        if self._chief:
            samples = step * self._settings.global_batch_size
            checkpoints.mark_complete(
                path, step=step, epoch=round(self._epoch(step), 4), samples_seen=samples, **self._marker
            )
        # Nobody goes on before the checkpoint is whole, so that no process is more than one checkpoint ahead.
        dist.barrier()

    def _resume(self) -> int:
        for checkpoint in reversed(checkpoints.complete_checkpoints(self._directory)):
            for what in ("dataset_fingerprint", "configuration_hash"):
                if getattr(checkpoint.info, what) != self._marker[what]:
                    raise UserError(
                        f"{checkpoint.path} was trained with another {what.replace('_', ' ')}.",
                        "Give an empty checkpoint directory, or the parameters and data of that run.",
                    )
            if damaged := checkpoint.damaged_file():
                if self._chief:
                    print(f"warning: passing over {checkpoint.name}: {damaged} is damaged", flush=True)
                continue
            load_state(self._model, self._optimizer, checkpoint.path)
            if self._chief:
                print(f"continuing from {checkpoint.name}", flush=True)
            return checkpoint.info.step
        return 0


def schedule(step: int, total: int, warmup: int) -> float:
    """Share of the peak learning rate at `step` (from 0): linear warm-up, then half a cosine down to 0.

    Source of the cosine: Loshchilov and Hutter, SGDR, https://arxiv.org/abs/1608.03983, equation 5.
    """
    warmup = min(warmup, max(1, total // 10))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def _optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    # Norm scales and biases are not decayed, as in every published recipe of these architectures.
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=settings.learning_rate, fused=True)


class _Meter:
    """Writes metrics as JSON lines and prints progress, from the chief; all processes take part in the averages."""

    def __init__(self, path: Path, total: int, step: int, chief: bool) -> None:
        self._path = path
        self._total = total
        self._chief = chief
        self._every = max(1, math.ceil(total / METRICS_LINES))
        self._losses: list[torch.Tensor] = []
        self._last = float("nan")
        self._checked_step = step
        self._clock_step = step
        self._clock = self._printed = time.monotonic()
        if chief:
            kept = [line for line in _lines(path) if json.loads(line)["step"] <= step]
            path.write_text("".join(kept), encoding="utf-8")

    def add(self, step: int, epoch: float, loss: torch.Tensor, rate: float, batch: int) -> None:
        self._losses.append(loss)
        self._checked_step = step
        if step % self._every and step != self._total:
            return
        self._average()
        now = time.monotonic()
        speed = (step - self._clock_step) * batch / max(now - self._clock, 1e-9)
        self._clock, self._clock_step = now, step
        if not self._chief or not math.isfinite(self._last):
            self.check_finite()
            return
        entry = {"step": step, "epoch": round(epoch, 4), "loss": self._last, "learning_rate": rate}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**entry, "samples_per_second": round(speed, 1)}) + "\n")
        if now - self._printed > PROGRESS_SECONDS or step in (self._every, self._total):
            self._printed = now
            print(
                f"step {step}/{self._total}  epoch {epoch:.1f}  loss {self._last:.4f}  lr {rate:.2e}  "
                f"{speed:,.0f} samples/s",
                flush=True,
            )

    def check_finite(self) -> None:
        """Averages what is left and stops all processes if the loss is no longer a number."""
        if self._losses:
            self._average()
        if not math.isfinite(self._last):
            raise UserError(
                f"The loss was {self._last} at step {self._checked_step}; the training has diverged.",
                "Lower learning_rate, raise warmup_steps, or look for damaged rows in the data.",
            )

    def pause_over(self) -> None:
        """Leaves the time since the last entry (a checkpoint was written) out of the throughput."""
        self._clock, self._clock_step = time.monotonic(), self._checked_step

    def _average(self) -> None:
        mean = torch.stack(self._losses).mean()
        dist.all_reduce(mean)
        self._last = mean.item() / dist.get_world_size()
        self._losses = []


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        yield from path.read_text(encoding="utf-8").splitlines(keepends=True)
