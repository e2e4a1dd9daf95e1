"""The end of a search with trials of a service, as tasks of a pipeline: the same for all services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: The outputs of `finish_study` by those of `tune_model`.
_OUTPUTS = {
    **{name: name for name in ("checkpoints", "training_metrics", "training_report", "best_parameters")},
    "study": "folder",
}


@dataclass(frozen=True)
class StudyOutputs:
    """The outputs of a search's tasks, in the form of a single task.

    Attributes:
        outputs: by the names of the outputs of `tune_model`.
    """

    outputs: Mapping[str, Any]


def finished(
    begun: Mapping[str, Any],
    dataset: Any,
    tracking: Any,
    job: Any,
    finish: Callable[..., Any],
    on_machines: Callable[..., Any],
) -> StudyOutputs:
    """Adds the last tasks of a search to the pipeline that is being built.

    Args:
        begun: outputs of `begin_study`.
        dataset: dataset of the trials.
        tracking: the tracker.
        job: an output of the task that ran the trials, which comes before.
        finish: adds `finish_study`.
        on_machines: adds it on the machines of a trial, which it needs to train longer.
    """
    from kfp import dsl

    given = {"dataset": dataset, "study": begun["study"], "job": job, "tracking": tracking}
    with dsl.If(begun["trains_longer"] == True, name="train-longer"):  # noqa: E712 (KFP makes a condition of it)
        longer = on_machines(**given)
    with dsl.Else(name="keep-the-best"):
        kept = finish(**given)
    return StudyOutputs({name: dsl.OneOf(longer.outputs[own], kept.outputs[own]) for name, own in _OUTPUTS.items()})
