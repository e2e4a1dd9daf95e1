"""Language models and tokenizers that are small, of each architecture that can be exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from gpu_pipelines.tasks.text_encoding import TextEncoder

ROWS = 400
_SHARED: dict[str, Any] = {
    "vocab_size": ROWS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "initializer_range": 0.2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
#: Model type, and what its configuration has besides, by a name of its own.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with scaled positions": ("llama", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 64, "head_dim": 32}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "gemma2": (
        "gemma2",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16, "tie_word_embeddings": True},
    ),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 16,
            "num_hidden_layers": 7,
            "tie_word_embeddings": True,
        },
    ),
    "phi3": ("phi3", {"sliding_window": None, "original_max_position_embeddings": 128}),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "tie_word_embeddings": True}),
}


def language_model(name: str) -> Any:
    """A model with random weights, all of which matter."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, own = ARCHITECTURES[name]
    shared = {"vocab_size": ROWS, "pad_token_id": None, "initializer_range": 0.2} if kind == "gpt2" else _SHARED
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**shared, **own}))
    for parameter in model.parameters():
        if parameter.ndim == 1:  # norms and biases begin alike
            parameter.data += 0.1 * torch.randn(parameter.shape)
    return model.eval()


def byte_tokenizer(directory: Path) -> None:
    """A tokenizer as this project trains it, with a chat template."""
    TextEncoder.train(["a dog and a cat and a bird"] * 20, 300, ends=True).save(directory, 128)
    (directory / "chat_template.jinja").write_text("{{ 'assistant:' }}")


def character_tokenizer(directory: Path) -> None:
    """A tokenizer as that of Llama 2: characters, bytes where there is none, a space before each text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    special = ["<unk>", "<s>", "</s>"]
    bytes_of_all = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=special + bytes_of_all, max_token_length=12)
    tokenizer.train_from_iterator([f"a dog and a cat and a bird number {n}" for n in range(50)], trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [entry for entry in content["added_tokens"] if entry["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    tokenizer.decoder = decoders.ByteFallback()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
