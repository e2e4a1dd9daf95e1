"""What `evaluate_checkpoints` is asked to do, checked without importing torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_pipelines.components.evaluation.gates import Gate, parse_gate
from gpu_pipelines.errors import nearest
from gpu_pipelines.recipes.tasks import Metric, task_named
from gpu_pipelines.registry import registry_problems

# The dot before `py` keeps `module:function` apart; a file's name may be anything.
_FILE = re.compile(r"(?P<file>.+\.py):(?P<function>[^\W\d]\w*)")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True)
class Ranking:
    """What decides which of two models is better: a metric, and which way."""

    metric: str
    more_is_better: bool


@dataclass(frozen=True)
class EvaluationSettings:
    """The parameters of `evaluate_checkpoints`; see the component for what each means."""

    gates: list[str] = field(default_factory=list)
    select_by: str = ""
    scoring_function: str = ""
    registry: str = "./registry"
    model_name: str = ""

    def problems(self, task: str) -> list[str]:
        """Everything that is wrong with the values, each with what to do."""
        found = registry_problems(self.registry, self.model_name)
        metrics = self._known_metrics(task)
        if self.scoring_function and not (self.scoring_file or _MODULE.fullmatch(self.scoring_function)):
            found.append(
                f"scoring_function is {self.scoring_function!r}; give package.module:function or "
                "path/to/file.py:function."
            )
        if metrics is not None and self.select_by and self.select_by not in metrics:
            found.append(f"select_by is {self.select_by!r}, which is not a metric. {nearest(self.select_by, metrics)}")
        for gate in self.gates:
            try:
                parse_gate(gate, metrics)
            except ValueError as error:
                found.append(str(error))
        return found

    def problems_here(self) -> list[str]:
        """What is wrong with them on this machine: a file that is not there."""
        if self.scoring_file and not self.scoring_file.is_file():
            return [f"scoring_function is {self.scoring_function!r}, but there is no file {self.scoring_file}."]
        return []

    @property
    def scoring_file(self) -> Path | None:
        """The file of the scoring function, where it is given by its file."""
        match = _FILE.fullmatch(self.scoring_function)
        return Path(match["file"]).expanduser() if match else None

    def parsed_gates(self, task: str) -> list[Gate]:
        """The gates given, or the task's own where none are and its own metrics are used."""
        gates = self.gates or ([] if self.scoring_function else task_named(task).gates)
        return [parse_gate(gate, self._known_metrics(task)) for gate in gates]

    def ranking(self, task: str, metrics: Mapping[str, float]) -> Ranking:
        """What the best checkpoint is chosen by: `select_by`, or the first of the metrics.

        Args:
            task: task of the dataset.
            metrics: of some checkpoint, by name.
        """
        known = self._known_metrics(task)
        if known is not None:
            metric = self.select_by or next(iter(known))
            return Ranking(metric, known[metric].more_is_better)
        metric = self.select_by.removeprefix("-") or next(iter(metrics))
        return Ranking(metric, not self.select_by.startswith("-"))

    def _known_metrics(self, task: str) -> dict[str, Metric] | None:
        return None if self.scoring_function else task_named(task).metrics
