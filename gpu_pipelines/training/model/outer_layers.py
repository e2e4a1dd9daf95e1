"""The layers that a model of tokens begins and ends with, often its largest."""

from __future__ import annotations

from torch import nn


def table_and_head(model: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
    """Embedding and head of a transformers model, each None if it says that it has none.

    Models of images have no such layer, or something else under that name.
    """
    found: list[nn.Module | None] = []
    for name in ("get_input_embeddings", "get_output_embeddings"):
        try:
            found.append(getattr(model, name)())
        except (AttributeError, NotImplementedError):
            found.append(None)
    return found[0], found[1]
