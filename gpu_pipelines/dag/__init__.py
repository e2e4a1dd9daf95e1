"""Pipelines: DAGs built from the components through a target."""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from gpu_pipelines.errors import UserError, nearest

#: Names of the pipelines on the command line, which are the names of their folders.
PIPELINES = (
    "train_evaluate_upload",
    "scheduled_retraining",
    "train_script_evaluate_upload",
    "tune_train_evaluate_upload",
    "batch_prediction",
)
#: The pipelines whose compiled files are published.
PUBLISHED = ("train_evaluate_upload", "scheduled_retraining", "tune_train_evaluate_upload", "batch_prediction")
#: The pipeline that trains nothing: its data needs no labels.
PREDICTION = "batch_prediction"
#: The pipeline that trains with a script in place of another, by the name of the latter.
BY_SCRIPT = {"train_evaluate_upload": "train_script_evaluate_upload"}


def pipeline_for(name: str, given: Mapping[str, Any]) -> str:
    """The name of the pipeline to run: if a script is given, the one that trains with it.

    Args:
        name: the requested pipeline.
        given: the given values of parameters.

    Raises:
        UserError: a script is given, and the pipeline is one of this project that does not run a script.
    """
    if not given.get("script") or name not in PIPELINES or name in BY_SCRIPT.values():
        return name
    if name not in BY_SCRIPT:
        raise UserError(f"The pipeline {name} does not run a script.", f"Give script to {' or '.join(BY_SCRIPT)}.")
    return BY_SCRIPT[name]


def load_request(name: str) -> ModuleType:
    """The request for a pipeline, which needs no compiler of KFP: checks of its parameters (`problems`,
    `problems_of_access`), the `places` that they name, and the `SETTINGS` of its steps.

    Raises:
        UserError: there is no pipeline of that name.
    """
    require_pipeline(name)
    return import_module(f"gpu_pipelines.dag.{name}")


def load_pipeline(name: str) -> ModuleType:
    """The module of a pipeline, with `build`.

    Raises:
        UserError: there is no pipeline of that name.
    """
    require_pipeline(name)
    return import_module(f"gpu_pipelines.pipelines.{name}.pipeline")


def require_pipeline(name: str) -> None:
    """Checks that a pipeline is one of this project.

    Raises:
        UserError: there is none of that name.
    """
    if name.endswith(".ipynb"):
        raise UserError(
            f"{name} is a notebook, and no file of a pipeline.",
            "Call gpu_pipelines.run(FUNCTION) in it, or write its cell to a file: %%writefile FILE.py.",
        )
    if name not in PIPELINES:
        own = "One of your own is FILE.py, a compiled file, or on Vertex AI an uploaded NAME/TAG, such as NAME/latest."
        others = f"Valid: {', '.join(PIPELINES)}. {own}"
        raise UserError(f"There is no pipeline {name[:60]!r}.", nearest(name, PIPELINES, otherwise=others))
