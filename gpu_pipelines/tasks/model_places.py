"""Whether a model is built from its name, built from a configuration, or pretrained; told without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import is_remote, listed
from gpu_pipelines.errors import DamagedError, UserError

CONFIG = "config.json"
#: How the names of the files end by which transformers knows a tokenizer; those of SentencePiece have many names.
TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", ".model")
SAFE = (".safetensors", ".safetensors.index.json")
PICKLED = (".bin", ".bin.index.json")
WEIGHTS = (*SAFE, *PICKLED)
#: The two files of adapters in the layout of peft.
ADAPTERS, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: What peft calls adapters that were given no name.
ADAPTER_NAME = "default"
#: The folder of the adapters beside the model that they are merged into.
ADAPTER = "adapter"


def is_of_timm(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is one of timm, as transformers tells: its head and its preprocessing are timm's own."""
    return "pretrained_cfg" in config or config.get("model_type") == "timm_wrapper"


def is_path(model: str) -> bool:
    """Whether a model is given as a path of this machine."""
    return model.startswith((".", "/", "~"))


def place_told(name: str) -> str:
    """A place or a hub id as errors name it, which say where nothing of the name is on this machine."""
    return repr(name) if Path(name).expanduser().is_dir() else f"{name!r}, which is no directory here,"


def may_be_pretrained(model: str) -> bool:
    """Whether a name can be that of pretrained weights: a place, or a hub id."""
    return is_remote(model) or is_path(model) or Path(model).is_dir() or model.partition("@")[0].count("/") == 1


def place_and_revision(name: str | Path) -> tuple[str, str]:
    """Where a model is, and which one of it: empty for a directory.

    Args:
        name: a directory, local or remote, or a hub id, with `@REVISION` if it is not the newest.
    """
    named, place = str(name), Path(name).expanduser()
    if is_remote(named):
        return named, ""
    if is_path(named) or place.is_dir():
        return str(place), ""
    model, _, revision = named.partition("@")
    return model, revision or "main"


def hub_id(name: str) -> str:
    """The id of a model of the hub, without its revision; empty if it is not on the hub."""
    place, revision = place_and_revision(name)
    return place if revision and may_be_pretrained(name) else ""


def loaded_from(name: str | Path) -> dict[str, Any]:
    """The same as arguments of transformers' `from_pretrained`."""
    place, revision = place_and_revision(name)
    return {"pretrained_model_name_or_path": place} | ({"revision": revision} if revision else {})


def holds_adapters(directory: Path) -> bool:
    """Whether a folder has adapters of peft, and not the weights of a model."""
    return (directory / ADAPTERS).is_file() and not any(directory.glob("model*.safetensors"))


def base_of_adapters(directory: Path) -> str:
    """The base model of peft adapters, by its name here; empty if a folder has no adapters, or they name no model.

    Raises:
        DamagedError: their adapter_config.json is damaged.
    """
    path = directory / ADAPTERS
    try:
        said = json.loads(path.read_bytes()) if path.is_file() else {}
        if not isinstance(said, dict):
            raise ValueError("it is no mapping")
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {error}.", "Save the adapters again, or leave them out.") from None
    base = str(said.get("base_model_name_or_path") or "")
    is_of_hub = bool(base) and bool(place_and_revision(base)[1])
    return f"{base}@{said['revision']}" if is_of_hub and said.get("revision") else base


def is_configuration_alone(name: str) -> bool:
    """Whether `name` is a directory with a config.json and no weights: a model to train from scratch."""
    files = files_of(name)
    return CONFIG in files and not any(file.endswith(WEIGHTS) for file in files)


def is_pretrained(model: str) -> bool:
    """Whether a model comes with weights, so that training it is fine-tuning."""
    return may_be_pretrained(model) and not is_configuration_alone(model)


def has_tokenizer(model: str) -> bool:
    """Whether a pretrained model has a tokenizer beside it; one of the hub, which is not looked at here, may have."""
    is_place = is_remote(model) or is_path(model) or Path(model).is_dir()
    return not is_place or any(file.endswith(TOKENIZERS) for file in files_of(model))


def files_of(place: str) -> set[str]:
    """The names of the files of a folder; empty if the place is not a folder."""
    if is_remote(place):
        try:
            return {file.rpartition("/")[2] for file in listed(place)}
        except UserError:  # what cannot be listed is told of by what reads it
            return set()
    directory = Path(place).expanduser()
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()
