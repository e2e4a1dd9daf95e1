"""From settings to a recipe and its model: the one way of training and evaluation, so that they build the same."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from torch import nn

from gpu_pipelines.artifacts.remote_files import fetched_folder, is_remote
from gpu_pipelines.errors import UserError
from gpu_pipelines.own_class import own_class
from gpu_pipelines.tasks.pretrained import weights_as_stored
from gpu_pipelines.tasks.recipe import Recipe
from gpu_pipelines.tasks.tasks import task_named


def load_recipe(path: str, task: str) -> type[Recipe]:
    """The class of a recipe.

    Args:
        path: a user's own, as `package.module:ClassName`; empty for that of the task.
        task: task of the dataset.

    Raises:
        UserError: it cannot be imported, is no subclass of `Recipe`, or does not define what a recipe must.
    """
    if not path:
        return task_named(task).load_recipe()
    found = own_class(path, Recipe, f"The recipe {path}", "See docs/recipes.md.")
    # Else it would train, by the gradient of another mean.
    if hasattr(found, "loss_terms"):
        raise UserError(f"The recipe {path} defines loss_terms, which is now named loss_tokens.", "Rename the method.")
    return found


def build_model(recipe: Recipe, settings: Mapping[str, Any], *, as_stored: bool = False) -> nn.Module:
    """Builds the model of a training: the recipe's, with adapters if `lora_rank` is not 0, or weights frozen.

    Args:
        recipe: made for the dataset.
        settings: `model`, `lora_rank`, `lora_alpha`, `lora_targets` and `freeze` of the training; all but the first may
            be missing.
        as_stored: whether weights of which some are frozen stay in bf16 where they are stored so, but for a head beside
            adapters; else all are fp32.

    Raises:
        UserError: there is no such model, it does not fit the data, it cannot have adapters, or a pattern of what is
            frozen matches nothing.
    """
    name = settings["model"]
    keeps = as_stored and bool(settings.get("lora_rank") or settings.get("freeze"))
    with weights_as_stored() if keeps else nullcontext():
        model = recipe.build_model(str(fetched_folder(name)) if is_remote(name) else name)
    if settings.get("lora_rank"):
        from gpu_pipelines.tasks.adapters import add_adapters

        return add_adapters(model, settings["lora_rank"], settings["lora_alpha"], settings.get("lora_targets", ""))
    if settings.get("freeze"):
        from gpu_pipelines.tasks.frozen import freeze

        freeze(model, settings["freeze"])
    return model
