"""Attention within the documents of packed rows: by their lengths if a GPU has a kernel for it, else with a mask.

The mask is a square for each row, which takes memory, keeps SDPA from its fastest kernels, and makes the host wait for
the device in each forward pass, as transformers looks whether there is more than one document at all.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn

from gpu_pipelines.tasks.recipe import Batch

#: What transformers calls this attention once it is registered.
NAME = "gpu_pipelines_documents"
#: What takes lengths by itself: FlashAttention 2, of the package flash-attn.
_OF_THE_PACKAGE = "flash_attention_2"
#: Where documents begin in the rows of a batch, laid end to end, and where the last one ends.
OFFSETS = "document_offsets"
#: Families of transformers that ask no more of their attention than a scale and a window. Of others it is not known:
#: soft caps and sinks, say, are no part of the kernel. A test compares each with the mask.
_FAMILIES = frozenset(
    (
        *("gpt2", "granite", "llama", "mistral", "mixtral", "olmo2", "phi3"),
        *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "starcoder2"),
    )
)
#: First compute capability that PyTorch's FlashAttention has kernels for: Ampere.
_FROM = (8, 0)
_LARGEST_HEAD, _STEP_OF_HEADS = 256, 8
#: What says that several heads share keys and values. PyTorch before 2.12 need not be told.
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}


def offsets_of(positions: np.ndarray) -> np.ndarray:
    """`OFFSETS` of rows: int32, as many as a power of two and one, so that compiled models see few shapes.

    Args:
        positions: of each token in its document; of shape (rows, tokens).
    """
    begins = np.ones(positions.shape, dtype=bool)
    begins[:, 1:] = np.diff(positions, axis=1) != 1
    found = np.flatnonzero(begins)
    places = 1 << (len(found) - 1).bit_length()
    # Documents without tokens fill it up.
    return np.concatenate([found, np.full(places + 1 - len(found), positions.size)]).astype(np.int32)


def by_length(model: nn.Module, batch: Batch, attention: str = "auto") -> dict[str, Any]:
    """Makes a model attend by the lengths of documents if it can; returns arguments for its forward pass.

    Args:
        model: a transformers model for tokens, maybe in a wrapper.
        batch: `input_ids`, and maybe `OFFSETS`.
        attention: the parameter of the training; any but `auto` leaves the model the attention that it has.

    Returns:
        Arguments; empty if it attends with a mask.
    """
    offsets = batch.get(OFFSETS)
    config: Any = getattr(model, "module", model).config
    if attention != "auto":
        has_own = offsets is not None and attention == config._attn_implementation == _OF_THE_PACKAGE
        return _lengths(batch) if has_own else {}
    if offsets is None or not (_has_kernel(batch["input_ids"].device) and fits(config)):
        if config._attn_implementation == NAME:
            config._attn_implementation = "sdpa"
        return {}
    if config._attn_implementation != NAME:
        _register()
        config._attn_implementation = NAME
    return _lengths(batch)


def _lengths(batch: Batch) -> dict[str, Any]:
    # The bound of the lengths is that of all batches: a number that changed would have models compiled anew.
    offsets, longest = batch[OFFSETS], batch["input_ids"].shape[1]
    return {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}


def fits(config: Any) -> bool:
    """Whether the kernel computes the same as a model's own attention.

    Args:
        config: of transformers.
    """
    if config.model_type not in _FAMILIES or config._attn_implementation not in ("sdpa", NAME):
        return False
    if getattr(config, "attention_dropout", 0.0) or getattr(config, "attn_pdrop", 0.0):
        return False
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return head <= _LARGEST_HEAD and head % _STEP_OF_HEADS == 0


def _has_kernel(device: torch.device) -> bool:
    """Whether the device computes it, in 16 bits, which the forward pass is then in."""
    if device.type != "cuda" or not torch.is_autocast_enabled("cuda"):
        return False
    return torch.cuda.get_device_capability(device) >= _FROM


def _register() -> None:
    from transformers import AttentionInterface

    # Without a mask of this name, transformers makes none.
    AttentionInterface.register(NAME, _attention)


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor,
    max_length_q: int,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within documents, as transformers calls it: tensors of shape (rows, heads, tokens, width)."""
    rows, heads, tokens, _width = query.shape
    # Position embeddings have made fp32 of what projections gave; SDPA would cast by itself.
    kind = torch.get_autocast_dtype(query.device.type) if torch.is_autocast_enabled(query.device.type) else query.dtype
    query, key, value = (each.transpose(1, 2).flatten(0, 1).to(kind) for each in (query, key, value))
    found: Any = varlen_attn(
        query,
        key,
        value,
        cu_seq_lens_q,
        cu_seq_lens_q,
        max_length_q,
        max_length_q,
        scale=scaling,
        window_size=(sliding_window - 1 if sliding_window else -1, 0),
        **(_GROUPED if heads != key.shape[1] else {}),
    )
    return found.view(rows, tokens, heads, -1), None
