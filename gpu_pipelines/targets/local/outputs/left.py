"""Outputs of a run's steps, read from where KFP's executor wrote them: pages and metrics."""

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
from gpu_pipelines.targets.runs.record import RunRecord
from gpu_pipelines.targets.runs.recorded import entries_taken
from gpu_pipelines.targets.steps import StepRecord

Value = TypeVar("Value")
#: The last file that the executor of each step writes.
EXECUTOR_OUTPUT = "executor_output.json"
#: KFP's types of artifacts that are pages, and that are figures.
_PAGES, _METRICS = ("system.HTML", "system.Markdown"), "system.Metrics"


def written(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files of a run's steps, each with the step's name, in the order in which the steps ended.

    Args:
        directory: directory of the run.
    """
    files = directory.glob(f"artifacts/**/{EXECUTOR_OUTPUT}")
    for file in sorted(files, key=lambda file: file.stat().st_mtime_ns):
        with suppress(ValueError):  # of a step that failed while writing, such as on a number that JSON lacks
            yield file.parent.name, json.loads(file.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Left:
    """An artifact that a step of a run made, or that it reused from an earlier run.

    Attributes:
        step: name of the task.
        name: name of the output.
        kind: KFP's type of the artifact.
        path: its path.
        metadata: its metadata.
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
        directory: directory of the run.
        spec: the pipeline as KFP compiles it.
        steps: the steps that began.
        cache: folder of cached results.
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
    """Records which runs made the results that steps reused, and the parameters that distinguished them there.

    Args:
        steps: steps of a run.
        cache: folder of cached results.
        runs: directory of runs.
    """
    for entry, step in entries_taken((each for each in steps if not each.made_by), cache):
        for value in json.loads(entry.read_text(encoding="utf-8")).values():
            uri = value.get("uri") if isinstance(value, dict) else None
            if isinstance(uri, str) and Path(uri).is_relative_to(runs.resolve()):
                step.made_by = Path(uri).relative_to(runs.resolve()).parts[0]
                _take_over(step, runs / step.made_by, str(Path(uri).parent))


def _take_over(step: StepRecord, directory: Path, place: str) -> None:
    """Gives a reused step the place and the turn that it had in the original run."""
    with suppress(UserError):
        for made in RunRecord.load(directory).steps:
            if made.place == place:
                step.place, step.turn = place, made.turn


def complete_artifacts(step: StepRecord) -> None:
    """Writes the metadata of artifacts without a file to the artifacts' places, for a step that succeeded.

    KFP keeps metrics, for example, only as metadata. Its local cache takes an artifact without a file for deleted, and
    never reuses the step, nor any step that depends on it.

    Args:
        step: a step that has ended.
    """
    file = Path(step.place) / EXECUTOR_OUTPUT
    if step.status != "succeeded" or not step.place or not file.is_file():
        return
    for listed in json.loads(file.read_text(encoding="utf-8")).get("artifacts", {}).values():
        for each in listed["artifacts"]:
            place, metadata = Path(each["uri"]), each.get("metadata") or {}
            # Whoever moved it has recorded its place.
            if place.parent == Path(step.place) and not place.exists():
                place.write_text(json.dumps(metadata, indent=2) + "\n" if metadata else "", encoding="utf-8")


def pages_of(artifacts: Iterable[Left]) -> list[dict[str, str]]:
    """The pages among artifacts: `step`, `name` of the output and `path` of each."""
    return [{"step": each.step, "name": each.name, "path": each.path} for each in artifacts if each.kind in _PAGES]


def metrics_of(artifacts: Iterable[Left]) -> dict[str, float]:
    """The figures that steps logged, by name, with the step's name in front if several logged it."""
    return _logged(artifacts, finite)


def texts_of(artifacts: Iterable[Left]) -> dict[str, str]:
    """The same for texts that steps logged instead of figures."""
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
    """A value that is a finite number and not a truth value; None for others."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
