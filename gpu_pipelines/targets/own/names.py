"""Unique names for the steps of a compiled pipeline: KFP numbers the tasks of each nested pipeline separately."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

#: Fields that name a task of the same part: the source of an input, or of an output of the part.
_PRODUCERS = ("producerTask", "producerSubtask")


def name_steps_apart(spec: Mapping[str, Any]) -> bool:
    """Renames steps that share a name with another step of the file, or with a pipeline in it.

    Machines, results and outputs of a step are identified by its name. A pipeline that is called twice has two steps of
    one name, and so have two pipelines with a component of one name. The same is true of loops and branches, whose
    names KFP makes: a continued run reuses a loop by its name.

    Args:
        spec: the pipeline; changed in place. Names in its root stay.

    Returns:
        Whether steps were renamed.
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
    """A name with a number appended that is not taken."""
    return next(found for number in range(2, len(taken) + 3) if (found := f"{name}-{number}") not in taken)


def _rename(dag: dict[str, Any], new: Mapping[str, str]) -> None:
    """Renames tasks of a part, and all references to them in it."""
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
