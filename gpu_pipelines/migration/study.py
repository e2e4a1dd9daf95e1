"""Migrates a tuning job of AI Platform Training to a search of this project: a search space, and the command for it.

The search trains with the recipes of this project in place of the old program. Its space can only have hyperparameters
that are parameters of `train_model`; for the others, the reason is given.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.space import space_of
from gpu_pipelines.yaml_output import comment, yaml_text

_PIPELINE = "tune_train_evaluate_upload"
#: The task of the command unless it names another.
_TASK = "image_classification"
#: Placeholder for the data, which the old job read by itself.
_SOURCE = "gs://YOUR-BUCKET/DATA"


@dataclass(frozen=True)
class MigratedStudy:
    """A search in place of a tuning job.

    Attributes:
        space: the search space.
        left_out: the reasons for hyperparameters that are missing, by name.
        options: options of the command, besides the file of the space.
    """

    space: Mapping[str, Any]
    left_out: Mapping[str, str]
    options: tuple[str, ...]

    def command(self, file: str) -> str:
        """The command that starts the search.

        Args:
            file: name of the space's file.
        """
        return shlex.join(["gpu-pipelines", "run", _PIPELINE, "--space", file, *self.options])

    def text(self, origin: str, file: str) -> str:
        """The space as YAML, with its origin and the command that starts the search as comments.

        Args:
            origin: the origin of the migration.
            file: name of the space's file.
        """
        head = [f"Migrated from {origin} by gpu-pipelines migrate.", self.command(file)]
        head += [f"Left out: {name}: {why}" for name, why in self.left_out.items()]
        return "".join(comment(line) for line in head) + self.text_of_space()

    def text_of_space(self) -> str:
        """The space as YAML."""
        return yaml_text(dict(self.space))

    def to_json(self, file: str) -> dict[str, Any]:
        """The search as a JSON object.

        Args:
            file: name of the space's file, for the command.
        """
        return {"space": dict(self.space), "left_out": dict(self.left_out), "command": self.command(file)}


def study_of(
    given: Mapping[str, Any], plan: AcceleratorPlan | None, project: str | None, region: str | None
) -> MigratedStudy | None:
    """The search for a tuning job; None if nothing is left to search for.

    Args:
        given: `hyperparameters` of the old job.
        plan: the plan of its master; None if that has no GPU.
        project: id of the project, if known.
        region: its region, if known.
    """
    space: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for parameter in given.get("params", []):
        name = str(parameter.get("parameterName", ""))
        try:
            entry = _dimension(parameter)
            if wrong := space_of({name: entry}).problems(TrainingSettings(), _TASK, processes=0):
                raise UserError.of_all(wrong)
            space[name] = entry
        except UserError as error:
            why = f"{error.problem} {error.remedy}".strip()
            left_out[name] = why.removeprefix("The search space: ").removeprefix("In the search space: ")
    if not space:
        return None
    options = ["--trials", str(given.get("maxTrials", 1)), "--parallel", str(given.get("maxParallelTrials", 1))]
    options += ["--target", "vertex", *(_machines(plan) if plan else ["--accelerator", "l4:1"])]
    options += [*(["--project", project] if project else []), *(["--region", region] if region else [])]
    options += ["-p", f"source={_SOURCE}"]
    if given.get("algorithm") == "RANDOM_SEARCH":
        options += ["-p", "sampler=random"]
    if not given.get("enableTrialEarlyStopping"):
        options += ["-p", "reduction=1"]
    return MigratedStudy(space, left_out, tuple(options))


def _machines(plan: AcceleratorPlan) -> list[str]:
    nodes = ["--nodes", str(plan.nodes)] if plan.nodes > 1 else []
    strategy = ["--strategy", plan.strategy] if plan.strategy != "standard" else []
    return ["--accelerator", plan.spec, *nodes, *strategy]


def _dimension(parameter: Mapping[str, Any]) -> dict[str, Any]:
    kind = parameter.get("type")
    if kind == "CATEGORICAL":
        return {"type": "categorical", "choices": list(parameter.get("categoricalValues", []))}
    if kind == "DISCRETE":
        return {"type": "categorical", "choices": [_number(value) for value in parameter.get("discreteValues", [])]}
    low, high = _number(parameter["minValue"]), _number(parameter["maxValue"])
    if low == high:
        return {"type": "categorical", "choices": [low]}
    is_log = parameter.get("scaleType") == "UNIT_LOG_SCALE"
    return {
        "type": "int" if kind == "INTEGER" else "float",
        "low": low,
        "high": high,
        **({"log": True} if is_log else {}),
    }


def _number(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value
