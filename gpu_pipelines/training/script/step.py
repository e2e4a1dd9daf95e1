"""What `run_training_script` does with its KFP inputs and outputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.step import log_metrics, of_this_training, place_of, with_advanced
from gpu_pipelines.errors import user_errors_end_the_step
from gpu_pipelines.training.script.report import write_report
from gpu_pipelines.training.script.run import run_script
from gpu_pipelines.training.script.settings import ScriptSettings


def run(
    settings: ScriptSettings,
    *,
    dataset: Any,
    checkpoints: Any,
    training_metrics: Any,
    training_report: Any,
    checkpoint_uri: str = "",
) -> None:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        dataset: a KFP artifact, as are the next three.
        checkpoints: gets what the script writes.
        training_metrics: gets the figures.
        training_report: gets the report.
        checkpoint_uri: where the checkpoints go; empty for the artifact's own place.
    """
    with user_errors_end_the_step():
        settings = with_advanced(settings, {})
        place = place_of(checkpoints, of_this_training(checkpoint_uri, settings, dataset))
        summary = run_script(settings, Path(dataset.path), place)
        if summary is None:
            # Only rank 0 writes outputs; KFP's executor would write its own after this function returned.
            sys.exit(0)
        checkpoints.metadata.update(script=settings.script, checkpoints=len(summary.checkpoints))
        log_metrics(training_metrics, summary.figures())
        write_report(summary, Path(training_report.path))
