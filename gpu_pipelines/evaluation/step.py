"""What `evaluate_checkpoints` does with its KFP inputs and outputs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint_store import holds_training, local_copy
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.component_interface.step import (
    fields_from,
    local_files,
    log_metrics,
    output_files,
    place_of,
    with_advanced,
    write_figures,
)
from gpu_pipelines.errors import user_errors_end_the_step
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.evaluation.settings import EvaluationSettings


def run(arguments: Mapping[str, Any]) -> bool:
    """Runs the step.

    Args:
        arguments: the inputs and artifacts of the component, by name.

    Returns:
        Whether all gates passed.
    """
    with user_errors_end_the_step():
        arguments = with_advanced(arguments)
        model = arguments["best_checkpoint"]
        dataset = local_files(arguments["dataset"])
        settings = fields_from(EvaluationSettings, arguments)
        place = place_of(arguments["checkpoints"])
        with tempfile.TemporaryDirectory(prefix="gpu-pipelines-checkpoints-") as scratch:
            foreign = bool(settings.scoring_function) or not holds_training(place)
            directory = local_copy(place, Path(scratch), foreign=foreign)
            with output_files(model, EVALUATION) as exported:
                evaluation = evaluate_checkpoints(settings, dataset, directory, exported)
        model.metadata.update(task=evaluation.task, checkpoint=evaluation.best, rehearsal=evaluation.rehearsal)
        if not evaluation.scoring_function:
            model.metadata["framework"] = "pytorch"
        # A metric that is not a number would fail the task on Vertex AI.
        values = {name: metric["value"] for name, metric in evaluation.test["metrics"].items()}
        if unknown := [name for name, value in values.items() if value is None]:
            print(
                f"warning: not a finite number on test, and left out of the metrics: {', '.join(unknown)}", flush=True
            )
        figures = {f"test_{name}": round(value, 6) for name, value in values.items() if value is not None}
        log_metrics(arguments["evaluation"], figures)
        _write_confusion(arguments["confusion"], evaluation)
        write_report(evaluation, dataset, Path(arguments["report"].path))
        for gate in evaluation.gates:
            print(f"gate {gate['gate']}: {'passed' if gate['passed'] else 'FAILED'}, {gate['why']}", flush=True)
    return evaluation.passed


def _write_confusion(artifact: Any, evaluation: Evaluation) -> None:
    """Writes the confusion matrix; without classes the artifact is there, and empty."""
    rows = evaluation.test.get("confusion", [])
    if rows:
        artifact.log_confusion_matrix(evaluation.labels, rows)
    write_figures(artifact, {"labels": evaluation.labels if rows else [], "rows": rows})
