"""The attention implementation of a model of transformers, by the names of the parameter `attention`."""

from __future__ import annotations

from typing import Any

from torch import nn

from gpu_pipelines.errors import UserError, first_line

#: What transformers calls them.
NAMES = {"flash_attention_2": "flash_attention_2", "sdpa": "sdpa", "flex": "flex_attention", "eager": "eager"}


def use_attention(model: nn.Module, asked: str) -> None:
    """Makes a model use an implementation.

    Args:
        model: as it was built, with or without weights.
        asked: flash_attention_2, sdpa, flex or eager.

    Raises:
        UserError: the model, or the installed packages, do not have it.
    """
    name, change, kind = NAMES[asked], getattr(model, "set_attn_implementation", None), type(model).__name__
    if change is None:
        raise UserError(f"attention is {asked}, and {kind} has no choice of attention.", "Give auto.")
    try:
        change(name)
    except (ValueError, ImportError) as error:
        raise UserError(f"attention is {asked}: {first_line(error)}", "Give auto, or sdpa.") from None
    config: Any = model.config
    if config._attn_implementation != name:
        raise _not_had(model, asked)


def require_attention(model: nn.Module, asked: str) -> None:
    """Checks that a model has an implementation, wherever it will be trained; the model may use it from then on.

    Args:
        model: as it was built, with or without weights.
        asked: as `use_attention` takes it, or auto.

    Raises:
        UserError: it does not have it.
    """
    if asked == "flash_attention_2":  # a package that only the machine of the training needs
        if not getattr(model, "_supports_flash_attn", False):
            raise _not_had(model, asked)
    elif asked != "auto":
        use_attention(model, asked)


def _not_had(model: nn.Module, asked: str) -> UserError:
    return UserError(f"attention is {asked}, which {type(model).__name__} does not have.", "Give auto.")
