"""The updates of the weights: learning rate, scaled loss, clipped gradients, optimizers, and the state of all that."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gpu_pipelines.tasks.checkpoint_state import AVERAGE, SCALER, State, training_state
from gpu_pipelines.training.model.gradients import unscale
from gpu_pipelines.training.model.placed_model import PlacedModel
from gpu_pipelines.training.optimization.learning_rate import schedule
from gpu_pipelines.training.optimization.optimizer import SCALE, make_optimizers
from gpu_pipelines.training.settings import TrainingSettings


class Updates:
    """Changes the weights of a model, step by step.

    Args:
        model: placed on the processes.
        settings: hyperparameters.
        total: steps of the training.
        scales: by what the learning rate of each weight is multiplied, by its name; None for 1 everywhere.
        scales_loss: whether the loss is scaled, as fp16 needs.
        device_type: cuda or cpu.
    """

    def __init__(
        self,
        model: PlacedModel,
        settings: TrainingSettings,
        total: int,
        scales: Mapping[str, float] | None,
        *,
        scales_loss: bool,
        device_type: str,
    ) -> None:
        self._model, self._settings, self._total = model, settings, total
        self._optimizers = make_optimizers(model.module, settings, scales)
        self._scaler = torch.amp.GradScaler(device_type, enabled=scales_loss)
        self._norms: list[torch.Tensor] = []
        self._listed: State | None = None

    def begin(self, step: int) -> float:
        """Sets the learning rate of a step, from 0, and returns it."""
        settings = self._settings
        factor = schedule(settings.learning_rate_schedule, step, self._total, settings.warmup_steps)
        rate = settings.learning_rate * factor
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get(SCALE, 1.0)
        return rate

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of a loss to those of the step."""
        self._scaler.scale(loss).backward()

    def apply(self, step: int) -> None:
        """Changes the weights by the gradients of a step, from 0, and their average."""
        unscale(self._scaler, self._optimizers)
        norm = self._model.gradients.clip(self._settings.gradient_clip)
        if not self._scaler.is_enabled():  # the scaler itself looks, and leaves out an update
            self._norms.append(norm)
        for optimizer in self._optimizers:
            self._scaler.step(optimizer)
            optimizer.zero_grad()
        self._scaler.update()
        if self._model.average is not None:
            self._model.average.update(step)

    def first_not_finite(self) -> int | None:
        """Which of the updates since the last call was the first with gradients that were no numbers, from 0.

        None if none was. It waits for the device, and is the same on all processes.
        """
        norms, self._norms = self._norms, []
        finite = torch.stack(norms).isfinite().tolist() if norms else []
        return None if all(finite) else finite.index(False)

    def state(self) -> State:
        """The tensors of a checkpoint; they stay the same ones, so that they are listed once."""
        if self._listed is None:
            self._listed = training_state(self._model.module, self._optimizers)
            if self._model.average is not None:
                self._listed[AVERAGE] = self._model.average.tensors
            if self._scaler.is_enabled():
                self._listed[SCALER] = {"scale": torch.zeros(()), "growth_tracker": torch.zeros(())}
        if self._scaler.is_enabled():
            now = self._scaler.state_dict()
            self._listed[SCALER]["scale"].fill_(now["scale"])
            self._listed[SCALER]["growth_tracker"].fill_(now["_growth_tracker"])
        return self._listed

    def continue_from_state(self) -> None:
        """Takes over what was read into the tensors of `state` and is held elsewhere."""
        if self._listed is not None and self._scaler.is_enabled():
            found = self._listed[SCALER]
            tracker = int(found["growth_tracker"].item())
            now = {**self._scaler.state_dict(), "scale": found["scale"].item(), "_growth_tracker": tracker}
            self._scaler.load_state_dict(now)

    def begin_anew(self) -> None:
        """Forgets the states of the optimizers, which the reader of a damaged checkpoint may have made."""
        self._listed = None
        for optimizer in self._optimizers:
            optimizer.state.clear()
