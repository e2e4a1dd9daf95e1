"""The training loop: every step's rows, loss, gradients and update; validation, checkpoints and metrics on the way."""

from __future__ import annotations

import math
import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpu_pipelines.artifacts import checkpoint as checkpoints
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.errors import UnfitParametersError, UserError
from gpu_pipelines.tasks.building import build_model
from gpu_pipelines.tasks.checkpoint_state import trained_weights
from gpu_pipelines.tasks.nf4 import quantize
from gpu_pipelines.tasks.recipe import SUMS, Batch, Recipe
from gpu_pipelines.training.cadence import Cadence, seconds_between_interruptions
from gpu_pipelines.training.checkpoints.checkpointing import CheckpointWriter
from gpu_pipelines.training.checkpoints.continuing import identity_of, restore
from gpu_pipelines.training.checkpoints.store_lock import lock_of
from gpu_pipelines.training.machine.interruption import Interruption
from gpu_pipelines.training.machine.lateness import FIRST_STEP, NEXT_STEPS, Progress, bound
from gpu_pipelines.training.machine.local_devices import Devices
from gpu_pipelines.training.metrics import Entry, Losses, MetricsLog, Speed
from gpu_pipelines.training.model.attention import choose_attention
from gpu_pipelines.training.model.compute import ModelCost, peak_flops
from gpu_pipelines.training.model.frozen_weights import hold_frozen
from gpu_pipelines.training.model.parallelism import (
    before_gradients_are_awaited,
    built_once,
    nodes_of_training,
    without_all_reduce,
)
from gpu_pipelines.training.model.placed_model import PlacedModel
from gpu_pipelines.training.model.precision import precision_on
from gpu_pipelines.training.optimization.layer_rates import layer_scales
from gpu_pipelines.training.optimization.updates import Updates
from gpu_pipelines.training.profiling import Profile
from gpu_pipelines.training.reference import References
from gpu_pipelines.training.rows.batches import TrainingBatches
from gpu_pipelines.training.rows.row_changes import adopt
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.validation import Validation

TENSORBOARD_DIRECTORY = "AIP_TENSORBOARD_LOG_DIR"


class Trainer:
    """Trains a recipe's model on this process's share of every batch.

    Args:
        recipe: knows model, batches and loss.
        dataset: has the splits `train` to train on and `val` to validate on.
        settings: hyperparameters.
        store: where checkpoints and metrics go; an unfinished training found there is continued.
        devices: what each node trains on.
        device: this process's device.
        progress: tells the other processes how far this process is; None for not telling them.
        until: step of a checkpoint at which it pauses, to be continued as the same training; 0 for its last step.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        settings: TrainingSettings,
        store: CheckpointStore,
        devices: Devices,
        device: torch.device,
        progress: Progress | None = None,
        until: int = 0,
    ) -> None:
        self._recipe, self._dataset, self._settings = recipe, dataset, settings
        self._store, self._devices, self._device = store, devices, device
        self._progress = progress
        self._is_rank_0 = dist.get_rank() == 0
        self._lock = lock_of(store) if self._is_rank_0 else None
        self._interruption = Interruption(dist.new_group(backend="gloo"))
        self._meeting = dist.new_group(backend="gloo") if device.type == "cuda" else None
        self._precision = precision_on(device, settings)
        adopt(recipe, dataset, settings)
        rows = dataset.split("train")
        self._rows = len(rows)
        self._total = settings.total_steps(self._rows)
        self._end = settings.end_of(until, self._total)
        self._build()
        self._batches = TrainingBatches(recipe, rows, settings, device)
        self._validation = Validation(self._model, recipe, dataset.split("val"), settings, device)
        asked = os.environ.get(TENSORBOARD_DIRECTORY, "")
        self._events_uri = asked if is_remote(asked) else ""
        self._events = Path(asked) if asked and not self._events_uri else store.directory / checkpoints.TENSORBOARD
        self._writer = CheckpointWriter(
            store, settings, self._lock, self._model.mesh, self._interruption, self._events_uri
        )
        self._profile = Profile(settings.profiled if self._is_rank_0 else range(0), store, device)
        #: What was not told yet: the ends of entries (step, learning rate, time).
        self._entries: list[tuple[int, float, float]] = []

    def _build(self) -> None:
        """Builds the model and places it, with its optimizers."""
        settings, recipe = self._settings, self._recipe
        torch.manual_seed(settings.seed)
        model = built_once(lambda: build_model(recipe, asdict(settings), as_stored=True))
        self._identity = identity_of(model, self._dataset, settings, self._store)
        if settings.quantize_base:
            quantize(model)
        hold_frozen(model, self._precision)
        choose_attention(model, settings.attention, self._device, self._precision, self._devices)
        scales = layer_scales(model, recipe.blocks(model), settings.layer_decay) if settings.layer_decay else None
        self._model = PlacedModel(model, recipe, settings, self._device, self._precision)
        self._updates = Updates(
            self._model,
            settings,
            self._total,
            scales,
            scales_loss=self._precision == "fp16",
            device_type=self._device.type,
        )

    def train(self) -> bool:
        """Trains to the last step, from the newest good checkpoint if there is one.

        Returns:
            Whether it reached its end, or `until`; False if it was interrupted, after writing a checkpoint.
        """
        try:
            return self._refer() and self._train()
        finally:
            if self._lock is not None:
                self._lock.release()

    def _train(self) -> bool:
        settings, model = self._settings, self._model
        cost, peak = model.measure(self._first_batch()), self._peak()
        model.compile(self._total * settings.global_batch_size * cost.training_flops_per_row, peak)
        step = self._resume(cost)
        model.gradients.settle_buckets(lambda: model.loss(self._first_batch()))
        self._batches.begin(step, self._end)
        self._writer.require_room({"model": trained_weights(model.module)}, averages=int(model.average is not None))
        validated = self._interrupted_at is None
        self._log = MetricsLog(
            self._store.directory, self._events, self._total, step, self._is_rank_0, validated=validated
        )
        self._losses = Losses(self._device)
        self._batches.seconds_taken()  # those before the first step are no part of a step
        self._speed = Speed(settings.global_batch_size, cost.training_flops_per_row, peak)
        try:
            finished = self._train_from(step)
            self._interruption.settle()
            self._batches.settle()
            self._writer.close()
        finally:
            self._profile.close()
            self._batches.close()
            self._log.close()
        if self._is_rank_0:
            self._store.publish_log(self._events_uri)
        return finished

    def _refer(self) -> bool:
        """Makes the recipe's `REFERENCE` of the model before the first step; False if it was interrupted."""
        if not self._recipe.has_reference:
            return True
        splits = {"train": self._batches.rows, "val": self._validation.rows}
        references = References(
            self._recipe, splits, self._settings, self._identity, self._precision, self._device, self._interruption
        )
        found = references.of(self._model.unwrapped, self._settings.rows_at_once(dist.get_world_size()), self._store)
        if found is None:
            self._interruption.settle()
            self._batches.close()
            return False
        self._batches.reference, self._validation.reference = found["train"], found["val"]
        return True

    def _first_batch(self) -> Batch:
        (batch, _), *_ = self._batches.of_step(0)[0]
        return batch

    @property
    def _device_name(self) -> str:
        on_gpu = self._device.type == "cuda"
        return torch.cuda.get_device_name(self._device) if on_gpu else platform.machine()

    def _peak(self) -> float | None:
        """Operations per second of all devices together; None where it is not known."""
        if self._device.type != "cuda":
            return None
        peak = peak_flops(self._device_name, self._precision)
        return peak * dist.get_world_size() if peak else None

    def _train_from(self, step: int) -> bool:
        between = self._settings.steps_between_checkpoints(self._total)
        cadence = Cadence(self._total, step, self._between_interruptions())
        self._model.parallel.train()
        began = saved = step
        self._bound(FIRST_STEP)
        interrupted_at = self._interrupted_at
        if interrupted_at is not None and (step % between == 0 or step == self._total):
            loss = self._validate(step)  # it was due, and there was no time for it
            if loss is None:
                return False
            self._writer.mark_again(interrupted_at, self._described(step, loss))
            self._meet()
        while step < self._end and not self._validation.has_stalled(step, between):
            if not self._rows_come(step):
                if self._entries:
                    self._tell(cadence)
                self._require_finite([], cadence.told)  # of the steps since, which end no entry
                if step > saved:
                    self._save(step, None)
                return False
            with self._profile.of(step + 1):
                rate = self._step(step)
            step += 1
            if step in self._settings.profiled and step + 1 not in self._settings.profiled:
                self._meet()  # rank 0 writes the profile
            self._writer.require_no_failure()
            if step == began + 1:
                self._writer.prepare(self._updates.state())  # not when the first checkpoint is due
                self._bound(NEXT_STEPS)
            interrupted = self._interruption.agreed() and step < self._end
            due = step % between == 0 or step == self._total
            told = due or interrupted or cadence.line_is_due(step)
            if told or cadence.entry_is_due(step):
                self._losses.end_entry()
                self._entries.append((step, rate, time.time()))
            if told:
                self._tell(cadence)
            if due or interrupted or cadence.save_is_due:
                loss = self._validate(step) if due and not interrupted else None
                interrupted = interrupted or (due and loss is None)
                self._save(step, loss)
                cadence.saved(*self._writer.took())
                saved = step
            if interrupted:
                return False
        return True

    def _bound(self, waiting: timedelta) -> None:
        """Bounds how long GPUs wait for each other, once all have come so far.

        One that is ahead would go by the shorter bound while another may still compile, by the longer one.
        """
        if self._device.type == "cuda":
            torch.cuda.synchronize()
            self._meet()
            bound(waiting, self._model.mesh)

    def _tell(self, cadence: Cadence) -> None:
        """Writes the entries that ended since the last call; all processes call it together."""
        losses = self._losses.means()
        speed, streaming = self._speed.take(), self._batches.streaming_figures()
        entries = [
            Entry(step, self._epoch(step), loss, rate, ended)
            for (step, rate, ended), loss in zip(self._entries, losses, strict=True)
        ]
        self._log.training(list(takewhile(lambda entry: math.isfinite(entry.loss), entries)), speed, streaming)
        self._require_finite(entries, cadence.told)
        last = entries[-1].step
        self._interruption.pace(self._losses.seconds / (last - cadence.told))
        cadence.line_written(last, self._losses.seconds)
        self._entries = []

    def _rows_come(self, step: int) -> bool:
        """Whether the rows of a step come; False if it was interrupted while it waited for them.

        Several processes cannot part here: others may be a step further, and wait for this one.
        """
        alone = dist.get_world_size() == 1
        return not alone or self._batches.await_step(step, lambda: self._interruption.is_known)

    def _between_interruptions(self) -> float | None:
        """Seconds, where they say how often the state is saved; None where the user does."""
        if self._settings.checkpoint_every_steps:
            return None
        nodes, _ = nodes_of_training()
        return seconds_between_interruptions(dist.get_world_size(), nodes, os.environ)

    def _step(self, step: int) -> float:
        """One optimizer step; returns the learning rate."""
        model, world = self._model, dist.get_world_size()
        self._seed(step)
        rate = self._updates.begin(step)
        micro_batches, all_loss_tokens = self._batches.of_step(step)
        if self._progress is not None:
            self._progress.note(step + 1)
        if self._recipe.has_sums:
            sums = model.sums(micro_batches)
            for batch, _ in micro_batches:
                batch[SUMS] = sums
        for number, (batch, loss_tokens) in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            with without_all_reduce(model.parallel, last=last):
                total = model.loss(batch) * loss_tokens
                if last:
                    before_gradients_are_awaited(total, self._batches.make_begun)
                # The all-reduce takes the mean over the processes; what is wanted is the sum over the loss tokens.
                self._updates.backward(total * (world / max(1, all_loss_tokens)))
            self._losses.add(total, loss_tokens)
        self._updates.apply(step)
        self._speed.step(self._batches.seconds_taken())
        return rate

    def _require_finite(self, entries: list[Entry], told: int) -> None:
        """Raises UserError, on all processes alike, where the weights are no longer worth keeping.

        Args:
            entries: since the last line.
            told: step after which that was written.
        """
        number = self._updates.first_not_finite()
        if number is not None:
            raise self._diverged(f"The gradients of step {told + 1 + number} were no numbers")
        for entry in entries:
            if not math.isfinite(entry.loss):
                raise self._diverged(f"The loss was {entry.loss} at step {entry.step}")

    def _diverged(self, what: str) -> UnfitParametersError:
        """The error; all processes call it together."""
        with suppress(UserError):  # the newest one may still be on its way, and is good
            self._writer.wait()
        self._meet()
        newest = [self._writer.newest_whole]
        dist.broadcast_object_list(newest, src=0)
        again = (
            f"Give checkpoint_uri={self._store.uri} and resume_from_step={newest[0]}" if newest[0] else "Begin again"
        )
        return UnfitParametersError(
            f"{what}; the training has diverged. Nothing was saved of it.",
            f"{again}, with a lower learning_rate or more warmup_steps, or look for damaged rows in the data.",
        )

    def _seed(self, step: int) -> None:
        # Dropout and the like draw from a generator that depends on nothing but seed, step and rank.
        seed = (self._settings.seed * 1_000_003 + step) * 65_537 + dist.get_rank()
        torch.default_generator.manual_seed(seed % (1 << 63))
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed % (1 << 63))

    def _epoch(self, step: int) -> float:
        return step * self._settings.global_batch_size / self._rows

    def _validate(self, step: int) -> float | None:
        """Loss on val, the same on all processes; None if they were interrupted meanwhile."""
        began = time.monotonic()
        loss = self._validation.loss(step, self._interruption.agreed)
        if loss is None:
            return None
        self._log.validation(step, self._epoch(step), loss)
        self._speed.leave_out(time.monotonic() - began)
        return loss

    def _save(self, step: int, val_loss: float | None) -> None:
        """Saves the state; without a loss on val, until there is a newer checkpoint.

        So which checkpoints are left in the end is a matter of steps.
        """
        if val_loss is None:  # else the validation just did
            self._model.take_statistics_of_rank_0()
        self._writer.save(self._updates.state(), self._described(step, val_loss))
        self._meet()

    def _described(self, step: int, val_loss: float | None) -> dict[str, Any]:
        """What a checkpoint says of itself.

        Raises:
            UserError: the loss on val is no number.
        """
        if val_loss is not None and not math.isfinite(val_loss):
            raise self._diverged(f"The loss on val was {val_loss} at step {step}")
        best = self._validation.best
        return {
            "step": step,
            "epoch": round(self._epoch(step), 4),
            "samples_seen": step * self._settings.global_batch_size,
            "world_size": dist.get_world_size(),
            **asdict(self._identity),
            "resumed_from_step": self._settings.resume_from_step,
            "interruption": val_loss is None,
            "val_loss": val_loss,
            "best_val_loss": best[0] if best else None,
            "best_step": best[1] if best else None,
            "rehearsal": self._devices.rehearsal,
        }

    def _meet(self) -> None:
        """Waits for rank 0, which may have waited for an upload or a disk: longer than GPUs wait for each other."""
        if self._meeting is not None:
            dist.barrier(self._meeting)

    def _resume(self, cost: ModelCost) -> int:
        """Continues from the newest good checkpoint; returns its step, 0 where there is none."""
        state, store, settings = self._updates.state, self._store, self._settings
        found, whole = restore(state, store, self._identity, settings, self._lock, self._model.mesh)
        if self._is_rank_0:
            self._write_configuration(cost)
        self._interrupted_at = found if found is not None and found.info.interruption else None
        if found is None:
            self._updates.begin_anew()
            return 0
        self._writer.found(whole)
        self._updates.continue_from_state()
        self._validation.continue_from(found.info)
        if self._is_rank_0:
            print(f"continuing from {found.name}", flush=True)
        return found.info.step

    def _write_configuration(self, cost: ModelCost) -> None:
        configuration = {
            "task": self._dataset.manifest.task,
            "settings": asdict(self._settings),
            "devices": {**asdict(self._devices), "name": self._device_name, "world_size": dist.get_world_size()},
            "precision": self._precision,
            "parallelism": self._model.parallelism,
            "total_steps": self._total,
            "model": asdict(cost),
        }
        checkpoints.write_configuration(self._store.directory, configuration)
        self._store.publish([checkpoints.CONFIGURATION])
