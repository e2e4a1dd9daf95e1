"""What `evaluate_checkpoints` is asked to do, checked without importing torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_pipelines.errors import nearest
from gpu_pipelines.evaluation.gates import ChampionGate, Gate, parse_gate
from gpu_pipelines.own_code import why_not_there
from gpu_pipelines.registry import registry_problems
from gpu_pipelines.tasks.metric import Metric
from gpu_pipelines.tasks.tasks import task_named

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
    average_last: int = 0
    slice_by: str = ""
    registry: str = "./registry"
    model_name: str = ""
    accept_shift: bool = False

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
        if self.average_last < 0 or self.average_last == 1:
            found.append(f"average_last is {self.average_last}; give 2 or more checkpoints, or 0 to average none.")
        for gate in self.gates:
            try:
                found += self._gate_problems(gate, parse_gate(gate, metrics, task_named(task).figures))
            except ValueError as error:
                found.append(str(error))
        return found + self._function_problems() if self.scoring_function else found

    def _gate_problems(self, text: str, gate: Gate | ChampionGate) -> list[str]:
        """What a gate asks for that cannot be known."""
        if isinstance(gate, Gate):
            if gate.metric.startswith("slices.") and not self.slice_by and not self.scoring_function:
                return [f"The gate {text!r} is about slices. Name a column with slice_by."]
            return []
        if self.scoring_function and gate.confidence is not None:
            return [
                f"The gate {text!r} asks for an interval; of a scoring_function only the metric of all rows is known. "
                "Leave out at …%."
            ]
        if self.scoring_function and gate.metric:
            return [f"The gate {text!r} names a metric; with a scoring_function the one of select_by is compared."]
        return []

    def _function_problems(self) -> list[str]:
        """What a scoring function cannot do."""
        found = []
        if self.average_last:
            found.append(
                "average_last needs checkpoints of train_model; of a scoring_function's the format is unknown."
            )
        if self.slice_by:
            found.append("slice_by needs predictions of each row; a scoring_function gives metrics of all rows.")
        return found

    def problems_here(self) -> list[str]:
        """What is wrong with them on this machine: a function that is not there."""
        if not self.scoring_function:
            return []
        place, _, name = self.scoring_function.rpartition(":")
        why = why_not_there(place, name, self.scoring_file)
        return [f"scoring_function is {self.scoring_function!r}: {why}"] if why else []

    @property
    def scoring_file(self) -> Path | None:
        """The file of the scoring function, where it is given by its file."""
        match = _FILE.fullmatch(self.scoring_function)
        return Path(match["file"]).expanduser() if match else None

    def parsed_gates(self, task: str) -> list[Gate | ChampionGate]:
        """The gates given, or the task's own where none are and its own metrics are used."""
        gates = self.gates or ([] if self.scoring_function else task_named(task).gates)
        return [parse_gate(gate, self._known_metrics(task), task_named(task).figures) for gate in gates]

    def ranking(self, task: str, metrics: Mapping[str, float], metric: str = "") -> Ranking:
        """What two models are compared by: `metric`, else `select_by`, else the first of the metrics.

        Args:
            task: task of the dataset.
            metrics: of some checkpoint, by name.
            metric: one of the task's.
        """
        known = self._known_metrics(task)
        if known is not None:
            metric = metric or self.select_by or next(iter(known))
            return Ranking(metric, known[metric].more_is_better)
        metric = self.select_by.removeprefix("-") or next(iter(metrics))
        return Ranking(metric, not self.select_by.startswith("-"))

    def _known_metrics(self, task: str) -> Mapping[str, Metric] | None:
        return None if self.scoring_function else task_named(task).metrics
