"""The embedding of a row: the input of the model's last layer, taken while the model predicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

from gpu_pipelines.serving.batching import Unfinished
from gpu_pipelines.serving.predictor import Predictor


def predicted_with_embeddings(predictor: Predictor, rows: Sequence[Any]) -> tuple[list[Any], np.ndarray | None]:
    """The predictions of some rows, and their embeddings.

    Args:
        predictor: the model.
        rows: as for `predict`.

    Returns:
        The predictions, and float32 (rows, numbers); None for a model that does not end with a linear layer.
    """
    network = predictor.network
    if not isinstance(network, nn.Module):
        return predictor.predict(rows), None
    with _last_input(network) as seen:
        predictions = predictor.predict(rows)
    predictions = [getattr(each, "scored", None) if isinstance(each, Unfinished) else each for each in predictions]
    return predictions, _pooled(seen[-1], rows) if seen else None


@contextmanager
def _last_input(network: nn.Module) -> Iterator[list[Tensor]]:
    """During a prediction, holds the input of the linear layer that ran last."""
    seen: list[Tensor] = []

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            seen[:] = [given[0].detach()]

    hooks = [module.register_forward_pre_hook(note) for module in network.modules() if isinstance(module, nn.Linear)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _pooled(given: Tensor, rows: Sequence[Any]) -> np.ndarray | None:
    """One vector for each row; for tokens their mean, without the padding."""
    if given.ndim not in (2, 3) or len(given) != len(rows):
        return None
    if given.ndim == 3:
        lengths = [len(getattr(row, "tokens", ())) or given.shape[1] for row in rows]
        given_rows = [tokens[:length].float().mean(dim=0) for tokens, length in zip(given, lengths, strict=True)]
        return np.stack([each.cpu().numpy() for each in given_rows])
    found: np.ndarray = given.float().cpu().numpy()
    return found
