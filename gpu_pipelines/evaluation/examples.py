"""A few rows of `test` as a server gets them, with the predictions of the model that is exported."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.evaluation.models import Loaded
from gpu_pipelines.reports.page import png_bytes
from gpu_pipelines.tasks.batch_encoding import BatchEncoder

EXAMPLES_KEPT = 4
#: Rows that are looked at for texts that are encoded again as they were; cut ones and unknown words are not.
ROWS_TRIED = 64
#: A prompt is short, so that any server takes it.
PROMPT_CHARACTERS = 200


def examples_of(loaded: Loaded, dataset: Dataset, device: torch.device) -> Examples | None:
    """Predicts a few rows of `test`; None for data of which a server would not know what to do with it.

    Args:
        loaded: the model as it is exported, on `device`, in evaluation mode.
        dataset: the one that it was evaluated on.
        device: where to run it.
    """
    test, task = dataset.split("test"), dataset.manifest.task
    tried = np.unique(np.linspace(0, len(test) - 1, min(len(test), ROWS_TRIED)).astype(int))
    rows = test.take(tried)
    tokenizer = dataset.manifest.tokenizer
    if task == "image_classification" and "image" in rows:
        instances = [{"b64": base64.b64encode(png_bytes(image)).decode("ascii")} for image in rows["image"]]
        columns = [{name: values[[number]] for name, values in rows.items()} for number in range(len(tried))]
    elif tokenizer is None or task not in ("text_classification", "causal_lm"):
        return None
    elif task == "text_classification":
        instances, columns = _texts(rows, dataset.directory / tokenizer)
    else:
        instances, columns = _prompts(rows, dataset.directory / tokenizer)
    chosen = np.unique(np.linspace(0, len(instances) - 1, min(len(instances), EXAMPLES_KEPT)).astype(int))
    with torch.inference_mode():
        batches = [loaded.recipe.batch(columns[number], device) for number in chosen]
        predicted = [loaded.recipe.predict(loaded.model, batch).float().cpu().numpy()[0] for batch in batches]
    kept = [(instances[n], row) for n, row in zip(chosen, predicted, strict=True) if np.isfinite(row).all()]
    predictions = [_of_classes(row, loaded.labels) if loaded.labels else _of_tokens(row) for _, row in kept]
    return Examples(task, [instance for instance, _ in kept], predictions) if kept else None


def _of_classes(probabilities: np.ndarray, labels: list[str]) -> dict[str, Any]:
    scores = dict(zip(labels, probabilities.astype(float).tolist(), strict=True))
    return {"label": labels[int(probabilities.argmax())], "scores": scores}


def _of_tokens(sums: np.ndarray) -> dict[str, Any]:
    return {"loss": float(sums[0] / sums[1]), "tokens": int(sums[1])}


Columns = dict[str, np.ndarray]


def _texts(rows: Columns, directory: Path) -> tuple[list[dict[str, Any]], list[Columns]]:
    """Texts whose tokens are those of their rows, and these rows."""
    texts = _decoded([ids[:length] for ids, length in zip(rows["input_ids"], rows["length"], strict=True)], directory)
    encoded = BatchEncoder(directory).classified(texts, rows["input_ids"].shape[1])
    same = [
        number
        for number, tokens in enumerate(encoded)
        if np.array_equal(tokens, rows["input_ids"][number, : rows["length"][number]])
    ]
    return [{"text": texts[n]} for n in same], [{name: values[[n]] for name, values in rows.items()} for n in same]


def _prompts(rows: Columns, directory: Path) -> tuple[list[dict[str, Any]], list[Columns]]:
    """Beginnings of the first document of each row, and rows of their tokens, all but the first of which are scored."""
    decoded = _decoded([_first(*row) for row in zip(rows["input_ids"], rows["position_ids"], strict=True)], directory)
    prompts = list(dict.fromkeys(text[:PROMPT_CHARACTERS].strip() for text in decoded))
    made = []
    width = rows["input_ids"].shape[1]
    for prompt, encoded in zip(prompts, BatchEncoder(directory).completions([(p, "") for p in prompts]), strict=True):
        tokens = encoded.tokens[encoded.targets == 0]
        if prompt and 2 <= len(tokens) <= width:
            made.append((prompt, _row_of(tokens)))
    return [{"prompt": prompt} for prompt, _ in made], [columns for _, columns in made]


def _first(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The tokens of the first document of a row."""
    starts = np.flatnonzero(positions == 0)
    return tokens[: starts[1]] if len(starts) > 1 else tokens


def _row_of(tokens: np.ndarray) -> Columns:
    positions = np.arange(len(tokens), dtype=np.int32)
    return {
        "input_ids": tokens[None],
        "loss_mask": np.ones((1, len(tokens)), dtype=np.uint8),
        "position_ids": positions[None],
    }


def _decoded(tokens: list[np.ndarray], directory: Path) -> list[str]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return tokenizer.decode_batch([each.tolist() for each in tokens], skip_special_tokens=True)
