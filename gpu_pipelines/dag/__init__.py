"""Pipelines: DAGs built from the components through a target."""

from importlib import import_module
from types import ModuleType

from gpu_pipelines.errors import UserError, nearest

#: Names of the pipelines on the command line, which are those of their folders.
PIPELINES = ("train_evaluate_upload", "scheduled_retraining")


def load_request(name: str) -> ModuleType:
    """The request for a pipeline, which needs no compiler of KFP: what can be wrong with its parameters (`problems`,
    `problems_of_access`), the `places` that they name, and the `SETTINGS` of its steps.

    Raises:
        UserError: there is no pipeline of that name.
    """
    _require(name)
    return import_module(f"gpu_pipelines.dag.{name}")


def load_pipeline(name: str) -> ModuleType:
    """The module of a pipeline, with `build`.

    Raises:
        UserError: there is no pipeline of that name.
    """
    _require(name)
    return import_module(f"gpu_pipelines.pipelines.{name}.pipeline")


def _require(name: str) -> None:
    if name not in PIPELINES:
        raise UserError(f"There is no pipeline {name[:60]!r}.", nearest(name, PIPELINES))
