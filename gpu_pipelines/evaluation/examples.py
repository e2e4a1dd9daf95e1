"""A few rows of `test` as a server gets them, with the predictions of the model that is exported."""

from __future__ import annotations

import numpy as np
import torch

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.evaluation.models import Loaded
from gpu_pipelines.evaluation.scoring import Scoring

EXAMPLES_KEPT = 4
#: Rows that are looked at for some that can be sent; see `Scoring.examples`.
ROWS_TRIED = 64


def examples_of(loaded: Loaded, dataset: Dataset, scoring: Scoring, device: torch.device) -> Examples | None:
    """Predicts a few rows of `test`; None for data of which a server would not know what to do with it.

    Args:
        loaded: the model as it is exported, on `device`, in evaluation mode.
        dataset: the one that it was evaluated on.
        scoring: of the dataset.
        device: where to run it.
    """
    test = dataset.split("test")
    tried = np.unique(np.linspace(0, len(test) - 1, min(len(test), ROWS_TRIED)).astype(int))
    sent = scoring.examples(test.take(tried))
    if sent is None:
        return None
    instances, columns = sent
    chosen = np.unique(np.linspace(0, len(instances) - 1, min(len(instances), EXAMPLES_KEPT)).astype(int))
    with torch.inference_mode():
        batches = [loaded.recipe.batch(columns[number], device) for number in chosen]
        predicted = [loaded.recipe.predict(loaded.model, batch).float().cpu().numpy()[0] for batch in batches]
    kept = [(instances[n], row) for n, row in zip(chosen, predicted, strict=True) if np.isfinite(row).all()]
    predictions = [scoring.prediction(row, loaded.labels, instance) for instance, row in kept]
    return Examples(dataset.manifest.task, [instance for instance, _ in kept], predictions) if kept else None
