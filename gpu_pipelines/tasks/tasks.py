"""The names of the tasks, of their models and of their metrics: what can be checked without importing torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from gpu_pipelines.errors import nearest


@dataclass(frozen=True)
class Metric:
    """What a metric can be: whether more of it is better, and the largest value; the smallest is 0."""

    more_is_better: bool = True
    largest: float = 1.0


@dataclass(frozen=True)
class Task:
    """A task by name.

    Attributes:
        name: as given in the parameter `task`.
        recipe: `module:class` of the recipe.
        models: architectures that are built from their name, untrained.
        metrics: metrics that can be gated and selected on; the first one is selected on unless another is named.
        classifies: whether the recipe's `predict` gives class probabilities.
        gates: conditions on test metrics where the user gives none.
        defaults: values of a pipeline's parameters that only make sense for this task; all tasks have the same names.
    """

    name: str
    recipe: str
    models: tuple[str, ...]
    metrics: dict[str, Metric]
    classifies: bool = True
    gates: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def load_recipe(self) -> Any:
        """Imports the recipe (and with it torch) and returns its class."""
        module, _, name = self.recipe.partition(":")
        return getattr(import_module(module), name)


CLASSIFICATION_METRICS = {
    "accuracy": Metric(),
    "macro_f1": Metric(),
    "macro_recall": Metric(),
    "min_recall": Metric(),
    "roc_auc": Metric(),
    "ece": Metric(more_is_better=False),
    "log_loss": Metric(more_is_better=False, largest=math.inf),
}

#: Of what is scored by its loss: tokens of a language model, or whatever the terms of a user's own loss are.
LANGUAGE_MODEL_METRICS = {
    "loss": Metric(more_is_better=False, largest=math.inf),
    "perplexity": Metric(more_is_better=False, largest=math.inf),
    "bits_per_byte": Metric(more_is_better=False, largest=math.inf),
    "token_accuracy": Metric(),
    "completion_accuracy": Metric(),
}

TASKS = {
    task.name: task
    for task in (
        Task(
            name="image_classification",
            recipe="gpu_pipelines.tasks.image_classification:ImageClassification",
            models=(
                "convnext-micro",
                "convnext-tiny",
                "resnet-micro",
                "swin-micro",
                "swin-tiny",
                "vit-micro",
                "vit-base",
            ),
            metrics=CLASSIFICATION_METRICS,
            gates=("accuracy>=0.9",),
            defaults={"source": "sample:digits", "model": "convnext-micro"},
        ),
        Task(
            name="text_classification",
            recipe="gpu_pipelines.tasks.text_classification:TextClassification",
            models=("bert-micro", "bert-base"),
            metrics=CLASSIFICATION_METRICS,
            defaults={"source": "sample:docstrings", "model": "bert-micro"},
        ),
        Task(
            name="causal_lm",
            recipe="gpu_pipelines.tasks.causal_lm:CausalLanguageModel",
            models=("gpt2-micro", "gpt2", "llama-micro", "llama-1b", "mixtral-micro"),
            metrics=LANGUAGE_MODEL_METRICS,
            classifies=False,
            defaults={"source": "sample:documentation", "model": "gpt2-micro"},
        ),
    )
}


def task_named(name: str) -> Task:
    """The task of a name; one that is not in `TASKS`, a user's own, is scored by its loss."""
    return TASKS.get(name) or Task(name, recipe="", models=(), metrics=LANGUAGE_MODEL_METRICS, classifies=False)


def defaults_of_task(name: str) -> dict[str, Any]:
    """Defaults of a pipeline's parameters, by name, that follow its task; none of a task that is not in `TASKS`.

    The defaults of the components are those of image_classification. Where another task is chosen, on the command line
    or for a file that is compiled for it, these take their place.
    """
    return {"task": name, **TASKS[name].defaults} if name in TASKS else {}


def task_problems(name: str) -> list[str]:
    """What is wrong with a task's name; empty if nothing is."""
    return [] if name in TASKS else [f"There is no task {name!r}. {nearest(name, TASKS)}"]
