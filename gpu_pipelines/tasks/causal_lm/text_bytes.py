"""Bytes of text that the scored tokens of each row are, for bits per byte: a loss that tokenizers do not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Split
from gpu_pipelines.tasks.causal_lm.documents import all_documents


def scored_bytes(split: Split, tokenizer_directory: Path, apart: bool) -> np.ndarray:
    """UTF-8 bytes of the scored tokens, float64 (rows or documents,); special tokens are no text.

    Args:
        split: of a language model's dataset.
        tokenizer_directory: the tokenizer that it was made with.
        apart: whether documents are scored, not rows.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_directory / "tokenizer.json"))
    of_tokens = _bytes_of_tokens(tokenizer)
    rows = []
    for columns in split.columns(0, len(split)):
        tokens = columns["input_ids"]
        scored = (columns["loss_mask"] != 0) & (columns["position_ids"] != 0)
        if of_tokens is not None:
            rows.append(np.where(scored, of_tokens[tokens], 0))
        else:
            # What a token adds to a text depends on its neighbours; it is spread over the scored ones of the row.
            texts = tokenizer.decode_batch([row[mask].tolist() for row, mask in zip(tokens, scored, strict=True)])
            sizes = np.array([len(text.encode("utf-8")) for text in texts])
            rows.append(scored * (sizes / np.maximum(scored.sum(axis=1), 1))[:, None])
    found = np.concatenate(rows).astype(np.float64)
    if not apart:
        return found.sum(axis=1)
    return np.array([found[row, place].sum() for row, place in zip(*all_documents(split), strict=True)])


def _bytes_of_tokens(tokenizer: Any) -> np.ndarray | None:
    """Bytes of each token of a byte-level tokenizer, in whose alphabet each letter is one byte; None for others."""
    if "ByteLevel" not in json.dumps(json.loads(tokenizer.to_str()).get("decoder")):
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    sizes = np.zeros(max(vocabulary.values()) + 1)
    for token, number in vocabulary.items():
        sizes[number] = len(token)
    for number, added in tokenizer.get_added_tokens_decoder().items():
        sizes[number] = 0 if added.special else len(added.content.encode("utf-8"))
    return sizes
