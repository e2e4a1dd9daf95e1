"""The attention of a model while its operations and activations are counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

#: What transformers calls flex attention, and what stands in its place while a model is watched.
_FLEX, _WATCHED = "flex_attention", "gpu_pipelines_watched"


@contextmanager
def watchable(model: nn.Module) -> Iterator[None]:
    """Lets a model compute by SDPA where it does by flex, which PyTorch cannot call while operations are watched.

    Args:
        model: maybe of transformers.
    """
    config: Any = getattr(model, "config", None)
    if getattr(config, "_attn_implementation", "") != _FLEX:
        yield
        return
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(_WATCHED, _without_soft_cap)
    AttentionMaskInterface.register(_WATCHED, sdpa_mask)
    config._attn_implementation = _WATCHED
    try:
        yield
    finally:
        config._attn_implementation = _FLEX


def _without_soft_cap(*tensors: Any, softcap: float | None = None, **told: Any) -> Any:
    """SDPA that multiplies as much as flex does, also of a model that asks for more than SDPA gives, as Gemma 2."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(*tensors, **told)
