"""What `run_training_script` does with its KFP inputs and outputs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.step import fields_from, log_metrics, place_of
from gpu_pipelines.errors import user_errors_end_the_step
from gpu_pipelines.training.script.report import write_report
from gpu_pipelines.training.script.run import run_script
from gpu_pipelines.training.script.settings import ScriptSettings


def run(arguments: Mapping[str, Any]) -> None:
    """Runs the step.

    Args:
        arguments: the inputs and artifacts of the component, by name.
    """
    with user_errors_end_the_step():
        checkpoints = arguments["checkpoints"]
        place = place_of(checkpoints, arguments["checkpoint_uri"])
        settings = fields_from(ScriptSettings, arguments)
        summary = run_script(settings, Path(arguments["dataset"].path), place)
        if summary is None:
            # Only rank 0 writes outputs; KFP's executor would write its own after this function returned.
            sys.exit(0)
        checkpoints.metadata.update(script=settings.script, checkpoints=len(summary.checkpoints))
        log_metrics(arguments["training_metrics"], summary.figures())
        write_report(summary, Path(arguments["training_report"].path))
