"""The loss on val: what it is, the best so far, and whether it still comes down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.distributed as dist

from gpu_pipelines.artifacts.checkpoint import CheckpointInfo
from gpu_pipelines.artifacts.dataset import Split
from gpu_pipelines.tasks.recipe import SUMS, Batch, Recipe
from gpu_pipelines.training.metrics import Losses
from gpu_pipelines.training.model.placed_model import PlacedModel
from gpu_pipelines.training.rows.batches import validation_batches
from gpu_pipelines.training.settings import TrainingSettings


class Validation:
    """Validates a model on the rows of val.

    Args:
        model: placed on the processes.
        recipe: makes batches of rows.
        rows: the split val.
        settings: hyperparameters.
        device: this process's.

    Attributes:
        rows: the split val.
        reference: for a recipe with a reference, the model's output for each row before the first step (rows, columns).
        best: the lowest loss, and its step; None before the first.
    """

    def __init__(
        self, model: PlacedModel, recipe: Recipe, rows: Split, settings: TrainingSettings, device: torch.device
    ) -> None:
        self._model, self._recipe, self.rows, self._device = model, recipe, rows, device
        self._rows_at_once = settings.rows_at_once(dist.get_world_size())
        self._patience = settings.early_stopping_patience
        self.reference: np.ndarray | None = None
        self.best: tuple[float, int] | None = None

    def loss(self, step: int, gives_up: Callable[[], bool] = lambda: False) -> float | None:
        """The loss after a step, the same on all processes, all of which call this; None if they gave up.

        Args:
            step: that has been taken.
            gives_up: called by all processes after each batch, with the same answer; True ends the validation.
        """
        losses = Losses(self._device)
        with self._model.evaluating():
            sums = {SUMS: self._model.sums(self._batches())} if self._recipe.has_sums else {}
            for batch, loss_tokens in self._batches():
                losses.add(self._model.loss_without_gradients(batch | sums) * loss_tokens, loss_tokens)
                if gives_up():
                    return None
        losses.end_entry()
        (loss,) = losses.means()
        if math.isfinite(loss) and (self.best is None or loss < self.best[0]):
            self.best = (loss, step)
        return loss

    def continue_from(self, info: CheckpointInfo) -> None:
        """Takes the best so far from a checkpoint."""
        if info.best_step is not None and info.best_val_loss is not None:
            self.best = (info.best_val_loss, info.best_step)

    def has_stalled(self, step: int, between: int) -> bool:
        """Whether the loss has not come down for as many checkpoints as early stopping waits for.

        Args:
            step: that has been taken.
            between: steps from one checkpoint to the next.
        """
        # Only at a checkpoint: the best one may be of another interval, and between two, the last steps would be lost.
        if not self._patience or self.best is None or step % between:
            return False
        if step // between - self.best[1] // between < self._patience:
            return False
        if dist.get_rank() == 0:
            print(f"stopping early: the loss on val was lowest, {self.best[0]:.4f}, at step {self.best[1]}", flush=True)
        return True

    def _batches(self) -> Iterator[tuple[Batch, int]]:
        return validation_batches(self._recipe, self.rows, self._rows_at_once, self._device, self.reference)
