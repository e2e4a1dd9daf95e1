"""Rows of a language model that hold several completions, taken apart: each is scored for itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset, Split

Columns = dict[str, np.ndarray]
_FEATURES = {"input_ids", "loss_mask", "position_ids"}
# Rows in which prompts are looked for.
_LOOKED_AT = 256


def holds_completions(dataset: Dataset) -> bool:
    """Whether rows are prompts and completions: tokens that are not scored stand before tokens that are."""
    if not set(dataset.manifest.features) >= _FEATURES:
        return False
    split = dataset.split("test")
    for columns in split.columns(0, min(_LOOKED_AT, len(split))):
        scored, positions = columns["loss_mask"] != 0, columns["position_ids"]
        # The first token of a text is never scored; the second one is, unless it belongs to a prompt.
        if ((~scored[:, 1:-1]) & (positions[:, 1:-1] > 0) & scored[:, 2:] & (positions[:, 2:] > 0)).any():
            return True
    return False


def documents_of(columns: Columns) -> Iterator[tuple[int, slice]]:
    """Row and place of each document that has tokens to score, in order."""
    for row, (positions, mask) in enumerate(zip(columns["position_ids"], columns["loss_mask"], strict=True)):
        ends = [*np.flatnonzero(positions == 0).tolist(), len(positions)]
        for start, stop in pairwise(ends):
            if mask[start + 1 : stop].any():
                yield row, slice(start, stop)


def taken_apart(columns: Columns) -> Columns:
    """Rows of one document each, as wide as the longest; behind shorter ones stands padding that is not scored."""
    places = list(documents_of(columns))
    width = max((place.stop - place.start for _, place in places), default=2)
    shape = (len(places), width)
    apart = {name: np.zeros(shape, columns[name].dtype) for name in _FEATURES}
    apart["position_ids"][:] = np.arange(width)
    for number, (row, place) in enumerate(places):
        length = place.stop - place.start
        for name in ("input_ids", "loss_mask"):
            apart[name][number, :length] = columns[name][row, place]
    return apart


def all_documents(split: Split) -> tuple[list[int], list[slice]]:
    """The row of each document of a split and its place in the row, in the order in which they are scored."""
    rows: list[int] = []
    places: list[slice] = []
    first = 0
    for columns in split.columns(0, len(split)):
        for row, place in documents_of(columns):
            rows.append(first + row)
            places.append(place)
        first += len(columns["input_ids"])
    return rows, places
