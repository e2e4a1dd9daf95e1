"""What the report shows of texts: how long they are, and some of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset

BARS = 10
EXAMPLES_SHOWN = 8
CHARACTERS_SHOWN = 400
ROWS_LOOKED_AT = 20_000


def text_lengths(dataset: Dataset) -> list[dict[str, Any]]:
    """A histogram of the texts of train by their tokens; of packed rows, of the documents or pieces in them."""
    longest = dataset.manifest.features["input_ids"].shape[0]
    lengths = _lengths_in_train(dataset)
    edges = np.unique(np.linspace(0, longest, BARS + 1).round().astype(int))
    counts, _ = np.histogram(lengths, bins=[*edges[:-1] + 1, edges[-1] + 1])
    return [
        {"range": f"{low + 1}–{high}", "texts": int(count), "share": round(100 * count / max(1, counts.max()), 1)}
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def padding_share(dataset: Dataset) -> float:
    """Share of the tokens of train that only fill rows up, between 0 and 1."""
    longest = dataset.manifest.features["input_ids"].shape[0]
    rows = min(len(dataset.split("train")), ROWS_LOOKED_AT)
    return 1 - float(_lengths_in_train(dataset).sum()) / (rows * longest)


def text_examples(dataset: Dataset) -> list[dict[str, str]]:
    """Rows spread over train, decoded, with their class or, of a language model, where they came from."""
    from tokenizers import Tokenizer

    manifest = dataset.manifest
    tokenizer = Tokenizer.from_file(str(dataset.directory / str(manifest.tokenizer) / "tokenizer.json"))
    train = dataset.split("train")
    rows = np.unique(np.linspace(0, len(train) - 1, EXAMPLES_SHOWN).astype(int))
    taken = train.take(rows)
    examples = []
    for number, source in enumerate(train.sources(rows.tolist())):
        tokens = taken["input_ids"][number]
        if "length" in taken:
            tokens = tokens[: taken["length"][number]]
        text = tokenizer.decode(tokens.tolist(), skip_special_tokens="length" in taken)
        name = manifest.labels[taken["label"][number]] if manifest.labels else source
        examples.append({"name": name, "text": text[:CHARACTERS_SHOWN] + ("…" if len(text) > CHARACTERS_SHOWN else "")})
    return examples


def _lengths_in_train(dataset: Dataset) -> np.ndarray:
    train = dataset.split("train")
    first = train.columns(0, min(len(train), ROWS_LOOKED_AT))
    return np.concatenate([_lengths(columns) for columns in first] or [np.zeros(0, int)])


def _lengths(columns: dict[str, np.ndarray]) -> np.ndarray:
    if "length" in columns:
        return columns["length"]
    positions, mask = columns["position_ids"].ravel(), columns["loss_mask"].ravel()
    starts = np.flatnonzero(positions == 0)
    scored = np.add.reduceat(mask.astype(int), starts)
    return np.diff([*starts, len(positions)])[scored > 0]  # padding is scored nowhere
