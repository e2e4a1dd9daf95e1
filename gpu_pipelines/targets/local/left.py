"""What the steps of a run have left, read from where KFP's executor wrote it: pages to look at, and metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.compiled import step_components
from gpu_pipelines.targets.recorded_runs import entries_taken
from gpu_pipelines.targets.run_record import RunRecord
from gpu_pipelines.targets.steps import StepRecord

Value = TypeVar("Value")
#: What the executor of each step writes last.
EXECUTOR_OUTPUT = "executor_output.json"
#: What KFP calls artifacts that people look at, and figures.
_PAGES, _METRICS = ("system.HTML", "system.Markdown"), "system.Metrics"


def written(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the steps of a run have written, each with its name, in the order in which they ended.

    Args:
        directory: the run's.
    """
    files = directory.glob(f"artifacts/**/{EXECUTOR_OUTPUT}")
    for file in sorted(files, key=lambda file: file.stat().st_mtime_ns):
        with suppress(ValueError):  # of a step that failed while it wrote, as with a number that JSON does not have
            yield file.parent.name, json.loads(file.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Left:
    """An artifact that a step of a run has left, or that it has taken from an earlier run.

    Attributes:
        step: name of the task.
        name: of the output.
        kind: what KFP calls artifacts of its kind.
        path: where it is.
        metadata: what else is known of it.
    """

    step: str
    name: str
    kind: str
    path: str
    metadata: Mapping[str, Any]


def artifacts_left(
    directory: Path, spec: Mapping[str, Any], steps: Iterable[StepRecord], cache: Path
) -> Iterator[Left]:
    """The artifacts of a run's steps.

    Args:
        directory: the run's.
        spec: the pipeline as KFP compiles it.
        steps: those that began.
        cache: where results of steps are kept over runs.
    """
    components = step_components(spec)
    for entry, taker in entries_taken(steps, cache):
        for name, value in json.loads(entry.read_text(encoding="utf-8")).items():
            if isinstance(value, dict) and "schema_title" in value:
                yield Left(taker.task, name, value["schema_title"], str(value.get("uri")), value.get("metadata") or {})
    for step, content in written(directory):
        outputs = components.get(step, {}).get("outputDefinitions", {}).get("artifacts", {})
        for name, each in content.get("artifacts", {}).items():
            kind = outputs.get(name, {}).get("artifactType", {}).get("schemaTitle", "")
            for artifact in each["artifacts"]:
                yield Left(step, name, kind, str(artifact["uri"]), artifact.get("metadata") or {})


def note_makers(steps: Iterable[StepRecord], cache: Path, runs: Path) -> None:
    """Notes which runs have made the results that steps have taken, and what these were told there.

    Args:
        steps: those of a run.
        cache: where results of steps are kept over runs.
        runs: directory of runs.
    """
    for entry, step in entries_taken((each for each in steps if not each.made_by), cache):
        for value in json.loads(entry.read_text(encoding="utf-8")).values():
            uri = value.get("uri") if isinstance(value, dict) else None
            if isinstance(uri, str) and Path(uri).is_relative_to(runs.resolve()):
                step.made_by = Path(uri).relative_to(runs.resolve()).parts[0]
                _take_over(step, runs / step.made_by, str(Path(uri).parent))


def _take_over(step: StepRecord, directory: Path, place: str) -> None:
    """Names a step that was reused as in the run that it was taken from."""
    with suppress(UserError):
        for made in RunRecord.load(directory).steps:
            if made.place == place:
                step.place, step.turn = place, made.turn


def complete_artifacts(step: StepRecord) -> None:
    """Writes what is known of them in the places of artifacts to which a step that succeeded has written no file.

    KFP keeps metrics, say, as metadata alone. Its local cache holds an artifact without a file for deleted, and never
    reuses the step, nor any that takes something of it.

    Args:
        step: one that has ended.
    """
    file = Path(step.place) / EXECUTOR_OUTPUT
    if step.status != "succeeded" or not step.place or not file.is_file():
        return
    for listed in json.loads(file.read_text(encoding="utf-8")).get("artifacts", {}).values():
        for each in listed["artifacts"]:
            place, metadata = Path(each["uri"]), each.get("metadata") or {}
            # Whoever moved it elsewhere has said where it is.
            if place.parent == Path(step.place) and not place.exists():
                place.write_text(json.dumps(metadata, indent=2) + "\n" if metadata else "", encoding="utf-8")


def pages_of(artifacts: Iterable[Left]) -> list[dict[str, str]]:
    """The pages among artifacts: `step`, `name` of the output and `path` of each."""
    return [{"step": each.step, "name": each.name, "path": each.path} for each in artifacts if each.kind in _PAGES]


def metrics_of(artifacts: Iterable[Left]) -> dict[str, float]:
    """The figures that steps have logged, by name; with the step's name before, where several have logged it."""
    return _logged(artifacts, finite)


def texts_of(artifacts: Iterable[Left]) -> dict[str, str]:
    """The same of texts that steps have logged in place of figures."""
    return _logged(artifacts, lambda value: value if isinstance(value, str) else None)


def _logged(artifacts: Iterable[Left], usable: Callable[[Any], Value | None]) -> dict[str, Value]:
    found = [
        (each.step, name, made)
        for each in artifacts
        if each.kind == _METRICS
        for name, value in each.metadata.items()
        if (made := usable(value)) is not None
    ]
    steps_by_name: dict[str, set[str]] = {}
    for step, name, _ in found:
        steps_by_name.setdefault(name, set()).add(step)
    return {name if len(steps_by_name[name]) == 1 else f"{step} {name}": made for step, name, made in found}


def finite(value: Any) -> float | None:
    """A value that is a finite number and no truth value; None of others."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
