"""Names that no two steps of a compiled pipeline share: KFP numbers the tasks of each pipeline in it by themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

#: What names a task of the same part: where an input, or an output of the part, comes from.
_PRODUCERS = ("producerTask", "producerSubtask")


def name_steps_apart(spec: Mapping[str, Any]) -> bool:
    """Gives steps other names that are called like another one of the file, or like a pipeline in it.

    Whatever is said of a step is said by its name: what it runs on, what it has come to, where it writes. A pipeline
    that is called twice has two steps of one name, and so have two pipelines with a component of one name each. So it
    is with loops and branches, whose names KFP makes: a run that goes on takes over a loop by its name.

    Args:
        spec: the pipeline; changed in place. The names that its root has stay.

    Returns:
        Whether there were such steps.
    """
    parts = [spec["root"], *spec.get("components", {}).values()]
    dags = [part["dag"] for part in parts if "dag" in part]
    pipelines = {key.removeprefix("comp-") for key, part in spec.get("components", {}).items() if "dag" in part}
    every = {name for dag in dags for name in dag.get("tasks", {})} | pipelines
    taken_by_steps, taken_by_parts, changed = set(pipelines), set[str](), False
    for dag in dags:
        names = {}
        for name, task in dag.get("tasks", {}).items():
            is_part = "dag" in spec["components"][task["componentRef"]["name"]]
            taken = taken_by_parts if is_part else taken_by_steps
            names[name] = free_name(name, every) if name in taken else name
            taken.add(names[name])
            every.add(names[name])
        if new := {old: name for old, name in names.items() if old != name}:
            _rename(dag, new)
            changed = True
    return changed


def free_name(name: str, taken: Collection[str]) -> str:
    """A name with a number behind it that is not taken."""
    return next(found for number in range(2, len(taken) + 3) if (found := f"{name}-{number}") not in taken)


def _rename(dag: dict[str, Any], new: Mapping[str, str]) -> None:
    """Renames tasks of a part, there and wherever it names them."""
    for old, name in new.items():
        dag["tasks"][name] = dag["tasks"].pop(old)
        dag["tasks"][name].setdefault("taskInfo", {})["name"] = name
    for task in dag["tasks"].values():
        if "dependentTasks" in task:
            task["dependentTasks"] = sorted(new.get(each, each) for each in task["dependentTasks"])
    _rename_producers([*(task.get("inputs", {}) for task in dag["tasks"].values()), dag.get("outputs", {})], new)


def _rename_producers(said: Any, new: Mapping[str, str]) -> None:
    for each in said.values() if isinstance(said, dict) else said if isinstance(said, list) else ():
        _rename_producers(each, new)
    for key in _PRODUCERS:
        if isinstance(said, dict) and said.get(key) in new:
            said[key] = new[said[key]]
