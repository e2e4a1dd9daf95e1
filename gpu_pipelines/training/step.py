"""What `train_model` does with its KFP inputs and outputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.step import fields_from, local_files, log_metrics, place_of, with_advanced
from gpu_pipelines.errors import user_errors_end_the_step
from gpu_pipelines.training.report import write_report
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model


def run(arguments: Mapping[str, Any]) -> None:
    """Runs the step.

    Args:
        arguments: the inputs and artifacts of the component, by name.
    """
    with user_errors_end_the_step():
        arguments = with_advanced(arguments)
        checkpoints = arguments["checkpoints"]
        place = place_of(checkpoints, arguments["checkpoint_uri"])
        settings = fields_from(TrainingSettings, arguments)
        summary = train_model(settings, local_files(arguments["dataset"]), place)
        if summary is None:
            # Only rank 0 writes outputs; KFP's executor would write its own after this function returned.
            sys.exit(0)
        checkpoints.metadata.update(
            task=summary.task, checkpoints=len(summary.checkpoints), rehearsal=summary.devices.rehearsal
        )
        log_metrics(arguments["training_metrics"], summary.figures())
        write_report(summary, Path(arguments["training_report"].path))
