"""What `train_model` does with its KFP inputs and outputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.step import local_files, log_metrics, of_this_training, place_of, with_advanced
from gpu_pipelines.errors import user_errors_end_the_step
from gpu_pipelines.training.report import write_report
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model


def run(
    settings: TrainingSettings,
    *,
    dataset: Any,
    checkpoints: Any,
    training_metrics: Any,
    training_report: Any,
    checkpoint_uri: str = "",
    advanced: Mapping[str, Any],
) -> None:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        dataset: a KFP artifact, as are the next three.
        checkpoints: gets the checkpoints.
        training_metrics: gets the figures.
        training_report: gets the report.
        checkpoint_uri: where the checkpoints go; empty for the artifact's own place.
        advanced: values of parameters by name, which win; one is where the checkpoints go.
    """
    with user_errors_end_the_step():
        settings = with_advanced(settings, advanced, "checkpoint_uri")
        uri = of_this_training(advanced.get("checkpoint_uri", checkpoint_uri), settings, dataset)
        place = place_of(checkpoints, uri)
        summary = train_model(settings, local_files(dataset), place)
        if summary is None:
            # Only rank 0 writes outputs; KFP's executor would write its own after this function returned.
            sys.exit(0)
        checkpoints.metadata.update(
            task=summary.task, checkpoints=len(summary.checkpoints), rehearsal=summary.devices.rehearsal
        )
        log_metrics(training_metrics, summary.figures())
        write_report(summary, Path(training_report.path))
