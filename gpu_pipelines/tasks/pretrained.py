"""Models of `transformers`: by name, by configuration, or with weights; all weights or an error, never some of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn

from gpu_pipelines.errors import UserError, first_line, nearest, some_of
from gpu_pipelines.tasks.model_places import CONFIG, holds_adapters, hub_id, loaded_from, place_and_revision, place_told

#: Bytes of the largest file of an exported model, as `save_pretrained` takes them; a larger model is several files.
MAX_SHARD_SIZE = "50GB"

#: What transformers raises where a configuration or weights are not usable.
UNUSABLE = (
    *(OSError, ValueError, TypeError, KeyError, AttributeError, ImportError),
    *(SafetensorError, StrictDataclassError),
)

#: Whether weights that are stored in bf16 are loaded in bf16, and not in fp32; see `weights_as_stored`.
_AS_STORED: ContextVar[bool] = ContextVar("as_stored", default=False)


@contextmanager
def weights_as_stored() -> Iterator[None]:
    """While this lasts, `from_pretrained` loads weights that are stored in bf16 as they are: half the main memory.

    For models of which most is frozen: what is trained, and whatever computes with the rest, has to be cast afterwards.
    """
    before = _AS_STORED.set(True)
    try:
        yield
    finally:
        _AS_STORED.reset(before)


def quiet_transformers() -> None:
    """For each small file that transformers reads or writes it would print two lines into the step's log."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def from_configuration(auto_class: Any, name: str, **changes: Any) -> nn.Module:
    """Builds an untrained model from the config.json of a directory.

    Args:
        auto_class: such as `AutoModelForCausalLM`.
        name: the directory.
        changes: entries of the configuration that follow from the data, such as `num_labels`.

    Raises:
        UserError: the configuration cannot be read, or is not of a model for this task.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(Path(name).expanduser(), local_files_only=True, **changes)
        return auto_class.from_config(config, dtype=torch.float32)
    except UNUSABLE as error:
        raise UserError(f"No model can be built from {name}/config.json: {first_line(error)}.") from None


def from_pretrained(
    auto_class: Any, name: str, known: Iterable[str], may_be_new: Callable[[nn.Module, str], bool], **changes: Any
) -> nn.Module:
    """Loads a model with its weights, in fp32; or those of bf16 as they are, see `weights_as_stored`.

    Args:
        auto_class: such as `AutoModelForCausalLM`.
        name: a directory in Hugging Face layout or a hub id.
        known: names that were perhaps meant, for the message.
        may_be_new: takes the model and a key; whether that weight may be left out or begin untrained, such as the
            weights of a head for other classes. They are printed.
        changes: entries of the configuration that follow from the data.

    Raises:
        UserError: there is no such model, or a weight is only in the file or only in the architecture.
    """
    if torch.get_default_device().type == "meta":  # another process has the weights
        return _without_weights(auto_class, name, **changes)

    def load(dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
        found: tuple[Any, dict[str, Any]] = auto_class.from_pretrained(
            **loaded_from(name),
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            dtype=dtype,
            **changes,
        )
        return found

    try:
        model, info = load(_stored_type(name))
        # What is new is drawn in fp32, and what was computed once in bf16 cannot be cast back.
        if model.dtype != torch.float32 and (
            unmatched_in(info) or any(b.dtype == model.dtype for b in model.buffers())
        ):
            model, info = load(torch.float32)
    except UNUSABLE as error:
        raise UserError(
            f"The model {place_told(name)} cannot be loaded: {first_line(error)}",
            f"{nearest(name, known)} A local directory in Hugging Face layout or a hub id with safetensors weights "
            "serves as well.",
        ) from None
    unmatched = unmatched_in(info)
    if lost := [key for key in unmatched if not may_be_new(model, key)]:
        raise UserError(f"The weights of {name!r} do not fit its architecture: {some_of(lost, most=5)}.")
    other = _other_classes(name, changes)
    order = _places_in(other, list(changes.get("id2label", {}).values()))
    _put_in_order(model, order)
    if os.environ.get("RANK", "0") != "0":
        return model
    if commit := _commit_of(name):
        print(f"the weights are those of {hub_id(name)}@{commit}", flush=True)
    if unmatched:
        print(f"not taken over from {name}, or begun anew: {some_of(unmatched, most=5)}", flush=True)
    if order:
        print(f"the head of {name} has the classes of the data, and is put in their order", flush=True)
    elif other and not unmatched:
        print(f"the head of {name} was trained for other classes: {some_of(other, most=5)}", flush=True)
    return model


def _commit_of(name: str) -> str:
    """The commit that a model of the hub was loaded from, by its folder in the cache; empty for a directory."""
    from transformers.utils import cached_file

    place, revision = place_and_revision(name)
    return Path(str(cached_file(place, "config.json", revision=revision))).parent.name if revision else ""


def _stored_type(name: str) -> torch.dtype:
    """The type that weights are loaded in: bf16 where that is asked for, and they are said to be stored so."""
    from transformers import AutoConfig

    if _AS_STORED.get() and getattr(AutoConfig.from_pretrained(**loaded_from(name)), "dtype", None) == torch.bfloat16:
        return torch.bfloat16
    return torch.float32


def _other_classes(name: str, changes: Mapping[str, Any]) -> list[str]:
    """The classes of a model whose head has the size of the data's but stands for others; empty where it does not."""
    from transformers import AutoConfig

    if "id2label" not in changes:
        return []
    theirs = AutoConfig.from_pretrained(**loaded_from(name)).id2label
    unnamed = all(label == f"LABEL_{number}" for number, label in theirs.items())
    return [] if unnamed or theirs == changes["id2label"] else list(theirs.values())


def _places_in(theirs: Sequence[str], labels: Sequence[str]) -> list[int]:
    """Where each of the data's classes is among those of a model, whatever its capitals; empty if they are others.

    transformers' `run_glue` keeps the classes of a model in its order as well: each data set of NLI has another one.
    """
    known = {label.casefold(): place for place, label in enumerate(theirs)}
    places = [known.get(label.casefold(), -1) for label in labels]
    return places if sorted(places) == list(range(len(theirs))) else []


def _put_in_order(model: Any, order: Sequence[int]) -> None:
    """Puts the rows of the last layer of each head in an order, if one is given."""
    for part in head_of(model) if order else ():
        layers = [each for each in model.get_submodule(part).modules() if isinstance(each, nn.Linear)]
        for weight in layers[-1].parameters() if layers and layers[-1].out_features == len(order) else ():
            weight.data = weight.data[list(order)].contiguous()


def _without_weights(auto_class: Any, name: str, **changes: Any) -> nn.Module:
    from transformers import AutoConfig

    return auto_class.from_config(AutoConfig.from_pretrained(**loaded_from(name), **changes), dtype=torch.float32)


def save(
    model: Any, directory: Path, max_shard_size: str = MAX_SHARD_SIZE, weights: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Writes config.json and model.safetensors, or several files of weights and their index if one is too large.

    Args:
        model: of transformers.
        directory: where to.
        max_shard_size: bytes of a file at most, such as `50GB`.
        weights: written instead of the model's own; they have to fit its configuration.
    """
    given = {} if weights is None else {"state_dict": dict(weights)}
    model.save_pretrained(directory, max_shard_size=max_shard_size, **given)


def is_outside_backbone(model: nn.Module, key: str) -> bool:
    """Whether a weight is not of the encoder or decoder that all heads of a family share.

    It is of a head, then, or of something that only another model has, such as the encoder of texts beside one of
    images. The pooler, one layer between the two, is left out by some heads and missing beside others.

    Args:
        model: that is built.
        key: of the model, or of a file; one of a backbone that was saved alone does not begin with its name.
    """
    prefix = getattr(model, "base_model_prefix", "")
    backbone: Any = getattr(model, prefix, model)
    part = key.removeprefix(f"{prefix}.").partition(".")[0]
    shared = {name.partition(".")[0] for name, _ in backbone.named_parameters()} - {*head_of(model), "pooler"}
    return part not in shared


def head_of(model: Any) -> list[str]:
    """Names of the modules with weights outside the backbone; none for a language model."""
    if hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is not None:
        return []
    parts: list[tuple[str, Any]] = [(n, m) for n, m in model.named_children() if any(True for _ in m.parameters())]
    prefix = getattr(model, "base_model_prefix", "")
    if any(name == prefix for name, _ in parts):
        return [name for name, _ in parts if name != prefix]
    return [name for name, module in parts[-1:] if isinstance(module, nn.Linear)]


def is_plain_linear(module: Any) -> bool:
    """Whether a module is a linear layer that only returns its product, so that another layer can replace it.

    Routers of Llama 4 and PhiMoE are linear layers that choose experts as well.
    """
    own = type(module).forward is not nn.Linear.forward and type(module).__name__ != "FalconLinear"
    return isinstance(module, nn.Linear) and not own


def label_config(labels: list[str]) -> dict[str, Any]:
    """The entries of a config.json for classes, of which each row has one."""
    return {
        # A pretrained model may have had several to a row; transformers' pipelines would take no softmax of its logits.
        "problem_type": None,
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def labels_of(config: Mapping[str, Any]) -> list[str]:
    """The classes that a config.json names, in order."""
    # transformers writes the names as a script gives them, which may be numbers.
    return [str(config["id2label"][str(index)]) for index in range(len(config["id2label"]))]


def require_numbered(directory: Path, named: Iterable[Any], remedy: str) -> None:
    """Checks that the classes of a model of another program have the numbers from 0.

    Args:
        directory: the model.
        named: their numbers, as its config.json or transformers has them.
        remedy: what to do.

    Raises:
        UserError: one is missing.
    """
    known = set(map(str, named))
    if lost := [number for number in range(len(known)) if str(number) not in known]:
        problem = f"The config.json of {directory} names {len(known)} classes (id2label), and none has the number"
        raise UserError(f"{problem} {lost[0]}.", remedy)


def labels_for(directory: Path, wanted: Sequence[str]) -> list[str]:
    """The classes of a model of another program, in its order.

    Args:
        directory: the model, in Hugging Face layout.
        wanted: the classes of the dataset.

    Raises:
        UserError: its config.json names none of them.
    """
    path = directory / CONFIG
    remedy = (
        "Name the classes in its config.json (id2label) as the dataset does, in the order in which they were learned; "
        "a script gives its model id2label=dict(enumerate(labels)), with labels of dataset.json."
    )
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if "id2label" not in config and holds_adapters(directory):
        raise UserError(
            f"Nothing in {directory} names the classes of the model that its adapters are for.",
            "Let the script save its configuration beside each of them, with the classes as the dataset names them: "
            "id2label=dict(enumerate(labels)) for the model, and model.config.save_pretrained(…).",
        )
    if "id2label" not in config:
        raise UserError(f"The config.json of {directory} does not name its classes (id2label).", remedy)
    require_numbered(directory, config["id2label"], remedy)
    labels = labels_of(config)
    if not set(labels) & set(wanted):
        raise UserError(
            f"The model in {directory} knows none of the classes of this dataset: it has {some_of(labels, most=5)}, "
            f"the dataset {some_of(wanted, most=5)}.",
            remedy,
        )
    return labels


def unmatched_in(info: Mapping[str, Any]) -> list[str]:
    """Weights that are only in the files, only in the model, or of another shape, according to `from_pretrained`."""
    keys = [*info["missing_keys"], *info["unexpected_keys"]]
    keys += [key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]]
    return sorted(set(keys))
