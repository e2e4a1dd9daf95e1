"""The result of the newest trial, kept for the time limit of the training that it was a trial of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.accelerators.advice import Advice

#: Directory of the runs on this machine.
RUNS = Path("runs")
#: File in the directory of runs.
FILE = "trial.json"
_FORMAT = 1
#: A training may take so many times what the trial says, and the hours for starting machines, image and data: the
#: estimate is based on an assumed utilization of the GPUs.
_TIMES, _START_HOURS = 3.0, 1.0
_LEAST_HOURS, _MOST_HOURS = 4.0, 168.0


def save_trial(runs: Path, arguments: Mapping[str, Any], advice: Advice) -> dict[str, Any]:
    """Records how long the training would take on one machine with each fitting accelerator; returns the record.

    Args:
        runs: directory of runs.
        arguments: all parameters of the pipeline.
        advice: advice from the trial.
    """
    hours = {
        option.plan.spec: option.time.hours
        for option in advice.options
        if option.plan.nodes == 1 and option.time is not None
    }
    content = {"format_version": _FORMAT, "parameters": shaping_parameters(arguments), "hours": hours}
    runs.mkdir(parents=True, exist_ok=True)
    (runs / FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return content


def hours_by_trial(runs: Path, arguments: Mapping[str, Any], plan: AcceleratorPlan) -> float | None:
    """The limit of a training's time: three times the estimate of the newest trial plus an hour, at least four hours.

    Several machines get as much time as one: they need no more.

    Args:
        runs: directory of runs.
        arguments: all parameters of the pipeline.
        plan: plan of the training.

    Returns:
        Hours; None if there is no trial of this training, or none with this accelerator.
    """
    try:
        content = json.loads((runs / FILE).read_text(encoding="utf-8"))
        before, hours = dict(content["parameters"]), dict(content["hours"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    now = shaping_parameters(arguments)
    if now.get("max_steps"):
        # The number of steps is the same, whatever the data.
        before, now = ({**given, "source": ""} for given in (before, now))
    if content.get("format_version") != _FORMAT or before != now or plan.spec not in hours:
        return None
    return min(_MOST_HOURS, max(_LEAST_HOURS, float(math.ceil(_TIMES * hours[plan.spec] + _START_HOURS))))


def shaping_parameters(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that determine the amount of training."""
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.training.settings import TrainingSettings

    names = [field.name for settings in (PrepareSettings, TrainingSettings) for field in fields(settings)]
    return {name: arguments[name] for name in names if name in arguments}
