"""Loads models that were saved: an exported one, or the model that adapters of peft are for, with them in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from gpu_pipelines.artifacts.exported_model import weight_files
from gpu_pipelines.artifacts.remote_files import fetched_folder, is_remote
from gpu_pipelines.errors import UserError, first_line, some_of
from gpu_pipelines.tasks.model_places import (
    ADAPTER_NAME,
    ADAPTER_WEIGHTS,
    CONFIG,
    base_of_adapters,
    holds_adapters,
    loaded_from,
)
from gpu_pipelines.tasks.pretrained import UNUSABLE, is_outside_backbone, unmatched_in

#: What peft adds to the names of a model's weights.
_OF_PEFT = re.compile(r"^base_model\.model\.|\.(token_adapter|base_layer|modules_to_save|original_module)(?=\.)")
#: Shapes of what adapters hold, by the names that the weights have in the model.
_Held = Mapping[str, Sequence[int]]


def load_exported(auto_class: Any, directory: Path) -> nn.Module:
    """Loads a model that was exported, in fp32 as it is evaluated; every weight must be in the files and in the model.

    Of adapters that a script has left it loads the model that they are for, with them in its weights.

    Args:
        auto_class: such as `AutoModelForCausalLM`.
        directory: the model.

    Raises:
        UserError: one is not, or a file of weights is missing or damaged.
    """
    if holds_adapters(directory):
        return _with_adapters(auto_class, directory)
    if lost := [name for name in weight_files(directory) if not (directory / name).is_file()]:
        raise UserError(f"The model in {directory} has no {' and no '.join(lost)}.")
    try:
        model, info = auto_class.from_pretrained(
            directory,
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are told as others that do not fit
            output_loading_info=True,
            dtype=torch.float32,
        )
    except SafetensorError as error:
        raise UserError(f"The weights of the model in {directory} cannot be read: {first_line(error)}.") from None
    if unmatched := unmatched_in(info):
        named = some_of(unmatched, most=5)
        saved_as, opened_as = (model.config.architectures or [""])[0], type(model).__name__
        if saved_as not in ("", opened_as):  # such as the reward model of a language model
            raise UserError(
                f"The model in {directory} is a {saved_as}, and the task takes a {opened_as}: {named}.",
                "Train such a model, or score it by a function of your own: -p scoring_function=file.py:function.",
            )
        raise UserError(f"The model in {directory} does not fit its config.json: {named}.")
    return model


def _with_adapters(auto_class: Any, directory: Path) -> nn.Module:
    """The model that adapters of peft name, in fp32, with them merged into its weights.

    Args:
        auto_class: such as `AutoModelForCausalLM`.
        directory: the adapters; a config.json beside them, such as one that names classes, is the model's.
    """
    from peft import PeftConfig, PeftModel, PeftType

    base = ""
    try:
        if not (base := base_of_adapters(directory)):
            raise ValueError("they name none (base_model_name_or_path)")
        adapters = PeftConfig.from_pretrained(str(directory))
        model, info = _base_model(auto_class, base, directory)
        held = _held_in(directory)
        _resize_as_adapters(model, held)
        adapted: Any = PeftModel(model, adapters)
        if not hasattr(adapted.base_model, "merge_and_unload"):
            kind = PeftType(adapters.peft_type).value
            raise UserError(
                f"The adapters in {directory} are of the kind {kind}, which has no weights to merge into a model's.",
                "Score them by a scoring_function of your own, which loads them with peft.",
            )
        found = adapted.load_adapter(str(directory), ADAPTER_NAME, is_trainable=False)
        _require_all_weights(model, info, held, found)
        _untie_adapted(model)
        merged: nn.Module = adapted.merge_and_unload()
    except (*UNUSABLE, RuntimeError) as error:
        raise UserError(
            f"The adapters in {directory} cannot be put on {f'their model {base!r}' if base else 'a model'}: "
            f"{first_line(error)}",
            "The model has to be on the hub, in a bucket, or at a path that the evaluation sees as well. Or let the "
            "script save it whole: model.merge_and_unload().save_pretrained(…), and the tokenizer with it.",
        ) from None
    return merged


def _base_model(auto_class: Any, base: str, directory: Path) -> tuple[Any, dict[str, Any]]:
    """The model that adapters are for, whole and in fp32, and what `from_pretrained` told of its weights."""
    from transformers import AutoConfig, PretrainedConfig

    place, given = loaded_from(fetched_folder(base) if is_remote(base) else base), {}
    if (directory / CONFIG).is_file():
        given["config"] = AutoConfig.from_pretrained(directory, local_files_only=True)
        given["config"].__dict__.pop("quantization_config", None)  # of how it was held in the training
        if stored := PretrainedConfig.get_config_dict(**place)[0].get("quantization_config"):
            given["config"].quantization_config = stored
    model, info = auto_class.from_pretrained(
        **place,
        **given,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        dtype=torch.float32,
    )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError("it is itself adapters, for another model")
    if getattr(model, "is_quantized", False):  # rounded again, it would lose most of what it has learned
        model = model.dequantize().to(torch.float32)
        model._weight_conversions = None  # transformers would undo them in what it writes, and cannot
    return model, info


def _held_in(directory: Path) -> _Held:
    with safe_open(directory / ADAPTER_WEIGHTS, framework="pt") as file:
        names = file.keys()
        return {_OF_PEFT.sub("", name): file.get_slice(name).get_shape() for name in names}


def _require_all_weights(model: nn.Module, info: Mapping[str, Any], held: _Held, found: Any) -> None:
    """Checks that each weight is the model's, or that of the adapters.

    Args:
        model: without the adapters.
        info: what was told of its weights.
        held: what the adapters hold.
        found: what peft told of them.

    Raises:
        ValueError: one is neither's.
    """
    # A layer of `modules_to_save` that was resized is written a second time by this name.
    lost = [key for key in found.unexpected_keys if ".modules_to_save." not in key]
    lost += found.missing_keys
    # Heads that the model was trained with before are left out, as those of texts beside a classifier.
    lost += [key for key in info["unexpected_keys"] if not is_outside_backbone(model, key)]
    if lost:
        raise ValueError(f"they do not fit: {some_of(sorted(lost), most=5)}")
    if drawn := {*unmatched_in(info)} - {*info["unexpected_keys"]} - held.keys():
        raise ValueError(
            f"the training has drawn {some_of(sorted(drawn), most=5)} anew, and neither has them; the script's "
            "LoraConfig has to name such layers in modules_to_save"
        )


def _resize_as_adapters(model: Any, held: _Held) -> None:
    """Gives a model room for the tokens that its adapters hold embeddings of, as peft keeps them where some were added.

    Args:
        model: without the adapters.
        held: what the adapters hold.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and f"{name}.weight" in held and module is model.get_input_embeddings():
            model.resize_token_embeddings(held[f"{name}.weight"][0])  # nothing if it has as many
            return


def _untie_adapted(model: Any) -> None:
    """Gives the last layer of a language model a weight of its own where adapters are on it, or on the table it shares.

    peft adds an adapter to what one layer gives; merged into the weight of both, it would count for the other as well.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    last = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    layers = [] if last is None else [last, model.get_input_embeddings()]
    if not any(isinstance(layer, BaseTunerLayer) for layer in layers):
        return
    last, table = (getattr(layer, "base_layer", layer) for layer in layers)
    if last.weight is table.weight:
        last.weight = nn.Parameter(last.weight.detach().clone())
