"""What the steps of a run have left, read from where KFP's executor wrote it: pages to look at, and metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.targets.compiled import step_components

#: What the executor of each step writes last.
_WRITTEN = "executor_output.json"
#: What KFP calls artifacts that people look at, and figures.
_PAGES, _METRICS = ("system.HTML", "system.Markdown"), "system.Metrics"


def written(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the steps of a run have written, each with its name, in the order in which they ended.

    Args:
        directory: the run's.
    """
    files = directory.glob(f"artifacts/**/{_WRITTEN}")
    for file in sorted(files, key=lambda file: file.stat().st_mtime_ns):
        yield file.parent.name, json.loads(file.read_text(encoding="utf-8"))


def pages_of(directory: Path, spec: Mapping[str, Any]) -> list[dict[str, str]]:
    """The pages that the steps have left: `step`, `name` of the output and `path` of each.

    Args:
        directory: the run's.
        spec: the pipeline as KFP compiles it.
    """
    return [
        {"step": step, "name": name, "path": str(artifact["uri"])}
        for step, name, kind, artifact in _artifacts(directory, spec)
        if kind in _PAGES
    ]


def metrics_of(directory: Path, spec: Mapping[str, Any]) -> dict[str, float]:
    """The figures that the steps have logged, by name; with the step's name before, where several have logged it.

    Args:
        directory: the run's.
        spec: the pipeline as KFP compiles it.
    """
    found = [
        (step, name, number)
        for step, _, kind, artifact in _artifacts(directory, spec)
        if kind == _METRICS
        for name, value in (artifact.get("metadata") or {}).items()
        if (number := finite(value)) is not None
    ]
    steps_by_name: dict[str, set[str]] = {}
    for step, name, _ in found:
        steps_by_name.setdefault(name, set()).add(step)
    return {name if len(steps_by_name[name]) == 1 else f"{step} {name}": number for step, name, number in found}


def finite(value: Any) -> float | None:
    """A value that is a finite number and no truth value; None of others."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _artifacts(directory: Path, spec: Mapping[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Step, name, kind and what is known of each artifact that the steps have left."""
    components = step_components(spec)
    for step, content in written(directory):
        outputs = components.get(step, {}).get("outputDefinitions", {}).get("artifacts", {})
        for name, each in content.get("artifacts", {}).items():
            kind = outputs.get(name, {}).get("artifactType", {}).get("schemaTitle", "")
            for artifact in each["artifacts"]:
                yield step, name, kind, artifact
