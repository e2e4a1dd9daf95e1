"""Attention by the lengths of documents: what the mask gives, without the mask, and without waiting for the device.

No kernel of it runs on CPUs. Logits and gradients are compared with one that attends document by document; shapes and
what is waited for are looked at with PyTorch's own operation on fake tensors, which have no values.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_pipelines.tasks import packed_attention
from gpu_pipelines.tasks.packed_attention import _FAMILIES, _GROUPED, NAME, OFFSETS, by_length, fits, offsets_of
from gpu_pipelines.training.model.recomputing import recompute_activations

ROWS, TOKENS, WORDS = 3, 24, 40
LENGTHS = ((9, 1, 14), (24,), (3, 3, 3, 8, 7))
POSITIONS = np.stack([np.concatenate([np.arange(length) for length in row]) for row in LENGTHS])
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": TOKENS,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
MORE: dict[str, dict[str, Any]] = {
    "gpt2": {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "mistral": {"sliding_window": 5},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "smollm3": {"no_rope_layer_interval": 2},
    "starcoder2": {"sliding_window": None, "attention_dropout": 0.0, "embedding_dropout": 0.0, "residual_dropout": 0.0},
}


def by_documents(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What `varlen_attn` is documented to give, one document after another."""
    assert max_q == max_k >= max(end - start for start, end in pairwise(cu_seq_q.tolist()))
    is_grouped = query.shape[1] != key.shape[1]
    assert enable_gqa == (is_grouped and bool(_GROUPED))
    assert window_size[1] == 0, "causal"
    found = []
    for start, end in pairwise(cu_seq_q.tolist()):
        parts = (each[start:end].transpose(0, 1) for each in (query, key, value))
        places = torch.arange(end - start)
        back = places[:, None] - places
        seen = (back >= 0) & ((back <= window_size[0]) | (window_size[0] == -1))
        attended = nn.functional.scaled_dot_product_attention(*parts, seen, scale=scale, enable_gqa=is_grouped)
        found.append(attended.transpose(0, 1))
    return torch.cat(found)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there was a kernel."""
    monkeypatch.setattr(packed_attention, "_has_kernel", lambda device: True)


def model_of(family: str, **changes: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SIZES, **MORE.get(family, {}), **changes)
    return AutoModelForCausalLM.from_config(config)


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(WORDS, (ROWS, TOKENS), generator=generator),
        "position_ids": torch.from_numpy(POSITIONS),
        OFFSETS: torch.from_numpy(offsets_of(POSITIONS)),
    }


def outputs(model: nn.Module, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    told = by_length(model, rows)
    return model(input_ids=rows["input_ids"], position_ids=rows["position_ids"], use_cache=False, **told).logits


def learned(model: nn.Module) -> list[torch.Tensor]:
    """Logits, and the gradients of all weights."""
    logits = outputs(model.train(), batch())
    (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum().backward()
    return [logits.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]


@pytest.mark.slow_but_for("llama", "mistral", "mixtral", "qwen3")
@pytest.mark.parametrize("family", sorted(_FAMILIES))
def test_it_gives_the_logits_and_gradients_of_the_mask(
    family: str, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None
) -> None:
    called: list[int] = []
    monkeypatch.setattr(
        packed_attention, "varlen_attn", lambda *given, **named: called.append(1) or by_documents(*given, **named)
    )
    # In float64, so that what is compared is the attention and not a processor's way of rounding sums; for that the
    # experts have no grouped multiplication.
    model = model_of(family, experts_implementation="eager").double()
    by_lengths = learned(model)
    assert len(called) == SIZES["num_hidden_layers"]
    assert model.config._attn_implementation == NAME
    monkeypatch.setattr(packed_attention, "_has_kernel", lambda device: False)
    by_mask = learned(model_of(family, experts_implementation="eager").double())
    assert len(by_mask) == len(by_lengths) > 10
    for one, other in zip(by_lengths, by_mask, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    apart = {**batch(), "position_ids": torch.arange(TOKENS).expand(ROWS, -1)}
    assert not torch.allclose(outputs(model, apart), by_mask[0], atol=1e-3), "neighbours would be noticed"
    assert model.config._attn_implementation == "sdpa", "what goes by the mask again has one"


class Watch(TorchDispatchMode):
    """Notes whether the host waits for a value, and whether any tensor is a square of tokens."""

    waits = has_square = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.waits |= func is torch.ops.aten._local_scalar_dense.default
        for each in found if isinstance(found, (tuple, list)) else (found,):
            self.has_square |= isinstance(each, torch.Tensor) and each.shape[-2:] == (TOKENS, TOKENS)
        return found


@pytest.fixture
def fake() -> Iterator[FakeTensorMode]:
    """Tensors have no values: what waits for one raises."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
def test_a_step_with_the_operation_itself_runs_through_and_makes_no_square(
    family: str, recompute: bool, on_a_gpu: None, fake: FakeTensorMode
) -> None:
    model = model_of(family)
    if recompute:
        recompute_activations(model, list(model.model.layers), selective=True)
    with Watch() as watch, torch.autocast("cpu", torch.bfloat16):
        logits = outputs(model.train(), batch())
        logits.sum().backward()
    assert logits.shape == (ROWS, TOKENS, WORDS)
    assert all(weight.grad is not None for weight in model.parameters())
    assert not watch.has_square


@pytest.mark.parametrize("kernel", [True, False])
def test_the_mask_alone_is_a_square_and_waits_for_the_device(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention, "_has_kernel", lambda device: kernel)
    monkeypatch.setattr(packed_attention, "varlen_attn", lambda query, *given, **named: query * 1)
    model, rows = model_of("llama"), batch()
    with Watch() as watch:
        outputs(model, rows)
    assert (watch.waits, watch.has_square) == (not kernel, not kernel)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention_dropout": 0.1}),
        ("gpt2", {"attn_pdrop": 0.1}),
        ("llama", {"head_dim": 20}),
        ("llama", {"head_dim": 264}),
        ("llama", {"attn_implementation": "eager"}),
        ("gemma2", {}),
        ("gpt_oss", {}),
    ],
)
def test_a_model_whose_attention_is_another_keeps_its_mask(
    family: str, changes: dict[str, Any], on_a_gpu: None
) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(family, **{**SIZES, **MORE.get(family, {}), **changes})
    config._attn_implementation = changes.get("attn_implementation", "sdpa")
    assert not fits(config)


def test_offsets_are_where_documents_begin_and_as_many_as_a_power_of_two() -> None:
    found = offsets_of(POSITIONS)
    assert found.dtype == np.int32
    ends = np.cumsum([length for row in LENGTHS for length in row])
    assert found[: len(ends) + 1].tolist() == [0, *ends]
    assert (found[len(ends) :] == POSITIONS.size).all()
    assert len(found) == 16 + 1
    assert offsets_of(np.arange(5)[None]).tolist() == [0, 5]
