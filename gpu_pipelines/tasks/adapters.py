"""LoRA: small trainable matrices beside the frozen weights of a model, and a plain model again for export.

Source: Hu et al., https://arxiv.org/abs/2106.09685; the layers are those of `peft`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gpu_pipelines.accelerators.workload import ALL_LINEAR
from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.tasks.checkpoint_state import trained_weights
from gpu_pipelines.tasks.model_places import ADAPTER, ADAPTER_NAME, ADAPTER_WEIGHTS, is_pretrained, place_and_revision
from gpu_pipelines.tasks.pretrained import head_of, is_plain_linear

#: What peft puts before the names of the weights of the model.
_PREFIX = "base_model.model."
#: What peft calls the models of these classes of transformers.
_KINDS = {
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForTokenClassification": "TOKEN_CLS",
}


def add_adapters(model: nn.Module, rank: int, alpha: float, targets: str = "") -> nn.Module:
    """Freezes a model and adds adapters, in place; its output stays the same until they are trained.

    A classification head stays trainable.

    Args:
        model: made by a recipe's `build_model`.
        rank: of the adapters, at least 1.
        alpha: their output is scaled by `alpha / rank`.
        targets: the layers that get one: `ALL_LINEAR`, or the ends of their names with commas between them. Empty for
            the projections that peft names for the architecture, queries and values as a rule, else all.

    Raises:
        UserError: the model has no linear layers to adapt, or none whose name ends so.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from transformers.pytorch_utils import Conv1D

    head, chosen = head_of(model), layers_to_adapt(model, targets)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=chosen,
        fan_in_fan_out=any(isinstance(model.get_submodule(name), Conv1D) for name in chosen),
    )
    with _seeming_fp32(model):
        inject_adapter_in_model(config, model)
    for weight in (weight for name in head for weight in model.get_submodule(name).parameters()):
        weight.data = weight.data.float()
        weight.requires_grad_(True)
    return model


def layers_to_adapt(model: nn.Module, targets: str) -> list[str]:
    """The names of the layers that get adapters.

    Args:
        model: with or without its weights.
        targets: as `add_adapters` takes them.

    Raises:
        UserError: it has no linear layers to adapt, or none whose name ends so.
    """
    if found := _targets(model, head_of(model), targets):
        return found
    raise UserError(
        f"{type(model).__name__} has no linear layers that adapters could be added to.", "Train it with lora_rank=0."
    )


@contextmanager
def _seeming_fp32(model: nn.Module) -> Iterator[None]:
    """While this lasts, weights in bf16 are in fp32 and take no memory: peft gives adapters their type."""
    held = [(weight, weight.data) for weight in model.parameters() if weight.dtype != torch.float32]
    for weight, values in held:
        weight.data = torch.empty((), device=values.device).expand(values.shape)
    try:
        yield
    finally:
        for weight, values in held:
            weight.data = values


def merge_adapters(model: nn.Module) -> nn.Module:
    """Adds the adapters to the weights that they belong to, in place; a model without adapters stays as it is.

    Returns:
        The model, with the layers and the keys that it had before `add_adapters`.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    # What is inside comes first: of stacked experts each weight has its adapters around those of another.
    for name, module in reversed(list(model.named_modules())):
        if isinstance(module, BaseTunerLayer):
            module.merge(safe_merge=True)
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, module.get_base_layer())
    for left in ("peft_config", "_hf_peft_config_loaded"):
        model.__dict__.pop(left, None)
    return model.requires_grad_(True)


def save_adapters(model: Any, base: str, auto_class: str, directory: Path) -> None:
    """Writes the adapters of a model in the layout of peft: adapter_config.json and adapter_model.safetensors.

    `PeftModel.from_pretrained` puts them beside the weights that they were trained with, and a head that was trained
    with them in place of the model's own. Nothing is written of a model that has no weights elsewhere,
    nor where more was trained than such a file can hold, which is said.

    Args:
        model: made by `add_adapters`, with trained weights.
        base: the model that was fine-tuned, as the user named it.
        auto_class: the class of transformers that the recipe loads models with; empty if that is not known.
        directory: of the exported model; they go into its folder `adapter`.
    """
    from safetensors.torch import save_file

    if not is_pretrained(base):
        return
    trained = trained_weights(model)
    head = head_of(model)
    adapters = {name.replace(f".{ADAPTER_NAME}.", "."): value for name, value in trained.items() if ".lora_" in name}
    heads = {name: value for name, value in trained.items() if _is_in(name, head)}
    if others := (trained.keys() & _changing(model)) - heads.keys() - {name for name in trained if ".lora_" in name}:
        print(f"no adapters beside the merged model: trained were {some_of(sorted(others), most=3)} too", flush=True)
        return
    place, revision = place_and_revision(base)
    config = replace(
        model.peft_config[ADAPTER_NAME],
        base_model_name_or_path=place,
        revision=revision or None,
        task_type=_KINDS.get(auto_class),
        inference_mode=True,
        modules_to_save=head or None,
    )
    folder = directory / ADAPTER
    folder.mkdir(exist_ok=True)
    config.save_pretrained(str(folder))
    kept = {_PREFIX + name: _plain(value) for name, value in (adapters | heads).items()}
    save_file(kept, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def _changing(model: nn.Module) -> set[str]:
    """Names of weights, and of the statistics of batch norms: what else a model holds, training leaves as it is."""
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, _NormBase)]
    return weights | {f"{name}.{buffer}" for name, norm in norms for buffer, _ in norm.named_buffers()}


def _plain(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu().contiguous().clone()


def _targets(model: Any, head: list[str], asked: str) -> list[str]:
    from transformers.pytorch_utils import Conv1D

    linear = [
        name
        for name, module in model.named_modules()
        if (is_plain_linear(module) or isinstance(module, Conv1D)) and not _is_in(name, head)
    ]
    # The output of a language model is often the embedding itself; an adapter would part the two.
    outputs = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    inner = [name for name in linear if model.get_submodule(name) is not outputs]
    if asked == ALL_LINEAR:
        return inner
    if asked:
        return _named(model, inner, [end for part in asked.split(",") if (end := part.strip())])
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    kind = getattr(getattr(model, "config", None), "model_type", None)
    usual = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(kind, ())
    return [name for name in linear if name.rpartition(".")[2] in usual] or inner


def _named(model: nn.Module, linear: list[str], ends: list[str]) -> list[str]:
    """The linear layers whose names end so, as peft has it."""
    found = {end: [name for name in linear if f".{name}".endswith(f".{end}")] for end in ends}
    if missing := [end for end, names in found.items() if not names]:
        last = sorted({name.rpartition(".")[2] for name in linear})
        raise UserError(
            f"lora_targets names {missing[0]!r}, and no linear layer of {type(model).__name__} has such a name.",
            f"Its layers are named {some_of(last, most=12)}; {ALL_LINEAR} takes all of them.",
        )
    return [name for name in linear if any(name in names for names in found.values())]


def _is_in(name: str, parents: list[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)
