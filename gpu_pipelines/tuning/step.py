"""What `tune_model` does with its KFP inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.component_interface.step import own_process, with_advanced
from gpu_pipelines.tuning.settings import TuningSettings


def run(
    settings: TuningSettings,
    *,
    dataset: Any,
    checkpoints: Any,
    training_metrics: Any,
    training_report: Any,
    study: Any,
    checkpoint_uri: str = "",
    tracking: str = "none",
    advanced: Mapping[str, Any],
) -> dict[str, Any]:
    """Runs the step."""
    with own_process():
        settings = with_advanced(settings, advanced, "checkpoint_uri")
    raise NotImplementedError
