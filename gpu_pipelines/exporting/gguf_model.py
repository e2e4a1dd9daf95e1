"""Writes a language model as a GGUF file, and reads that file back to run it."""

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
#: Tokens that llama.cpp requires in a model with the name phi3.
_OF_PHI3 = {"<unk>", "<s>", "</s>", "<|endoftext|>"}
#: The keys of a file for the shape of a model, in the terms of transformers.
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
    """Refuses a model that GGUF cannot hold, before anything costs time.

    Raises:
        UserError: the architecture or the tokenizer is not supported, or the package gguf is missing.
    """
    try:
        import gguf  # noqa: F401 (only to see whether it is installed)
    except ImportError:
        raise UserError("The package gguf is not installed.", "Install gpu-pipelines[gguf].") from None
    architecture_of(model.config)
    GgufTokenizer.read(directory, model.config.vocab_size)


def write(model: Any, directory: Path, to: Path, dtype: str) -> None:
    """Writes a model with its tokenizer and chat template.

    Matrices are in `dtype`; for q8_0, which makes blocks of 32, matrices with rows that are no multiple of 32 are in
    f16. Norms and biases are in f32.

    Args:
        model: a model of transformers.
        directory: the directory with its tokenizer.
        to: the folder that gets `model.gguf`.
        dtype: one of GGUF's types in `ExportSettings`.

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
    """The model of a file, in fp32, built by transformers from the file.

    Args:
        directory: the folder with `model.gguf`.
        config: the configuration of the model that was written; the file has to agree with it.

    Raises:
        UserError: a weight is missing in the file, or the file disagrees with the configuration.
    """
    from transformers import AutoModelForCausalLM

    read_as = _as_read(config)
    _require_same_shape(directory / FILE, read_as)
    with redirect_stderr(StringIO()):  # its progress bar
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
    """The name of the model; for the name of Phi-3, llama.cpp strips white space after special tokens."""
    return "phi3" if config.model_type == "phi3" and set(tokenizer.tokens) >= _OF_PHI3 else "exported"


def _as_read(config: Any) -> Any:
    """The configuration to read a file with: for models of Llama's kind that of a Llama, as GGUF calls them."""
    if config.model_type != "mistral":
        return config
    from transformers import LlamaConfig

    return LlamaConfig(**{name: value for name, value in config.to_dict().items() if name != "model_type"})


def _require_same_shape(path: Path, config: Any) -> None:
    """Compares the shape of a model in a file with its configuration.

    Raises:
        UserError: they differ.
    """
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    said = load_gguf_checkpoint(str(path))["config"]
    for name in _COMPARED & said.keys():
        value, meant = said[name], base_of_positions(config) if name == "rope_theta" else getattr(config, name, None)
        if meant is not None and not np.isclose(meant, value):
            raise UserError(f"The file {path} says {name}={value}, but the model has {meant}.")
