"""What `check_for_new_data` does with its KFP inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.component_interface.step import fields_from, with_advanced
from gpu_pipelines.data.watch import WatchSettings, check_for_new_data
from gpu_pipelines.errors import user_errors_end_the_step


def run(arguments: Mapping[str, Any]) -> tuple[bool, str, str, str]:
    """Runs the step.

    Args:
        arguments: the inputs of the component, by name.

    Returns:
        Its outputs, in their order.
    """
    with user_errors_end_the_step():
        arguments = with_advanced(arguments)
        decision = check_for_new_data(fields_from(WatchSettings, arguments))
        print(decision.reason, flush=True)
    return decision.retrain, decision.reason, decision.model, decision.tokenizer
