"""The output of a model for rows before its first step, with which a preference loss compares its later output.

It is computed once, by all processes, and kept beside the checkpoints, also while it is computed: a training that is
continued uses the same numbers, to the bit, and does not need the model that the training began with in memory.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import nn

from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.artifacts.dataset import Split
from gpu_pipelines.tasks.recipe import Recipe
from gpu_pipelines.training.checkpoints.continuing import Identity
from gpu_pipelines.training.machine.interruption import Interruption
from gpu_pipelines.training.model.precision import computing_in
from gpu_pipelines.training.rows.batches import shares_in_order
from gpu_pipelines.training.settings import TrainingSettings

#: What the model that a training begins with follows from, besides its dataset.
_SHAPING = ("model", "recipe", "seed", "quantize_base")

#: What is computed is kept this often, for those who are killed.
_SECONDS_BETWEEN_WRITES = 60.0

Reference = dict[str, np.ndarray]


class References:
    """The reference of each split of a training.

    Args:
        recipe: has a reference.
        splits: train and val, by name.
        settings: of the training.
        identity: of its dataset and its frozen weights.
        precision: as the training computes.
        device: this process's.
        interruption: may end the computation.
    """

    def __init__(
        self,
        recipe: Recipe,
        splits: Mapping[str, Split],
        settings: TrainingSettings,
        identity: Identity,
        precision: str,
        device: torch.device,
        interruption: Interruption,
    ) -> None:
        self._recipe, self._splits = recipe, splits
        begun_with = {name: getattr(settings, name) for name in _SHAPING}
        begun_with |= {"dataset": identity.dataset_fingerprint, "frozen": identity.frozen_weights_sha256}
        told = hashlib.sha256(json.dumps(begun_with, sort_keys=True).encode()).hexdigest()
        self._file = f"reference-{told[:16]}.safetensors"
        self._precision, self._device, self._interruption = precision, device, interruption

    def of(self, model: nn.Module, rows_per_batch: int, store: CheckpointStore) -> Reference | None:
        """The reference, read from beside the checkpoints or computed; all processes call this together.

        What is computed is kept beside the checkpoints every minute, and when the computation is interrupted.

        Args:
            model: with its first weights, in the form for `loss` of the recipe.
            rows_per_batch: rows of a batch of each process.
            store: of the training.

        Returns:
            Float32 (rows, columns) by split; None if it was interrupted.
        """
        told = [self._read(store) if dist.get_rank() == 0 else {}]
        dist.broadcast_object_list(told, src=0)
        (found,) = told
        parts = {name: [found[name]] if name in found else [] for name in self._splits}
        total, done = sum(map(len, self._splits.values())), sum(map(len, found.values()))
        if done < total and dist.get_rank() == 0:
            print(f"computing the reference of {total:,} rows, once; {done:,} are there", flush=True)
        was_training = model.training
        model.eval()
        kept_at = time.monotonic()
        for rows in self._computed(model, parts, rows_per_batch):
            done += rows
            interrupted = self._interruption.agreed()
            due = interrupted or done == total or time.monotonic() - kept_at > _SECONDS_BETWEEN_WRITES
            if due and dist.get_rank() == 0:
                print(f"reference of {done:,}/{total:,} rows", flush=True)
                self._write(_joined(parts), store)
                kept_at = time.monotonic()
            if interrupted:
                return None
        model.train(was_training)
        return _joined(parts)

    def _computed(self, model: nn.Module, parts: dict[str, list[np.ndarray]], rows_per_batch: int) -> Iterator[int]:
        """Adds the rows that the parts lack, in order, a batch of each process at a time; yields their numbers."""
        for name, rows in self._splits.items():
            done = sum(map(len, parts[name]))
            for numbers, _ in shares_in_order(rows, rows_per_batch, done):
                batch = self._recipe.batch(rows.take(numbers), self._device)
                with torch.no_grad(), computing_in(self._precision, self._device.type):
                    own = self._recipe.reference(model, batch).float().cpu()
                new = _of_all_processes(own, rows_per_batch)[: len(rows) - done]
                parts[name].append(new)
                done += len(new)
                yield len(new)

    def _read(self, store: CheckpointStore) -> Reference:
        """The first rows of each split, as far as an earlier attempt at this training has left them."""
        try:
            return load_file(store.fetch_file(self._file))
        except (FileNotFoundError, SafetensorError):
            return {}

    def _write(self, made: Reference, store: CheckpointStore) -> None:
        being_written = store.directory / f".{self._file}"
        save_file(made, being_written)
        being_written.replace(store.directory / self._file)
        store.publish([self._file])


def _of_all_processes(own: torch.Tensor, rows_per_batch: int) -> np.ndarray:
    """The rows of all processes one after another, (processes x rows_per_batch, columns); own ones may be fewer."""
    filled = own.new_zeros(rows_per_batch, own.shape[1])
    filled[: len(own)] = own
    of_all = [torch.empty_like(filled) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, filled)
    return torch.cat(of_all).numpy()


def _joined(parts: Mapping[str, list[np.ndarray]]) -> Reference:
    return {name: np.concatenate(each) for name, each in parts.items() if each}
