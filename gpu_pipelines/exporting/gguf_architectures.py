"""Maps the architectures of transformers to those of GGUF: what llama.cpp has to know of them, and their weights.

Source: conversion/ of llama.cpp, with its names and shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gpu_pipelines.errors import UserError, some_of

#: The base of rotary positions in the sliding-window layers of Gemma 3; llama.cpp supports no other.
_GEMMA3_LOCAL_BASE = 10_000.0
_GELU = ("gelu_new", "gelu_pytorch_tanh")


@dataclass(frozen=True)
class Architecture:
    """An architecture that GGUF supports.

    Attributes:
        name: its name in GGUF.
        describe: writes the keys that are specific to it, from a configuration.
        problem: returns why a model of it cannot be written; empty if it can.
        changed: converts a weight to GGUF's form, by its name there.
        activations: names of transformers for the activation that llama.cpp computes: GGUF has no key for it.
    """

    name: str
    describe: Callable[[Any, Any], None]
    problem: Callable[[Any], str]
    changed: Callable[[Any, str, torch.Tensor], torch.Tensor]
    activations: tuple[str, ...] = ("silu", "swish")


def architecture_of(config: Any) -> Architecture:
    """The architecture of a model.

    Args:
        config: the configuration of transformers.

    Raises:
        UserError: GGUF has no architecture for it, or none that computes the same.
    """
    found = ARCHITECTURES.get(config.model_type)
    if found is None:
        raise UserError(
            f"Models of the kind {config.model_type!r} cannot be written as GGUF; those of these kinds can: "
            f"{some_of(sorted(ARCHITECTURES), most=len(ARCHITECTURES))}.",
            "Give --format onnx.",
        )
    if problem := _scaling_problem(config) or _activation_problem(config, found) or found.problem(config):
        raise UserError(f"This {config.model_type} model cannot be written as GGUF: {problem}.", "Give --format onnx.")
    return found


def describe(writer: Any, config: Any) -> None:
    """Writes the shape of a model, and the keys that are specific to its architecture."""
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(_longest(config))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    architecture_of(config).describe(writer, config)
    if config.model_type == "gpt2":
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = _rope(config)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if rope.get("rope_type") == "linear":
        import gguf

        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))


def weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of a model by their names in GGUF, in fp32.

    Raises:
        UserError: GGUF has no place for one.
    """
    import gguf

    config = model.config
    architecture = architecture_of(config)
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture.name], config.num_hidden_layers)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if place is None:
            raise UserError(f"GGUF has no place for the weight {name} of a {config.model_type} model.")
        yield place, architecture.changed(config, place, value.detach().float().cpu())
    if _rope(config).get("rope_type") == "llama3":
        yield "rope_freqs.weight", _llama3_factors(config)


def base_of_positions(config: Any) -> float | None:
    """The base of rotary positions; None if the model has none."""
    return _rope(config).get("rope_theta")


def _rope(config: Any) -> dict[str, Any]:
    """The rotary positions; for Gemma 3, those of the layers with full attention."""
    found = dict(getattr(config, "rope_parameters", None) or {})
    return dict(found.get("full_attention") or found)


def _scaling_problem(config: Any) -> str:
    kind = _rope(config).get("rope_type", "default")
    return "" if kind in ("default", "linear", "llama3") else f"its positions are scaled by {kind}"


def _activation_problem(config: Any, architecture: Architecture) -> str:
    entries = ("activation_function", "hidden_activation", "hidden_act")
    activation = next(getattr(config, entry) for entry in entries if hasattr(config, entry))
    return "" if activation in architecture.activations else f"its activation is {activation}"


def _longest(config: Any) -> int:
    """Most tokens of a text; llama.cpp has no sliding window for Llama's kind of models, so no more than the window."""
    window = getattr(config, "sliding_window", None) if config.model_type == "mistral" else None
    return min(config.max_position_embeddings, window or config.max_position_embeddings)


def _head(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _llama3_factors(config: Any) -> torch.Tensor:
    """The factors that stretch the wavelengths of the rotations, as transformers computes them for Llama 3.1."""
    rope, width = _rope(config), _head(config)
    old, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    wavelengths = 2 * math.pi * rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    smooth = (old / wavelengths - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    stretched = torch.where(wavelengths > old / low, torch.full_like(between, factor), between)
    return torch.where(wavelengths < old / high, torch.ones_like(between), stretched).float()


def _describe_heads(writer: Any, config: Any) -> None:
    writer.add_key_length(_head(config))
    writer.add_value_length(_head(config))


def _describe_llama(writer: Any, config: Any) -> None:
    _describe_heads(writer, config)
    writer.add_rope_dimension_count(_head(config))


def _describe_gemma2(writer: Any, config: Any) -> None:
    _describe_heads(writer, config)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _describe_gemma3(writer: Any, config: Any) -> None:
    _describe_heads(writer, config)
    writer.add_sliding_window(config.sliding_window)


def _describe_phi3(writer: Any, config: Any) -> None:
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    writer.add_rope_dimension_count(int(_rope(config).get("partial_rotary_factor", 1.0) * _head(config)))
    writer.add_sliding_window(config.sliding_window or 0)


def _describe_gpt2(writer: Any, config: Any) -> None:
    writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def _no_problem(config: Any) -> str:
    return ""


def _qwen2_problem(config: Any) -> str:
    return "some of its layers look at a window of the text" if config.use_sliding_window else ""


def _gemma2_problem(config: Any) -> str:
    if config.query_pre_attn_scalar != config.head_dim:
        return f"its attention is scaled by {config.query_pre_attn_scalar}, and not by the width of a head"
    layers = ["sliding_attention" if number % 2 == 0 else "full_attention" for number in range(len(config.layer_types))]
    return "" if config.layer_types == layers else "not every other layer looks at a window of the text"


def _gemma3_problem(config: Any) -> str:
    if config.query_pre_attn_scalar != config.head_dim:
        return f"its attention is scaled by {config.query_pre_attn_scalar}, and not by the width of a head"
    if getattr(config, "final_logit_softcapping", None) or getattr(config, "attn_logit_softcapping", None):
        return "its logits are capped"
    local = dict(config.rope_parameters).get("sliding_attention") or {}
    if local.get("rope_theta") != _GEMMA3_LOCAL_BASE:
        return f"positions in a window have the base {local.get('rope_theta')}, and not {_GEMMA3_LOCAL_BASE:g}"
    layers = ["full_attention" if number % 6 == 5 else "sliding_attention" for number in range(len(config.layer_types))]
    return "" if config.layer_types == layers else "not each sixth layer looks at the whole text"


def _gpt2_problem(config: Any) -> str:
    return "" if config.scale_attn_weights else "its attention is not scaled"


def _same(config: Any, place: str, weight: torch.Tensor) -> torch.Tensor:
    return weight


def _interleaved(config: Any, place: str, weight: torch.Tensor) -> torch.Tensor:
    """The rows of queries and keys in llama.cpp's order of rotation: pairs lie side by side."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, number in heads.items():
        if f".{name}." in place:
            halves = weight.reshape(number, 2, weight.shape[0] // number // 2, *weight.shape[1:])
            return halves.swapaxes(1, 2).reshape(weight.shape)
    return weight


def _with_one(config: Any, place: str, weight: torch.Tensor) -> torch.Tensor:
    """The weight plus one: norms of Gemma multiply by one more than their weight."""
    return weight + 1 if place.endswith("norm.weight") else weight


def _transposed(config: Any, place: str, weight: torch.Tensor) -> torch.Tensor:
    layers = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
    return weight.t() if place.endswith(layers) else weight


ARCHITECTURES = {
    "llama": Architecture("llama", _describe_llama, _no_problem, _interleaved),
    "mistral": Architecture("llama", _describe_llama, _no_problem, _interleaved),
    "qwen2": Architecture("qwen2", _describe_heads, _qwen2_problem, _same),
    "qwen3": Architecture("qwen3", _describe_heads, _qwen2_problem, _same),
    "gemma2": Architecture("gemma2", _describe_gemma2, _gemma2_problem, _with_one, _GELU),
    "gemma3_text": Architecture("gemma3", _describe_gemma3, _gemma3_problem, _with_one, _GELU),
    "phi3": Architecture("phi3", _describe_phi3, _no_problem, _same),
    "gpt2": Architecture("gpt2", _describe_gpt2, _gpt2_problem, _transposed, _GELU),
}
