"""Finds a recipe and builds its model as it is trained and evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from gpu_pipelines.recipes.recipe import Recipe
from gpu_pipelines.recipes.tasks import TASKS


def load_recipe(path: str, task: str) -> type[Recipe]:
    """The recipe's class."""
    return TASKS[task].load_recipe()


def build_model(recipe: Recipe, settings: Mapping[str, Any]) -> nn.Module:
    """Builds a model."""
    return recipe.build_model(settings["model"])
