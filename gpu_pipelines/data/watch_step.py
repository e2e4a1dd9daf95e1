"""What `check_for_new_data` does with its KFP inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.component_interface.step import own_process, with_advanced
from gpu_pipelines.data.watch import WatchSettings, check_for_new_data
from gpu_pipelines.notifications import notes


def run(
    settings: WatchSettings, *, outcome_uri: str = "", advanced: Mapping[str, Any]
) -> tuple[bool, str, str, str, str]:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        outcome_uri: where to leave what was found, for the message at the end of the run; empty for none.
        advanced: values of some of them by name, which win.

    Returns:
        The outputs of the component, in their order.
    """
    with own_process():
        decision = check_for_new_data(with_advanced(settings, advanced))
        print(decision.reason, flush=True)
        notes.leave(outcome_uri, notes.LOOKED, {"retrain": decision.retrain, "reason": decision.reason})
    return decision.retrain, decision.reason, decision.model, decision.tokenizer, decision.image_processor
