"""What `evaluate_checkpoints` is asked to do, checked without importing torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_pipelines.components.evaluation.gates import Gate, parse_gate
from gpu_pipelines.errors import nearest
from gpu_pipelines.recipes.tasks import TASKS
from gpu_pipelines.registry import registry_problems

DEFAULT_GATES = ("accuracy>=0.9",)


@dataclass(frozen=True)
class EvaluationSettings:
    """The parameters of `evaluate_checkpoints`; see the component for what each means."""

    gates: list[str] = field(default_factory=lambda: list(DEFAULT_GATES))
    select_by: str = "accuracy"
    registry: str = "./registry"
    model_name: str = ""

    def problems(self, task: str) -> list[str]:
        """Everything that is wrong with the values, each with what to do."""
        if task not in TASKS:
            return []
        found = registry_problems(self.registry, self.model_name)
        metrics = TASKS[task].metrics
        if self.select_by not in metrics:
            found.append(f"select_by is {self.select_by!r}, which is not a metric. {nearest(self.select_by, metrics)}")
        for gate in self.gates:
            try:
                parse_gate(gate, task)
            except ValueError as error:
                found.append(str(error))
        return found

    def parsed_gates(self, task: str) -> list[Gate]:
        return [parse_gate(gate, task) for gate in self.gates]
