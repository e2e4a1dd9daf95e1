"""Rows of test as requests to a server, with what a model predicts for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.models.loading import Loaded
from gpu_pipelines.evaluation.scoring import Scoring

EXAMPLES_KEPT = 4
#: Rows that are looked at for some that can be sent; see `Scoring.examples`.
ROWS_TRIED = 64
#: Share of a prediction that it may differ by in a batch of another size, which rounds otherwise, in fp32.
_SAME = 0.01


def padding_counts(loaded: Loaded, rows: Mapping[str, np.ndarray], device: torch.device) -> bool:
    """Whether a model's prediction for the shortest of some texts changes if the longest is beside it.

    FNet has no mask for padding; Nyströmformer and ConvBERT take means over it, or convolve it.

    Args:
        loaded: the model, on `device`, in evaluation mode.
        rows: of the dataset; none of others than texts are looked at, nor a model in 16 bits, which rounds as much.
        device: where to run it.
    """
    lengths = rows.get("length") if "input_ids" in rows else rows.get("tokens_length")
    if lengths is None or any(weight.dtype.itemsize == 2 for weight in loaded.model.parameters()):
        return False
    both, found = [int(lengths.argmin()), int(lengths.argmax())], []
    with torch.inference_mode():
        for some in (both[:1], both):
            batch = loaded.recipe.batch({name: values[some] for name, values in rows.items()}, device)
            found.append(loaded.recipe.predict(loaded.model, batch)[0].float().nan_to_num())
    alone, beside = found
    # Of tags there are as many as tokens of the longest row.
    return bool((alone - beside[: len(alone)]).abs().max() > _SAME * alone.abs().max())


def examples_of(loaded: Loaded, dataset: Dataset, scoring: Scoring, device: torch.device) -> Examples | None:
    """A few rows of `test` as requests to a server, with the predictions of a model.

    None for data that a server could not use.

    Args:
        loaded: the exported model, on `device`, in evaluation mode.
        dataset: the one that it was evaluated on.
        scoring: of the dataset.
        device: where to run it.

    Raises:
        UserError: its predictions are not finite numbers.
    """
    test = dataset.split("test")
    tried = np.unique(np.linspace(0, len(test) - 1, min(len(test), ROWS_TRIED)).astype(int))
    rows = test.take(tried)
    sent = scoring.examples(rows)
    if sent is None:
        return None
    if padding_counts(loaded, rows, device):
        print(
            f"warning: what {type(loaded.model).__name__} predicts for a text depends on how long the others of its "
            "batch are, as it does not leave out padding. Alone, as in a server, a text may be predicted otherwise "
            "than in these figures.",
            flush=True,
        )
    instances, columns = sent
    chosen = np.unique(np.linspace(0, len(instances) - 1, min(len(instances), EXAMPLES_KEPT)).astype(int))
    with torch.inference_mode():
        batches = [loaded.recipe.batch(columns[number], device) for number in chosen]
        predicted = [loaded.recipe.predict(loaded.model, batch).float().cpu().numpy()[0] for batch in batches]
    kept = [(instances[n], row) for n, row in zip(chosen, predicted, strict=True) if np.isfinite(row).all()]
    if instances and not kept:
        # Metrics of classes are numbers all the same: such a row counts as wrong.
        raise UserError(
            "The best of the checkpoints predicts no finite numbers for rows of test.",
            "The training has diverged; look at the training's report.",
        )
    names = loaded.labels or list(loaded.recipe.names)
    predictions = [scoring.prediction(row, names, instance) for instance, row in kept]
    return Examples(dataset.manifest.task, [instance for instance, _ in kept], predictions) if kept else None
