"""The output of a model for rows before its first step, with which a preference loss compares its later output.

It is computed once, by all processes, and kept beside the checkpoints: a training that is continued uses the same
numbers, to the bit, and the model that the training began with is not needed in memory any more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

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

        Args:
            model: with its first weights, in the form for `loss` of the recipe.
            rows_per_batch: rows of a batch of each process.
            store: of the training.

        Returns:
            Float32 (rows, columns) by split; None if it was interrupted.
        """
        found = [self._read(store) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(found, src=0)
        if found[0] is not None:
            return found[0]
        if dist.get_rank() == 0:
            rows = sum(map(len, self._splits.values()))
            print(f"computing the reference of {rows:,} rows, once", flush=True)
        was_training = model.training
        model.eval()
        made: Reference = {}
        for name, rows_of_split in self._splits.items():
            part = self._computed(model, rows_of_split, rows_per_batch)
            if part is None:
                return None
            made[name] = part
        model.train(was_training)
        if dist.get_rank() == 0:
            self._write(made, store)
        return made

    def _computed(self, model: nn.Module, rows: Split, rows_per_batch: int) -> np.ndarray | None:
        whole: torch.Tensor | None = None
        for numbers, beyond in shares_in_order(rows, rows_per_batch):
            batch = self._recipe.batch(rows.take(numbers), self._device)
            with torch.no_grad(), computing_in(self._precision, self._device.type):
                found = self._recipe.reference(model, batch).float().cpu()
            if whole is None:
                whole = torch.zeros(len(rows), found.shape[1])
            if not beyond:
                whole[torch.from_numpy(numbers)] = found
            if self._interruption.agreed():
                return None
        assert whole is not None
        # Each row is of one process; those of the others are 0.
        dist.all_reduce(whole)
        return whole.numpy()

    def _read(self, store: CheckpointStore) -> Reference | None:
        """What an earlier attempt at this training has left; None if there is none."""
        try:
            return load_file(store.fetch_file(self._file))
        except (FileNotFoundError, SafetensorError):
            return None

    def _write(self, made: Reference, store: CheckpointStore) -> None:
        being_written = store.directory / f".{self._file}"
        save_file(made, being_written)
        being_written.replace(store.directory / self._file)
        store.publish([self._file])
