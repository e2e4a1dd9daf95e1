"""Models that this project did not train: directories in Hugging Face layout, with weights in safetensors files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from gpu_pipelines.artifacts.checkpoint import CHECKPOINT_NAME
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.exported_model import INDEX, weight_files
from gpu_pipelines.errors import UserError, first_line
from gpu_pipelines.tasks.model_places import ADAPTER, ADAPTER_WEIGHTS, ADAPTERS, CONFIG, holds_adapters, is_of_timm
from gpu_pipelines.tasks.pretrained import labels_for
from gpu_pipelines.tasks.tasks import task_named
from gpu_pipelines.tasks.text_recipe import declare_inputs
from gpu_pipelines.tasks.text_tokenizer import OTHER_TEMPLATES, TOKENIZER, TextTokenizer, copy_files

#: What is taken over of a model that is exported: weights, settings and tokenizer, and nothing that runs.
KEPT = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "merges.txt", "vocab.txt", "*.model")
#: What a training program leaves beside the weights.
LEFT_OUT = ("trainer_state.json", "training_args.json", "evaluation.json", "examples.json", "benchmarks.json")
#: Files that Python's pickle reads, as Lightning and torch.save write them.
_PICKLED = (".ckpt", ".pt", ".pth", ".bin", ".pkl")
#: How the names of folders begin that a program keeps for itself, as transformers' Trainer where it was saving.
_UNFINISHED = (".", "tmp-")
_NUMBER = re.compile(r".*?(?P<number>[0-9]{1,15})[^0-9]*")


def is_model(directory: Path) -> bool:
    """Whether a directory is a model in Hugging Face layout, or adapters of peft for one."""
    return (directory / CONFIG).is_file() or holds_adapters(directory)


def models_in(directory: Path) -> list[tuple[Path, int]]:
    """The models in a directory, by the number in their names, or itself if it is one; none if there is none.

    Beside its checkpoints, the Trainer of transformers saves the last or the best model once more (`save_model`).

    Raises:
        UserError: all models have their weights only in pickles.
    """
    paths = [path for path in sorted(directory.glob("*")) if not path.name.startswith(_UNFINISHED)]
    found = [(path, _number_of(path)) for path in paths if is_model(path)]
    if is_model(directory):
        found = [(path, number) for path, number in found if CHECKPOINT_NAME.fullmatch(path.name)]
        found.append((directory, max((number for _, number in found), default=0)))
    # A program that was killed before it wrote weights has left neither.
    pickled = [
        path
        for path, _ in found
        if not any(path.glob("*.safetensors")) and (any(path.glob("*.bin")) or any(path.glob("*.pt")))
    ]
    if pickled and len(pickled) == len(found):
        raise UserError(
            f"The model in {pickled[0]} has no safetensors files.",
            "Pickled weights (*.bin, *.pt) can run any code when they are read, so they are not read. Save the model "
            "by its save_pretrained, which writes safetensors.",
        )
    return sorted(found, key=lambda entry: (entry[1], entry[0].name))


def without_model(directory: Path) -> dict[str, list[str]]:
    """Folders named as checkpoints that hold no model: their names, by the reason, as `accelerator.save_state` leaves.

    Args:
        directory: in which other models were found.
    """
    found: dict[str, list[str]] = {}
    for path in directory.glob("*"):
        if CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir() and not is_model(path):
            found.setdefault(why_none(path) or "There is no model in it.", []).append(path.name)
    return found


def why_none(directory: Path) -> str:
    """Why the output of a training cannot be scored, in a sentence; empty if the reason is not known.

    Args:
        directory: in which no model was found.
    """
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    if deeper := next((path.parent for path in files if path.suffix == ".safetensors" and is_model(path.parent)), None):
        return f"The model in {deeper.relative_to(directory)} lies too deep to be found."

    def first(*endings: str) -> str:
        return next((str(path.relative_to(directory)) for path in files if path.suffix in endings), "")

    if shard := first(".distcp"):
        return (
            f"{shard} is a part of the weights: let the script save whole ones, as FULL_STATE_DICT of FSDP does "
            f"(for fully_shard: docs/training-scripts.md), or merge them by `accelerate merge-weights` and put a "
            f"{CONFIG} beside them."
        )
    if weights := first(".safetensors"):
        return (
            f"{weights} has no {CONFIG} beside it: save the model by its save_pretrained, or its settings too, by "
            "model.config.save_pretrained."
        )
    if pickle := first(*_PICKLED):
        return (
            f"{pickle} is a pickle, which can run any code when it is read, so it is not read: save the model by its "
            "save_pretrained too."
        )
    return ""


def damaged_file(directory: Path) -> str:
    """The name of a file that is missing or truncated, as a killed program leaves it.

    Args:
        directory: a model.

    Returns:
        The name; empty if all files are whole.
    """
    settings, weights = (ADAPTERS, {ADAPTER_WEIGHTS}) if holds_adapters(directory) else (CONFIG, set())
    try:
        said = json.loads((directory / settings).read_bytes())
    except ValueError:
        return settings
    if settings == CONFIG and not isinstance(said, dict):  # of adapters, whoever reads them says more
        return settings
    found = weights | {path.name for path in directory.glob("*.safetensors")}
    for name in sorted(found | set(weight_files(directory) if not found or (directory / INDEX).is_file() else [])):
        try:
            with safe_open(directory / name, framework="pt"):  # reads how long the file has to be
                pass
        except (OSError, SafetensorError):
            return name
    return ""


def open_model(directory: Path, dataset: Dataset) -> tuple[Any, nn.Module, list[str]]:
    """A model for the task of a dataset, the recipe that predicts with it, and its classes.

    Raises:
        UserError: it does not fit the task, the classes, the images or the tokens of the dataset, or lacks weights.
    """
    task = dataset.manifest.task
    remedy = (
        "Score them by a function of your own: scoring_function=file.py:function. A resumed run does not repeat the "
        "training."
    )
    if not task_named(task).architectures:
        raise UserError(f"Models in Hugging Face layout cannot be scored for the task {task!r}.", remedy)
    if (directory / CONFIG).is_file() and is_of_timm(json.loads((directory / CONFIG).read_bytes())):
        raise UserError(f"The model in {directory} is one of timm, which prepares images in a way of its own.", remedy)
    recipe = task_named(task).load_recipe().for_dataset(dataset)
    try:
        model = recipe.load_exported(directory)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"The model in {directory} cannot be loaded: {first_line(error)}") from None
    model.to(torch.float32)
    labels = labels_for(directory, dataset.manifest.labels) if dataset.manifest.labels else []
    return *recipe.taking_over(directory, model), labels


def copy_adapters(directory: Path, to: Path) -> None:
    """Copies adapters of peft, if a folder has them, beside the model that they were merged into."""
    if holds_adapters(directory):
        (to / ADAPTER).mkdir()
        for name in (ADAPTERS, ADAPTER_WEIGHTS):
            shutil.copy(directory / name, to / ADAPTER)


def copy_model(directory: Path, to: Path, dataset: Dataset) -> None:
    """Copies only the files of a model; if it has no tokenizer, also that of the dataset."""
    if dataset.tokenizer is not None and not (directory / TOKENIZER).is_file():
        shutil.copytree(dataset.tokenizer, to, dirs_exist_ok=True)
    copy_files((*KEPT, OTHER_TEMPLATES), directory, to, LEFT_OUT)
    if dataset.tokenizer is not None:
        ours = TextTokenizer.read(dataset.tokenizer)
        if ours.takes_pairs:  # what a program saves need not say so
            ours.copy_to(to)
            declare_inputs(to)


def _number_of(path: Path) -> int:
    match = _NUMBER.fullmatch(path.name)
    return int(match["number"]) if match else 0
