"""Whether a model is built from its name, built from a configuration, or pretrained; told without torch."""

from __future__ import annotations

from pathlib import Path

from gpu_pipelines.artifacts.remote_files import is_remote, listed
from gpu_pipelines.errors import UserError

CONFIG = "config.json"
WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")


def is_path(model: str) -> bool:
    """Whether a model is given as a path of this machine."""
    return model.startswith((".", "/", "~"))


def may_be_pretrained(model: str) -> bool:
    """Whether a name can be that of pretrained weights: a place, or a hub id."""
    return is_remote(model) or is_path(model) or Path(model).is_dir() or model.count("/") == 1


def is_configuration_alone(name: str) -> bool:
    """Whether `name` is a directory with a config.json and no weights: a model to be trained from scratch."""
    if is_remote(name):
        try:
            files = {file.rpartition("/")[2] for file in listed(name)}
        except UserError:  # what cannot be listed is told of by what reads it
            return False
    else:
        directory = Path(name).expanduser()
        files = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    return CONFIG in files and not any(file.endswith(WEIGHTS) for file in files)


def is_pretrained(model: str) -> bool:
    """Whether a model comes with weights, so that training it is fine-tuning."""
    return may_be_pretrained(model) and not is_configuration_alone(model)
