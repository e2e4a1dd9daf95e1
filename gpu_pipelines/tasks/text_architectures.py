"""The text models that are built from their name, untrained.

Only the family's own module is imported: the package's index of all architectures takes seconds.
"""

from __future__ import annotations

from typing import Any

from torch import nn


def classifier(name: str, shared: dict[str, Any], longest: int) -> nn.Module:
    """Builds a classifier of texts; see `_bert`."""
    from transformers.models.bert import BertForSequenceClassification

    return BertForSequenceClassification(_bert(name, shared, longest))


def tagger(name: str, shared: dict[str, Any], longest: int) -> nn.Module:
    """Builds a classifier of tokens; see `_bert`."""
    from transformers.models.bert import BertForTokenClassification

    return BertForTokenClassification(_bert(name, shared, longest))


def _bert(name: str, shared: dict[str, Any], longest: int) -> Any:
    """The configuration of `bert-micro` or `bert-base`.

    Args:
        name: which of them.
        shared: entries of the configuration that follow from the tokenizer and the classes.
        longest: tokens of a row.
    """
    from transformers.models.bert import BertConfig

    # The rest of the defaults is bert-base-uncased.
    return BertConfig(**(_micro(longest) if name == "bert-micro" else {}), **shared)


def _micro(longest: int) -> dict[str, int]:
    return {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": longest,
    }


def language_model(name: str, shared: dict[str, Any], longest: int) -> nn.Module:
    """Builds a causal language model.

    Args:
        name: `gpt2-micro`, `gpt2`, `llama-micro`, `llama-1b` or `mixtral-micro`.
        shared: entries of the configuration that follow from the tokenizer.
        longest: tokens of a row.
    """
    if name in ("gpt2", "gpt2-micro"):
        return _gpt2(name, shared, longest)
    if name == "mixtral-micro":
        return _mixtral(shared, longest)
    return _llama(name, shared, longest)


def _gpt2(name: str, shared: dict[str, Any], longest: int) -> nn.Module:
    from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel

    micro = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": longest}
    return GPT2LMHeadModel(GPT2Config(**(micro if name == "gpt2-micro" else {}), **shared))


def _llama(name: str, shared: dict[str, Any], longest: int) -> nn.Module:
    from transformers.models.llama import LlamaConfig, LlamaForCausalLM

    micro = {**_micro(longest), "num_key_value_heads": 2}
    # Source: the config.json of meta-llama/Llama-3.2-1B, without the vocabulary, which is the tokenizer's.
    shape = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
    }
    chosen = micro if name == "llama-micro" else shape
    return LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **chosen, **shared))


def _mixtral(shared: dict[str, Any], longest: int) -> nn.Module:
    from transformers.models.mixtral import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        **{**_micro(longest), "intermediate_size": 96},
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=None,
        tie_word_embeddings=True,
        # Without the router's loss that spreads the tokens, a few experts soon get all of them.
        output_router_logits=True,
        router_aux_loss_coef=0.02,
        **shared,
    )
    return MixtralForCausalLM(config)
