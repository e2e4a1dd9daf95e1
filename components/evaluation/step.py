"""What `evaluate_checkpoints` does with its KFP inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.components.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.components.evaluation.report import write_report
from gpu_pipelines.components.evaluation.settings import EvaluationSettings
from gpu_pipelines.errors import user_errors_end_the_step
from gpu_pipelines.step_interface import fields_from, log_metrics, write_figures


def run(arguments: Mapping[str, Any]) -> bool:
    """Runs the step.

    Args:
        arguments: the inputs and artifacts of the component, by name.

    Returns:
        Whether all gates passed.
    """
    with user_errors_end_the_step():
        model = arguments["best_checkpoint"]
        dataset = Path(arguments["dataset"].path)
        settings = fields_from(EvaluationSettings, arguments)
        evaluation = evaluate_checkpoints(settings, dataset, Path(arguments["checkpoints"].path), Path(model.path))
        model.metadata.update(task=evaluation.task, framework="pytorch", checkpoint=evaluation.best)
        metrics = evaluation.test["metrics"]
        log_metrics(arguments["evaluation"], {f"test_{name}": round(m["value"], 6) for name, m in metrics.items()})
        matrix = {"labels": evaluation.labels, "rows": evaluation.test["confusion"]}
        arguments["confusion"].log_confusion_matrix(matrix["labels"], matrix["rows"])
        write_figures(arguments["confusion"], matrix)
        write_report(evaluation, dataset, Path(arguments["report"].path))
        for gate in evaluation.gates:
            print(f"gate {gate['gate']}: {'passed' if gate['passed'] else 'FAILED'}, {gate['why']}", flush=True)
    return evaluation.passed
