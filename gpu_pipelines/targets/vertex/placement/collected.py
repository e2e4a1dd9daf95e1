"""Artifacts of loops that a step takes as a list (`dsl.Collected`), whose number Vertex AI limits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

#: Most artifacts of one input: https://github.com/kubeflow/kubeflow/issues/7513.
MOST_ARTIFACTS = 100


def told_collected(spec: Mapping[str, Any]) -> list[str]:
    """A warning for each step that takes more artifacts of loops than Vertex AI passes to one.

    Turns over items that only the run knows are not counted.

    Args:
        spec: the compiled pipeline.
    """
    return [
        f"warning: {step} takes {count:,} artifacts of a loop as its {name}. Vertex AI takes {MOST_ARTIFACTS} at most, "
        "and fails the run there: collect a parameter, such as the path of each, or have fewer turns"
        for step, name, count in _collections(spec)
        if count > MOST_ARTIFACTS
    ]


def _collections(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """The steps that take artifacts of others, with the input and the least number of artifacts."""
    for part in (spec["root"], *spec.get("components", {}).values()):
        tasks = part.get("dag", {}).get("tasks", {})
        for step, task in tasks.items():
            for name, source in task.get("inputs", {}).get("artifacts", {}).items():
                if output := source.get("taskOutputArtifact"):
                    made_by, key = tasks[output["producerTask"]], output["outputArtifactKey"]
                    yield step, name, _count(spec, made_by, key)


def _count(spec: Mapping[str, Any], task: Mapping[str, Any], output: str) -> int:
    """The least number of artifacts of a task's output."""
    dag = spec["components"][task["componentRef"]["name"]].get("dag")
    if dag is None:
        return 1
    sources = dag.get("outputs", {}).get("artifacts", {}).get(output, {}).get("artifactSelectors", [])
    # If there are several sources, a branch chooses one.
    inside = min(
        (_count(spec, dag["tasks"][each["producerSubtask"]], each["outputArtifactKey"]) for each in sources), default=1
    )
    items = task.get("parameterIterator", {}).get("items", {})
    return inside * (len(json.loads(items["raw"])) if "raw" in items else 1)
