"""Rows of a dataset as a server gets them, for the examples that are kept with a model."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.reports.page import png_bytes
from gpu_pipelines.tasks.batch_encoding import BatchEncoder, rows_in_columns
from gpu_pipelines.tasks.text_tokenizer import load_tokenizer

Columns = dict[str, np.ndarray]
#: The fields of an instance of two texts, as `pipeline("text-classification")` of transformers takes them.
PAIR = ("text", "text_pair")
#: A prompt is short, so that any server takes it.
PROMPT_CHARACTERS = 200


def rows_to_send(rows: Columns, tokenizer: Path | None) -> tuple[list[dict[str, Any]], list[Columns]] | None:
    """Images or texts as a server gets them, and the columns of each; None of rows that are neither.

    Args:
        rows: of a dataset.
        tokenizer: directory of the tokenizer that texts were made with.
    """
    if "image" not in rows:
        return _texts_to_send(rows, tokenizer) if tokenizer else None
    instances = [{"b64": base64.b64encode(png_bytes(image)).decode("ascii")} for image in rows["image"]]
    return instances, [{name: values[[number]] for name, values in rows.items()} for number in range(len(instances))]


def _texts_to_send(rows: Columns, tokenizer: Path) -> tuple[list[dict[str, Any]], list[Columns]]:
    """Texts, or pairs, whose tokens are those of their rows, and these rows; without cut ones and unknown words.

    Args:
        rows: with `input_ids` and `length`.
        tokenizer: directory of the tokenizer that they were made with.
    """
    encoder, wanted = BatchEncoder(tokenizer), rows_in_columns(rows)
    tokens = [row.tokens for row in wanted]
    texts: list[Any] = decoded(tokens, tokenizer)
    if encoder.takes_pairs:
        texts = _pairs(tokens, encoder.special_tokens, tokenizer)
    told = [number for number, text in enumerate(texts) if text is not None]
    encoded = encoder.rows([texts[number] for number in told], rows["input_ids"].shape[1])
    same = [n for n, row in zip(told, encoded, strict=True) if np.array_equal(row.tokens, tokens[n])]
    return [as_instance(texts[n]) for n in same], [{name: values[[n]] for name, values in rows.items()} for n in same]


def prompts_to_send(texts: list[str], tokenizer: Path, longest: int) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Beginnings of texts as the server of a language model takes them, each once, and the tokens of each.

    Args:
        texts: whose beginnings are prompts.
        tokenizer: its directory.
        longest: tokens above which one is left out.
    """
    prompts = list(dict.fromkeys(text[:PROMPT_CHARACTERS].strip() for text in texts))
    encoded = BatchEncoder(tokenizer).completions([(prompt, "") for prompt in prompts])
    both = [(prompt, each.tokens[each.targets == 0]) for prompt, each in zip(prompts, encoded, strict=True) if prompt]
    usable = [(prompt, tokens) for prompt, tokens in both if 2 <= len(tokens) <= longest]
    return [{"prompt": prompt} for prompt, _ in usable], [tokens for _, tokens in usable]


def as_instance(text: str | tuple[str, str]) -> dict[str, str]:
    """A text, or a pair, as it is sent to a server."""
    return {"text": text} if isinstance(text, str) else dict(zip(PAIR, text, strict=True))


def _pairs(rows: list[np.ndarray], special: frozenset[int], directory: Path) -> list[tuple[str, str] | None]:
    """The two texts of each row, which special tokens part; None where these are in a text too, for unknown words."""
    parts = []
    for tokens in rows:
        places = np.flatnonzero(~np.isin(tokens, list(special)))
        parts.append(np.split(tokens[places], np.flatnonzero(np.diff(places) > 1) + 1))
    texts = iter(decoded([part for each in parts if len(each) == 2 for part in each], directory))
    return [(next(texts), next(texts)) if len(each) == 2 else None for each in parts]


def decoded(tokens: list[np.ndarray], directory: Path) -> list[str]:
    """The texts that some tokens are, without the special ones."""
    return load_tokenizer(directory).decode_batch([each.tolist() for each in tokens], skip_special_tokens=True)
