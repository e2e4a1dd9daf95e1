"""The order in which the tasks of a compiled pipeline's DAG can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def tasks_before(task: Mapping[str, Any]) -> set[str]:
    """The names of the tasks that a task waits for: its declared dependencies, and the producers of its inputs."""
    given = task.get("inputs", {})
    outputs = [source.get("taskOutputParameter") for source in given.get("parameters", {}).values()]
    outputs += [source.get("taskOutputArtifact") for source in given.get("artifacts", {}).values()]
    return {*task.get("dependentTasks", []), *(each["producerTask"] for each in outputs if each)}


def in_order(tasks: Mapping[str, Any]) -> Iterator[str]:
    """The names of tasks, each after its dependencies."""
    left, done = list(tasks), set[str]()
    while left:
        name = next(each for each in left if tasks_before(tasks[each]) & tasks.keys() <= done)
        left.remove(name)
        done.add(name)
        yield name
