"""The training loop: every step's rows, loss, gradients and update; validation, checkpoints and metrics on the way."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from itertools import takewhile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gpu_pipelines.accelerators.workload import NOT_SHARDED
from gpu_pipelines.artifacts import checkpoint as checkpoints
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.errors import UnfitParametersError, UserError
from gpu_pipelines.tasks.building import build_model
from gpu_pipelines.tasks.checkpoint_state import AVERAGE, State, frozen_weights_sha256, trained_weights, training_state
from gpu_pipelines.tasks.nf4 import quantize
from gpu_pipelines.tasks.recipe import SUMS, Batch, Recipe
from gpu_pipelines.training.attention import choose_attention
from gpu_pipelines.training.batches import TrainingBatches, validation_batches
from gpu_pipelines.training.cadence import Cadence, seconds_between_interruptions
from gpu_pipelines.training.checkpointing import CheckpointWriter
from gpu_pipelines.training.compiling import can_compile, compile_layers, compiles
from gpu_pipelines.training.compute import ModelCost, count_parameters, measure_cost, peak_flops
from gpu_pipelines.training.continuing import Identity, restore
from gpu_pipelines.training.fp8 import multiply_in_fp8, require_fp8
from gpu_pipelines.training.frozen_weights import hold_frozen, state_bytes
from gpu_pipelines.training.gradients import Gradients, unscale
from gpu_pipelines.training.interruption import Interruption
from gpu_pipelines.training.lateness import FIRST_STEP, NEXT_STEPS, Progress, bound
from gpu_pipelines.training.layer_rates import layer_scales
from gpu_pipelines.training.learning_rate import schedule
from gpu_pipelines.training.local_devices import Devices
from gpu_pipelines.training.metrics import Entry, Losses, MetricsLog, Speed
from gpu_pipelines.training.optimizer import SCALE, make_optimizers
from gpu_pipelines.training.parallelism import (
    before_gradients_are_awaited,
    built_once,
    choose_parallelism,
    least_memory,
    mesh_of,
    place,
    without_all_reduce,
)
from gpu_pipelines.training.precision import allow_tf32, choose_precision, computing_in
from gpu_pipelines.training.profiling import Profile
from gpu_pipelines.training.recomputing import recompute_activations
from gpu_pipelines.training.reference import Reference, References
from gpu_pipelines.training.row_changes import adopt
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.store_lock import lock_of
from gpu_pipelines.training.weight_average import WeightAverage

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
        self._device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        self._interruption = Interruption(dist.new_group(backend="gloo"))
        self._meeting = dist.new_group(backend="gloo") if device.type == "cuda" else None
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        self._precision = choose_precision(settings.precision, device.type, capability)
        if device.type == "cuda":
            allow_tf32(self._precision)
        if settings.fp8:
            require_fp8(device.type, self._precision, capability)
        torch.manual_seed(settings.seed)
        adopt(recipe, dataset, settings)
        self._model = built_once(lambda: build_model(recipe, asdict(settings), as_stored=True))
        frozen = [self._frozen_sha256() if self._is_rank_0 else ""]
        dist.broadcast_object_list(frozen, src=0)
        self._identity = Identity(dataset.manifest.fingerprint, settings.configuration_hash(), frozen[0])
        if settings.quantize_base:
            quantize(self._model)
        hold_frozen(self._model, self._precision)
        choose_attention(self._model, settings.attention, device, self._precision, devices)
        decay = settings.layer_decay
        scales = layer_scales(self._model, recipe.blocks(self._model), decay) if decay else None
        parallel = self._place()
        self._average = WeightAverage(self._model, settings.ema_decay) if settings.ema_decay else None
        self._gradients = Gradients(self._model, parallel)
        self._optimizers = make_optimizers(self._model, settings, scales)
        self._scaler = torch.amp.GradScaler(device.type, enabled=self._precision == "fp16")
        rows = dataset.split("train")
        self._rows = len(rows)
        self._total = settings.total_steps(self._rows)
        self._end = settings.end_of(until, self._total)
        self._batches = TrainingBatches(recipe, rows, settings, device)
        self._val = dataset.split("val")
        self._best: tuple[float, int] | None = None
        self._listed: State | None = None
        #: What was not told yet: the ends of entries (step, learning rate, time), and of each step the gradients' norm.
        self._entries: list[tuple[int, float, float]] = []
        self._norms: list[torch.Tensor] = []

    def _frozen_sha256(self) -> str:
        """The hash of the frozen weights, as the checkpoints have it that are there."""
        if all(weight.requires_grad for weight in self._model.parameters()):
            return ""
        known = [checkpoint.info.frozen_weights_sha256 for checkpoint in self._store.complete()]
        return frozen_weights_sha256(self._model, like=known[-1] if known else "")

    def _place(self) -> nn.Module:
        settings, model = self._settings, self._model
        trained, frozen = count_parameters(model)
        memory = least_memory(self._device)
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
        nodes = dist.get_world_size() // per_node
        self._parallelism = choose_parallelism(settings.parallelism, state_bytes(model), memory, nodes, per_node)
        if self._parallelism != "ddp" and settings.optimizer in NOT_SHARDED:
            raise UnfitParametersError(
                f"The model does not fit one device whole, and {settings.optimizer} cannot be sharded.",
                "Give adamw_8bit or muon, or an accelerator with more memory (gpu-pipelines accelerators advise).",
            )
        self._mesh = mesh_of(self._parallelism, self._device.type, nodes, per_node)
        blocks = self._recipe.blocks(model)
        if settings.fp8:
            multiply_in_fp8(blocks, self._device.type)
        if settings.activation_checkpointing:
            if not blocks and self._is_rank_0:
                kind = type(model).__name__
                print(f"warning: activation_checkpointing saves nothing, as {kind} has no repeated layers", flush=True)
            blocks = recompute_activations(model, blocks, selective=settings.recompute == "selective")
        if self._is_rank_0:
            counted = f"{trained / 1e6:,.1f} M parameters to train"
            counted += f" ({frozen / 1e6:,.1f} M frozen)" if frozen else ""
            print(f"{counted}, {self._parallelism}, {self._precision}", flush=True)
        self._layers = blocks
        return place(model, blocks, self._mesh, self._precision, self._device)

    def train(self) -> bool:
        """Trains to the last step, from the newest good checkpoint if there is one.

        Returns:
            Whether it reached its end, or `until`; False if it was interrupted, after writing a checkpoint.
        """
        try:
            return self._train()
        finally:
            if self._lock is not None:
                self._lock.release()

    def _train(self) -> bool:
        if not self._refer():
            return False
        asked = os.environ.get(TENSORBOARD_DIRECTORY, "")
        events_uri = asked if is_remote(asked) else ""
        self._writer = CheckpointWriter(
            self._store, self._settings, self._lock, self._mesh, self._interruption, events_uri
        )
        cost, peak = self._measure()
        self._compile(cost, peak)
        step = self._resume(cost)
        self._gradients.settle_buckets(self._first_loss)
        self._batches.begin(step, self._end)
        self._writer.require_room({"model": trained_weights(self._model)}, averages=int(self._average is not None))
        events = Path(asked) if asked and not events_uri else self._store.directory / checkpoints.TENSORBOARD
        self._log = MetricsLog(self._store.directory, events, self._total, step, self._is_rank_0)
        self._losses = Losses(self._device)
        self._profile = Profile(self._settings.profiled if self._is_rank_0 else range(0), self._store, self._device)
        self._batches.seconds_taken()  # those before the first step are no part of a step
        self._speed = Speed(self._settings.global_batch_size, cost.training_flops_per_row, peak)
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
            self._store.publish_log(events_uri)
        return finished

    def _compile(self, cost: ModelCost, peak: float | None) -> None:
        """Compiles the layers, after the operations were counted, which compiled code would hide."""
        self._validating: Callable[[], AbstractContextManager[object]] = nullcontext
        rows = self._total * self._settings.global_batch_size
        layers, operations = self._layers, rows * cost.training_flops_per_row
        share = self._settings.global_batch_size // dist.get_world_size()
        has_one_shape = self._recipe.has_one_shape and share % self._rows_per_batch == 0
        must = self._settings.compile_model == "on"
        if not compiles(self._settings.compile_model, layers, has_one_shape, operations, peak):
            return
        if not can_compile(self._device, must):
            return
        compile_layers(layers or [self._model], has_one_shape, must)
        # Compiled, it would be of other shapes, and take places of the few that PyTorch keeps for the training.
        if self._settings.attention != "flex":  # which has a kernel only where it is compiled
            self._validating = partial(torch.compiler.set_stance, "force_eager")

    def _refer(self) -> bool:
        """Makes the recipe's `REFERENCE` of the model before the first step; False if it was interrupted."""
        self._reference: Reference = {}
        if not self._recipe.has_reference:
            return True
        splits = {"train": self._batches.rows, "val": self._val}
        references = References(
            self._recipe, splits, self._settings, self._identity, self._precision, self._device, self._interruption
        )
        found = references.of(self._unwrapped, self._rows_per_batch, self._store)
        if found is None:
            self._interruption.settle()
            self._batches.close()
            return False
        self._reference, self._batches.reference = found, found["train"]
        return True

    @property
    def _parallel(self) -> nn.Module:
        """What a forward pass with gradients is called on."""
        return self._gradients.parallel

    @property
    def _unwrapped(self) -> nn.Module:
        """What a forward pass without gradients is called on."""
        return self._model if self._parallelism == "ddp" else self._parallel

    @property
    def _rows_per_batch(self) -> int:
        """Rows that a process takes through the model at once."""
        return self._settings.micro_batch_size or self._settings.global_batch_size // dist.get_world_size()

    def _train_from(self, step: int) -> bool:
        between = self._settings.steps_between_checkpoints(self._total)
        cadence = Cadence(self._total, step, self._between_interruptions())
        self._parallel.train()
        began = saved = step
        self._bound(FIRST_STEP)
        if self._was_interrupted and step % between == 0:
            self._save(step, self._validate(step))  # it was due, and had no time for its validation
        while step < self._end and not self._has_stalled(step, between):
            if not self._rows_come(step):
                if self._entries:
                    self._tell(cadence)
                self._require_finite([], cadence.told)  # of the steps since, which end no entry
                if step > saved:
                    self._save(step, None, in_between=True)
                return False
            with self._profile.of(step + 1):
                rate = self._step(step)
            step += 1
            if step in self._settings.profiled and step + 1 not in self._settings.profiled:
                self._meet()  # rank 0 writes the profile
            self._writer.require_no_failure()
            if step == began + 1:
                self._writer.prepare(self._state())  # not when the first checkpoint is due
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
                # One that is not due stays until there is a newer one: which checkpoints are left is a matter of steps.
                in_between = interrupted or not due
                self._save(step, None if in_between else self._validate(step), in_between=in_between)
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
            bound(waiting, self._mesh)

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
        self._entries, self._norms = [], []

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
        processes = dist.get_world_size()
        nodes = processes // int(os.environ.get("LOCAL_WORLD_SIZE", processes))
        return seconds_between_interruptions(processes, nodes, os.environ)

    def _first_loss(self) -> torch.Tensor:
        (batch, _), *_ = self._batches.of_step(0)[0]
        with computing_in(self._precision, self._device.type):
            return self._recipe.loss(self._parallel, batch)

    def _step(self, step: int) -> float:
        """One optimizer step; returns the learning rate."""
        settings, world = self._settings, dist.get_world_size()
        self._seed(step)
        rate = settings.learning_rate * schedule(
            settings.learning_rate_schedule, step, self._total, settings.warmup_steps
        )
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get(SCALE, 1.0)
        micro_batches, all_loss_tokens = self._batches.of_step(step)
        if self._progress is not None:
            self._progress.note(step + 1)
        if self._recipe.has_sums:
            sums = self._sums_of(micro_batches)
            for batch, _ in micro_batches:
                batch[SUMS] = sums
        for number, (batch, loss_tokens) in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            with without_all_reduce(self._parallel, last=last):
                with computing_in(self._precision, self._device.type):
                    total = self._recipe.loss(self._parallel, batch) * loss_tokens
                if last:
                    before_gradients_are_awaited(total, self._batches.make_begun)
                # The all-reduce takes the mean over the processes; what is wanted is the sum over the loss tokens.
                self._scaler.scale(total * (world / max(1, all_loss_tokens))).backward()
            self._losses.add(total, loss_tokens)
        self._update()
        if self._average is not None:
            self._average.update(step)
        self._speed.step(self._batches.seconds_taken())
        return rate

    def _sums_of(self, batches: Iterable[tuple[Batch, int]]) -> torch.Tensor:
        """The recipe's sums over the batches of all processes; those without rows of their own do not count."""
        total: torch.Tensor | None = None
        with torch.no_grad():
            for batch, loss_tokens in batches:
                with computing_in(self._precision, self._device.type):
                    found = self._recipe.sums(self._unwrapped, batch) * bool(loss_tokens)
                total = found if total is None else total + found
        assert total is not None
        dist.all_reduce(total)
        return total

    def _update(self) -> None:
        unscale(self._scaler, self._optimizers)
        norm = self._gradients.clip(self._settings.gradient_clip)
        if not self._scaler.is_enabled():  # the scaler itself looks, and leaves out an update
            self._norms.append(norm)
        for optimizer in self._optimizers:
            self._scaler.step(optimizer)
            optimizer.zero_grad()
        self._scaler.update()

    def _require_finite(self, entries: list[Entry], told: int) -> None:
        """Raises UserError, on all processes alike, where the weights are no longer worth keeping.

        Args:
            entries: since the last line.
            told: step after which that was written.
        """
        if self._norms:
            finite = torch.stack(self._norms).isfinite().tolist()
            if not all(finite):
                raise self._diverged(f"The gradients of step {told + 1 + finite.index(False)} were no numbers")
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

    def _validate(self, step: int) -> float:
        """Loss on val, the same on all processes."""
        began = time.monotonic()
        self._parallel.eval()
        self._take_statistics_of_rank_0()
        losses = Losses(self._device)
        with torch.no_grad(), self._validating():
            sums = {SUMS: self._sums_of(self._batches_of_val())} if self._recipe.has_sums else {}
            for batch, loss_tokens in self._batches_of_val():
                with computing_in(self._precision, self._device.type):
                    losses.add(self._recipe.loss(self._unwrapped, batch | sums) * loss_tokens, loss_tokens)
        losses.end_entry()
        (loss,) = losses.means()
        self._parallel.train()
        if math.isfinite(loss) and (self._best is None or loss < self._best[0]):
            self._best = (loss, step)
        self._log.validation(step, self._epoch(step), loss)
        self._speed.leave_out(time.monotonic() - began)
        return loss

    def _batches_of_val(self) -> Iterator[tuple[Batch, int]]:
        reference = self._reference.get("val")
        return validation_batches(self._recipe, self._val, self._rows_per_batch, self._device, reference)

    def _take_statistics_of_rank_0(self) -> None:
        """Makes running statistics, as of BatchNorm, the same everywhere: those that are saved, and evaluated."""
        for buffer in self._model.buffers():
            dist.broadcast(buffer, src=0)
        if self._average is not None:
            self._average.take_statistics_of_rank_0()

    def _has_stalled(self, step: int, between: int) -> bool:
        """Whether the loss on val has not come down for as many checkpoints as early stopping waits for."""
        patience = self._settings.early_stopping_patience
        if not patience or self._best is None or step - self._best[1] < patience * between:
            return False
        if self._is_rank_0:
            print(
                f"stopping early: the loss on val was lowest, {self._best[0]:.4f}, at step {self._best[1]}", flush=True
            )
        return True

    def _state(self) -> State:
        """The tensors of a checkpoint; they stay the same ones, so that they are listed once."""
        if self._listed is None:
            self._listed = training_state(self._model, self._optimizers)
            if self._average is not None:
                self._listed[AVERAGE] = self._average.tensors
            if self._scaler.is_enabled():
                self._listed["scaler"] = {"scale": torch.zeros(()), "growth_tracker": torch.zeros(())}
        return self._listed

    def _save(self, step: int, val_loss: float | None, *, in_between: bool = False) -> None:
        if val_loss is not None and not math.isfinite(val_loss):
            raise self._diverged(f"The loss on val was {val_loss} at step {step}")
        if in_between:  # else the validation just did
            self._take_statistics_of_rank_0()
        state = self._state()
        if self._scaler.is_enabled():
            scaling = self._scaler.state_dict()
            state["scaler"]["scale"].fill_(scaling["scale"])
            state["scaler"]["growth_tracker"].fill_(scaling["_growth_tracker"])
        info = {
            "step": step,
            "epoch": round(self._epoch(step), 4),
            "samples_seen": step * self._settings.global_batch_size,
            "world_size": dist.get_world_size(),
            **asdict(self._identity),
            "resumed_from_step": self._settings.resume_from_step,
            "interruption": in_between,
            "val_loss": val_loss,
            "best_val_loss": self._best[0] if self._best else None,
            "best_step": self._best[1] if self._best else None,
            "rehearsal": self._devices.rehearsal,
        }
        self._writer.save(state, info)
        self._meet()

    def _meet(self) -> None:
        """Waits for rank 0, which may have waited for an upload or a disk: longer than GPUs wait for each other."""
        if self._meeting is not None:
            dist.barrier(self._meeting)

    def _resume(self, cost: ModelCost) -> int:
        found, whole = restore(self._state, self._store, self._identity, self._settings, self._lock, self._mesh)
        if self._is_rank_0:
            self._write_configuration(cost)
        self._was_interrupted = False
        if found is None:
            self._listed = None
            for optimizer in self._optimizers:  # the reader of a damaged checkpoint may have made their states
                optimizer.state.clear()
            return 0
        self._writer.found(whole)
        if self._scaler.is_enabled():
            scaling = self._state()["scaler"]
            tracker = int(scaling["growth_tracker"].item())
            self._scaler.load_state_dict(
                {**self._scaler.state_dict(), "scale": scaling["scale"].item(), "_growth_tracker": tracker}
            )
        info = found.info
        self._was_interrupted = info.interruption
        if info.best_step is not None and info.best_val_loss is not None:
            self._best = (info.best_val_loss, info.best_step)
        if self._is_rank_0:
            print(f"continuing from {found.name}", flush=True)
        return info.step

    def _write_configuration(self, cost: ModelCost) -> None:
        configuration = {
            "task": self._dataset.manifest.task,
            "settings": asdict(self._settings),
            "devices": {**asdict(self._devices), "name": self._device_name, "world_size": dist.get_world_size()},
            "precision": self._precision,
            "parallelism": self._parallelism,
            "total_steps": self._total,
            "model": asdict(cost),
        }
        checkpoints.write_configuration(self._store.directory, configuration)
        self._store.publish([checkpoints.CONFIGURATION])

    def _measure(self) -> tuple[ModelCost, float | None]:
        """What the model costs, and the peak of all devices together, where it is known."""
        (batch, _), *_ = self._batches.of_step(0)[0]
        rows = self._recipe.rows_of(batch)
        sharded = self._mesh is not None
        with computing_in(self._precision, self._device.type):
            cost = measure_cost(self._recipe, self._parallel if sharded else self._model, batch, rows, sharded=sharded)
        # Each has counted its own rows, whose documents differ in length; whether to compile must not.
        told = [cost]
        dist.broadcast_object_list(told, src=0)
        (cost,) = told
        if self._device.type != "cuda":
            return cost, None
        peak = peak_flops(self._device_name, self._precision)
        return cost, peak * dist.get_world_size() if peak else None
