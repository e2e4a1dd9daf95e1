"""A run on this machine in the form in which another run can continue it, read from its files."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu_pipelines.dag.placement import TRAINING_STEPS
from gpu_pipelines.targets.local.outputs.left import EXECUTOR_OUTPUT
from gpu_pipelines.targets.runs.earlier import EarlierRun, Made
from gpu_pipelines.targets.runs.record import RunRecord
from gpu_pipelines.targets.runs.recorded import CACHE, checkpoints_of, entries_taken
from gpu_pipelines.targets.steps import StepRecord

#: Suffix of a step's name in a turn of a loop.
_TURN = re.compile(r" #\d+$")


def earlier_run(record: RunRecord) -> EarlierRun:
    """A run on this machine, in the form that all targets share.

    Args:
        record: record of the run.
    """
    steps = {_TURN.sub("", step.name): step for step in record.steps}
    made = {name: _made(Path(step.place)) for name, step in steps.items() if step.place}
    # The place of a reused step that made only values is not known.
    kept = {name: _kept(step, record.directory.parent / CACHE) for name, step in steps.items() if not step.place}
    made |= {name: each for name, each in kept.items() if each is not None}
    began = [name for name in steps if any(name.startswith(each) for each in TRAINING_STEPS)]
    place = checkpoints_of(record)
    return EarlierRun(
        name=record.run_id,
        target="local",
        state=record.status,
        spec={"pipelineInfo": {"name": record.pipeline}},
        parameters=record.parameters,
        # Reused steps of another run left nothing here.
        resumes=record.resumes if any(_is_of_another(step) for step in record.steps) else "",
        accelerator=record.accelerator,
        states={name: step.status for name, step in steps.items()},
        made=made,
        trainings={name: record.trainings.get(name) or place for name in began if place or name in record.trainings},
    )


def _is_of_another(step: StepRecord) -> bool:
    """Whether a step was reused from a run elsewhere, and not from the cache here."""
    return step.status == "reused" and not step.place and not step.taken


def _kept(step: StepRecord, cache: Path) -> Made | None:
    """The values that a reused step made; None if it made artifacts, or is no longer cached."""
    for entry, _ in entries_taken([step], cache):
        text = entry.read_text(encoding="utf-8")
        if '"schema_title"' not in text:
            return Made(json.loads(text))
    return None


def _made(place: Path) -> Made:
    content: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        content = json.loads((place / EXECUTOR_OUTPUT).read_text(encoding="utf-8"))
    artifacts = {
        key: [{"uri": each["uri"], "metadata": each.get("metadata") or {}} for each in listed["artifacts"]]
        for key, listed in content.get("artifacts", {}).items()
    }
    return Made(content.get("parameterValues", {}), artifacts)
