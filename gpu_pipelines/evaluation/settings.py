"""What `evaluate_checkpoints` is asked to do, checked without importing torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gpu_pipelines.component_interface.parameter import parameter
from gpu_pipelines.errors import nearest
from gpu_pipelines.evaluation.gates import ChampionGate, Gate, parse_gate
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
    """The parameters of `evaluate_checkpoints`."""

    gates: list[str] = parameter(
        [],
        "Conditions on test metrics that a champion must meet, such as accuracy>=0.95. Metrics of the classification "
        "tasks: accuracy, macro_f1, macro_recall, min_recall, roc_auc, ece (calibration error), log_loss, and "
        "per_class.recall.min (also precision, f1; also mean); of causal_lm: loss, perplexity, bits_per_byte, "
        "token_accuracy, completion_accuracy; of regression: rmse, mae, r2, coverage; of token_classification: f1, "
        "precision, recall, macro_f1, token_accuracy; of preference: accuracy, margin, loss; of tasks of your own: "
        "loss, perplexity, token_accuracy. Of all, slices.METRIC.min and .max, and latency_p95_ms and latency_p50_ms "
        "of one row on the device of this step. "
        "better_than_champion by 0.005 at 95% asks for a difference whose 95% interval lies above 0.005; by and at "
        "can be left out. Empty for the default of the task: accuracy>=0.9 for image_classification, none for others.",
        common=True,
    )
    select_by: str = parameter(
        "",
        "Metric on val that chooses the best checkpoint, and on test compares it with the champion; empty for the "
        "first metric of the task. Of metrics of a scoring_function more is better, unless a minus stands before the "
        "name, as in -error_rate.",
    )
    scoring_function: str = parameter(
        "",
        "A function of your own for checkpoints in a format of your own, as package.module:function or "
        "path/to/file.py:function. It is called with the path of a checkpoint, the path of the dataset and the name "
        "of a split, and returns a dict of metrics. Checkpoints are the folders or files step-NUMBER, "
        "checkpoint-NUMBER and epoch-NUMBER.",
    )
    average_last: int = parameter(
        0,
        "How many of the last checkpoints are averaged into one more candidate, 2 or more; 0 for none.",
    )
    slice_by: str = parameter(
        "",
        "Column whose values are scored apart as well; prepare_data must have kept it. Empty for none.",
    )
    registry: str = parameter(
        "./registry",
        "Model registry whose champion is compared with: a directory, vertex://PROJECT/REGION for Vertex AI Model "
        "Registry, vertex:// alone for that of the job's own project and region, or mlflow:https://HOST for that of an "
        "MLflow server.",
    )
    model_name: str = parameter("", "Name of the model in the registry; empty to name it after the source of the data.")
    accept_shift: bool = parameter(
        False,
        "Whether the data is meant to be another than the champion was evaluated on. Otherwise no model passes where "
        "the champion's own score has fallen by more than chance allows, where classes or columns that it knew are "
        "gone, or where the shares of the classes have moved.",
    )

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
        why = _why_not_there(place, name, self.scoring_file)
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


def _why_not_there(module: str, name: str, file: Path | None) -> str:
    """Why a function cannot be imported, as far as the text of its module says; empty if nothing speaks against it.

    The packages around a module are imported, the module itself is not: it may need a GPU.
    """
    if file is None:
        try:
            spec = find_spec(module)
        except (Exception, SystemExit) as error:
            return f"{module} cannot be imported: {type(error).__name__}: {error}."
        if spec is None:
            return f"There is no module {module}. Add it to the image, or give a file."
        if not (spec.origin and spec.origin.endswith(".py")):
            return ""
        file = Path(spec.origin)
    elif not file.is_file():
        return f"There is no file {file}."
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        return f"{module} cannot be imported: {error}."
    names = _names_in(tree)
    return "" if names is None or name in names else f"{module} has no {name}. {nearest(name, sorted(names))}"


def _names_in(tree: ast.Module) -> set[str] | None:
    """The names that a module may have; None where it takes all those of another."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if any(alias.name == "*" for alias in node.names):
                return None
            found.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return None if "__getattr__" in found else found
