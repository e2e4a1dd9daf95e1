"""Language models as GGUF: what the file holds gives the same logits, for each architecture that llama.cpp has."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from small_models import ARCHITECTURES, byte_tokenizer, character_tokenizer, language_model

from gpu_pipelines.errors import UserError
from gpu_pipelines.exporting import gguf_model
from gpu_pipelines.exporting.gguf_architectures import architecture_of
from gpu_pipelines.exporting.gguf_tokenizer import GgufTokenizer

#: Largest difference of logits, as a share of the largest of them.
CLOSE = 1e-6


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(tokens).logits


def off_by(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def rounded(model: Any, dtype: str) -> Any:
    """A copy whose matrices have the values that a type of GGUF can hold."""
    copy = deepcopy(model)
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    for parameter in copy.parameters():
        if parameter.ndim > 1:
            parameter.data = torch.from_numpy(dequantize(quantize(parameter.data.numpy(), kind), kind))
    return copy


def field(path: Path, name: str) -> Any:
    return gguf.GGUFReader(path).fields[name].contents()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_the_file_holds_gives_the_same_logits(tmp_path: Path, name: str) -> None:
    byte_tokenizer(tmp_path)
    model = language_model(name)
    gguf_model.write(model, tmp_path, tmp_path, "f32")
    again = gguf_model.opened(tmp_path, model.config)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(3, 300, (2, 48)))
    wanted = logits(model, tokens)
    assert wanted.std() > 0.1
    assert off_by(logits(again, tokens), wanted) < CLOSE


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
def test_smaller_numbers_are_the_nearest_and_nothing_else_is_lost(tmp_path: Path, dtype: str) -> None:
    byte_tokenizer(tmp_path)
    model = language_model("llama")
    gguf_model.write(model, tmp_path, tmp_path, dtype)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / gguf_model.FILE).tensors}
    assert kinds["blk.0.attn_q.weight"] == dtype.upper()
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    tokens = torch.from_numpy(np.random.default_rng(0).integers(3, 300, (2, 48)))
    found, wanted = logits(gguf_model.opened(tmp_path, model.config), tokens), logits(model, tokens)
    assert off_by(found, wanted) > 1e-5
    assert off_by(found, logits(rounded(model, dtype), tokens)) < CLOSE


def test_the_tokenizer_and_the_templates_are_in_the_file(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("{{ 'called:' }}")
    model = language_model("llama")
    gguf_model.write(model, tmp_path, tmp_path, "f16")
    path = tmp_path / gguf_model.FILE
    assert (field(path, "tokenizer.ggml.model"), field(path, "tokenizer.ggml.pre")) == ("gpt2", "gpt-2")
    tokens = field(path, "tokenizer.ggml.tokens")
    assert len(tokens) == model.config.vocab_size
    assert tokens[-1] == f"[PAD{len(tokens) - 1}]"
    assert "assistant" in field(path, "tokenizer.chat_template")
    assert "called:" in field(path, "tokenizer.chat_template.tool_use")
    assert field(path, "llama.context_length") == model.config.max_position_embeddings


def test_a_tokenizer_of_characters_merges_by_scores(tmp_path: Path) -> None:
    character_tokenizer(tmp_path)
    found = GgufTokenizer.read(tmp_path, 400)
    assert (found.model, found.split, found.merges, found.adds_space) == ("llama", "default", [], True)
    merges = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["merges"]
    by_word = dict(zip(found.tokens, found.scores, strict=True))
    first, later = ("".join(merges[number]) for number in (0, 20))
    assert 0 >= by_word[first] > by_word[later] > min(found.scores)
    assert found.kinds[found.tokens.index("<0x0A>")] == gguf.TokenType.BYTE
    assert found.kinds[found.special["bos"]] == gguf.TokenType.CONTROL
    assert found.adds == {"bos": True, "eos": False}


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("mixtral", {}, "of the kind 'mixtral'"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "scaled by yarn"),
        ("gemma2", {"query_pre_attn_scalar": 99}, "scaled by 99"),
        ("gemma3_text", {"query_pre_attn_scalar": 99}, "scaled by 99"),
        ("qwen2", {"use_sliding_window": True}, "a window of the text"),
        ("gpt2", {"activation_function": "relu"}, "activation is relu"),
        ("llama", {"hidden_act": "gelu"}, "activation is gelu"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused_by_name(name: str, change: dict[str, Any], why: str) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(name)
    for entry, value in change.items():
        setattr(config, entry, value)
    with pytest.raises(UserError, match=why) as refused:
        architecture_of(config)
    assert "--format onnx" in refused.value.remedy


def test_tokenizers_that_llama_cpp_does_not_have_are_refused(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    text = path.read_text()
    with pytest.raises(UserError, match="but the model has 200"):
        GgufTokenizer.read(tmp_path, 200)
    path.write_text(
        text.replace('"use_regex":true', '"use_regex":false').replace('"use_regex": true', '"use_regex": false')
    )
    with pytest.raises(UserError, match="the way it splits texts"):
        GgufTokenizer.read(tmp_path, 400)


def test_a_file_that_says_something_else_is_found_out(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    model = language_model("llama")
    gguf_model.write(model, tmp_path, tmp_path, "f32")
    model.config.rms_norm_eps = 0.5
    with pytest.raises(UserError, match="says rms_norm_eps"):
        gguf_model.opened(tmp_path, model.config)
