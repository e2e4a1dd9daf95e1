"""Weights that are left as they are: named by patterns, and not trained."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

from gpu_pipelines.errors import UserError, some_of


def freeze(model: nn.Module, patterns: str) -> None:
    """Freezes the weights of a model whose names match one of some patterns, in place.

    The names are those of `named_parameters`, with or without the part that all weights of a backbone begin with: a
    pattern `embeddings.*` is for `bert.embeddings.word_embeddings.weight` too.

    Args:
        model: made by a recipe's `build_model`.
        patterns: as a shell has them (`*`, `?`, `[0-5]`), with commas between them.

    Raises:
        UserError: a pattern matches no weight, or together they match all of them.
    """
    weights = list(model.named_parameters(remove_duplicate=False))
    backbone = f"{getattr(model, 'base_model_prefix', '') or '.'}."
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        matched = [weight for name, weight in weights if _is_named(name, name.removeprefix(backbone), pattern)]
        if not matched:
            raise UserError(
                f"freeze names {pattern!r}, but no weight of the model has such a name.",
                f"Its weights are named like {some_of(_spread([name for name, _ in weights]), most=8)}.",
            )
        for weight in matched:
            weight.requires_grad_(False)
    if not any(weight.requires_grad for _, weight in weights):
        raise UserError(
            f"freeze is {patterns!r}, which are all weights of the model; none would be trained.",
            "Leave its head, or some layers, out of it.",
        )


def _is_named(name: str, short: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(short, pattern)


def _spread(names: list[str]) -> list[str]:
    """A few of all names, from the first to the last."""
    return [names[number * (len(names) - 1) // 7] for number in range(8)] if len(names) > 8 else names
