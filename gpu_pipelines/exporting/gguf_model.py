"""A language model as a file of GGUF, and that file run again."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.exporting.gguf_architectures import architecture_of, base_of_positions, describe, weights
from gpu_pipelines.exporting.gguf_tokenizer import GgufTokenizer
from gpu_pipelines.exporting.settings import TYPES

FILE = "model.gguf"
#: Words that llama.cpp looks for in a model of the name phi3, and does not load it without.
_OF_PHI3 = {"<unk>", "<s>", "</s>", "<|endoftext|>"}
#: What a file says of the shape of a model, in the terms of transformers.
_COMPARED = {
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "layer_norm_epsilon",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "vocab_size",
}


def require_writable(model: Any, directory: Path) -> None:
    """Refuses what GGUF cannot hold, before anything costs time.

    Raises:
        UserError: the architecture, the tokenizer, or the package gguf is missing.
    """
    try:
        import gguf  # noqa: F401 (whether it is there)
    except ImportError:
        raise UserError("The package gguf is not installed.", "Install gpu-pipelines[gguf].") from None
    architecture_of(model.config)
    GgufTokenizer.read(directory, model.config.vocab_size)


def write(model: Any, directory: Path, to: Path, dtype: str) -> None:
    """Writes a model with its tokenizer and chat template.

    Matrices are in `dtype`; those whose rows are no multiple of 32, of which q8_0 makes blocks, are in f16 then. Norms
    and biases are in f32.

    Args:
        model: of transformers.
        directory: where its tokenizer is.
        to: the folder that gets `model.gguf`.
        dtype: one of those of GGUF in `ExportSettings`.

    Raises:
        UserError: GGUF cannot hold it.
    """
    import gguf
    from gguf.quants import quantize

    config = model.config
    kinds = {name: gguf.GGMLQuantizationType[name.upper()] for name in TYPES["gguf"]}
    all_of = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
    writer = gguf.GGUFWriter(to / FILE, architecture_of(config).name)
    writer.add_type(gguf.GGUFType.MODEL)
    tokenizer = GgufTokenizer.read(directory, config.vocab_size)
    writer.add_name(_name(config, tokenizer))
    writer.add_file_type(gguf.LlamaFileType[all_of[dtype]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    describe(writer, config)
    tokenizer.write(writer)
    for name, weight in weights(model):
        values = np.ascontiguousarray(weight.numpy())
        kind = kinds[dtype] if values.ndim > 1 else kinds["f32"]
        if kind == kinds["q8_0"] and values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = kinds["f16"]
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def opened(directory: Path, config: Any) -> nn.Module:
    """The model in a file, in fp32, made by transformers of what the file holds.

    Args:
        directory: with `model.gguf`.
        config: of the model that was written; the file has to say the same.

    Raises:
        UserError: a weight is not in the file, or the file says something else.
    """
    from transformers import AutoModelForCausalLM

    read_as = _as_read(config)
    _require_same_shape(directory / FILE, read_as)
    with redirect_stderr(StringIO()):  # its bar of progress
        model, info = AutoModelForCausalLM.from_pretrained(
            directory,
            gguf_file=FILE,
            config=read_as,
            dtype=torch.float32,
            output_loading_info=True,
            local_files_only=True,
        )
    if lost := sorted({*info["missing_keys"], *map(str, info["mismatched_keys"])}):
        raise UserError(f"The file {directory / FILE} lacks weights: {some_of(lost, most=5)}.")
    return model.eval()


def _name(config: Any, tokenizer: GgufTokenizer) -> str:
    """The name of the model: by that of Phi-3, llama.cpp takes white space off behind its special tokens."""
    return "phi3" if config.model_type == "phi3" and set(tokenizer.tokens) >= _OF_PHI3 else "exported"


def _as_read(config: Any) -> Any:
    """The configuration to read a file with: of models of Llama's kind that of a Llama, which GGUF calls them."""
    if config.model_type != "mistral":
        return config
    from transformers import LlamaConfig

    return LlamaConfig(**{name: value for name, value in config.to_dict().items() if name != "model_type"})


def _require_same_shape(path: Path, config: Any) -> None:
    """Compares what a file says of a model with its configuration.

    Raises:
        UserError: it says something else.
    """
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    said = load_gguf_checkpoint(str(path))["config"]
    for name in _COMPARED & said.keys():
        value, meant = said[name], base_of_positions(config) if name == "rope_theta" else getattr(config, name, None)
        if meant is not None and not np.isclose(meant, value):
            raise UserError(f"The file {path} says {name}={value}, and the model has {meant}.")
