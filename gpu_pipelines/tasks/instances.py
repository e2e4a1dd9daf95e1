"""Rows of a dataset as a server gets them, for the examples that are kept with a model."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.reports.page import png_bytes
from gpu_pipelines.tasks.batch_encoding import BatchEncoder

Columns = dict[str, np.ndarray]


def images_to_send(rows: Columns) -> tuple[list[dict[str, Any]], list[Columns]]:
    """Images as PNG in base64, and the columns of each."""
    instances = [{"b64": base64.b64encode(png_bytes(image)).decode("ascii")} for image in rows["image"]]
    return instances, [{name: values[[number]] for name, values in rows.items()} for number in range(len(instances))]


def texts_to_send(rows: Columns, tokenizer: Path) -> tuple[list[dict[str, Any]], list[Columns]]:
    """Texts whose tokens are those of their rows, and these rows; cut ones and unknown words are left out.

    Args:
        rows: with `input_ids` and `length`.
        tokenizer: directory of the tokenizer that they were made with.
    """
    texts = decoded([ids[:length] for ids, length in zip(rows["input_ids"], rows["length"], strict=True)], tokenizer)
    encoded = BatchEncoder(tokenizer).classified(texts, rows["input_ids"].shape[1])
    same = [
        number
        for number, tokens in enumerate(encoded)
        if np.array_equal(tokens, rows["input_ids"][number, : rows["length"][number]])
    ]
    return [{"text": texts[n]} for n in same], [{name: values[[n]] for name, values in rows.items()} for n in same]


def decoded(tokens: list[np.ndarray], directory: Path) -> list[str]:
    """The texts that some tokens are, without the special ones."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return tokenizer.decode_batch([each.tolist() for each in tokens], skip_special_tokens=True)
