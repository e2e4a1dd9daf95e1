"""What no platform can run in a pipeline that KFP has compiled: references to nothing, and conditions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.pipelines.conditions import check_condition
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.spec_steps import tasks_in

_ITEM, _FIELD, _CHANNEL = "loop-item", "-subvar-", "pipelinechannel--"
_ITEM_IN_TEXT = re.compile(r"loop-item-param-\d+|[\w-]+-loop-item\b")
#: KFP escapes neither in a condition.
_SPECIAL = re.compile(r"[\\\n\r]")
#: KFP's compiler confuses groups of the same name, such as those of a pipeline and of one within it.
IN_A_PIPELINE = (
    "KFP's compiler loses it on the way into a loop or a branch. Put that into a pipeline of its own (@dsl.pipeline), "
    "and call it with what it needs; if it is in one already, write its steps where that is called."
)
_SELECTOR = "parseJson(string_value)[%s]"
#: The place of an input's value in a text.
_REFERENCE = re.compile(r"\{\{\$.*?\}\}")


class _Lost(NamedTuple):
    """An input that does not exist, and a task gets.

    Attributes:
        name: of the input.
        task: name of the task.
        placed: the task.
        key: what the task calls the input.
        known: the inputs that exist.
    """

    name: str
    task: str
    placed: dict[str, Any]
    key: str
    known: Mapping[str, Any]


def mend(spec: Mapping[str, Any], place: str) -> bool:
    """Takes fields of a loop's item from the item where KFP lost them, and checks that platforms can run a pipeline.

    Args:
        spec: the pipeline, which may be changed.
        place: origin of the pipeline, for the message.

    Returns:
        Whether it was changed.

    Raises:
        UserError: no platform can run it as KFP has compiled it.
    """
    _require_steps(spec, place)
    _require_own_items(spec, place)
    is_changed = _mend_fields(spec)
    _require_inputs(spec, place)
    _require_fields(spec, place)
    _require_conditions(spec, place)
    return is_changed


def _require_inputs(spec: Mapping[str, Any], place: str) -> None:
    """Checks that inputs that tasks get from the pipeline around them exist."""
    for lost in _lost(spec):
        item, _, field = lost.name.rpartition(_FIELD)
        if item and _ITEM in item:
            raise UserError(
                f"{place}: KFP loses {field!r} of a loop's item for {lost.task}: it is in a text, a list or a "
                "dictionary.",
                f"Give the step the whole item, or item.{field} alone, as an input, and put them together in the step.",
            )
        raise UserError(f"{place}: {lost.task} gets {lost.name!r} of a pipeline that has no such input.", IN_A_PIPELINE)


def _require_fields(spec: Mapping[str, Any], place: str) -> None:
    """Checks that no task gets KFP's name of a loop's item in place of the item's field `name`.

    In Python an item has a `name` of its own, so KFP does not see the field.
    """
    loops = [task["parameterIterator"] for _, task in tasks_in(spec) if "parameterIterator" in task]
    items = {loop["itemInput"].removeprefix(_CHANNEL) for loop in loops if "itemInput" in loop}
    for task, placed in tasks_in(spec):
        given = placed.get("inputs", {}).get("parameters", {}).values()
        text = json.dumps([each.get("runtimeValue", {}).get("constant") for each in given])
        for called in _ITEM_IN_TEXT.findall(_REFERENCE.sub("", text)):
            if any(f"-{item}".endswith(f"-{called}") for item in items):
                raise UserError(
                    f"{place}: {task} gets {called!r}, which is what KFP calls a loop's item: item.name is no field.",
                    "Give the field another name, or give the step the whole item.",
                )


def _require_own_items(spec: Mapping[str, Any], place: str) -> None:
    """Checks that no loop is within a loop over the same list: KFP gives the items of both one name."""

    def look(part: Mapping[str, Any], around: frozenset[str]) -> None:
        for task, placed in part.get("dag", {}).get("tasks", {}).items():
            item = (placed.get("parameterIterator") or placed.get("artifactIterator") or {}).get("itemInput", "")
            if item in around:
                raise UserError(
                    f"{place}: {task} is a loop within a loop over the same list. KFP gives steps the inner item for "
                    "both.",
                    "Put the inner loop into a pipeline of its own (@dsl.pipeline), and call it with the list and the "
                    "outer item.",
                )
            within = spec["components"][placed["componentRef"]["name"]]
            names = [name for kind in within.get("inputDefinitions", {}).values() for name in kind]
            # A pipeline within this one has none, or inputs of its own names.
            is_group = bool(names) and all(name.startswith(_CHANNEL) for name in names)
            look(within, around | {item} - {""} if is_group else frozenset())

    look(spec["root"], frozenset())


def _require_conditions(spec: Mapping[str, Any], place: str) -> None:
    """Checks that conditions of branches can be read: KFP writes a text into one as it is, where a quote ends it."""
    for task, placed in tasks_in(spec):
        condition = placed.get("triggerPolicy", {}).get("condition", "")
        try:
            check_condition(condition)
            is_read = not _SPECIAL.search(condition)
        except ApiError:
            is_read = False
        if not is_read:
            raise UserError(
                f"{place}: no platform can read the condition of {task}: {condition}",
                "A text in a condition can have no quotes, backslashes or line breaks. Compare it in a step that "
                "returns true or false, and write `with dsl.If(step.output == True):`.",
            )


def _require_steps(spec: Mapping[str, Any], place: str) -> None:
    """Checks that each group of steps has some: KFP gives all branches of a pipeline and of a nested one to one."""
    for name, part in spec.get("components", {}).items():
        if "executorLabel" not in part and not part.get("dag", {}).get("tasks"):
            raise UserError(
                f"{place}: {name.removeprefix('comp-')} has no step, as KFP compiles it.",
                "If it has one in your file, KFP mixes it up with a branch of a pipeline within this one: put the "
                "branches of the outer pipeline into a pipeline of their own.",
            )


def _mend_fields(spec: Mapping[str, Any]) -> bool:
    """Takes fields of a loop's item from the item, where KFP asks for an input that does not exist.

    It does for a field in a text, a list or a dictionary. It also does in groups around a loop over a list of
    dictionaries, which do not use the field (https://github.com/kubeflow/pipelines/issues/13273): there it is removed.
    """
    is_changed = False
    for lost in _lost(spec):
        item, _, field = lost.name.rpartition(_FIELD)
        if item in lost.known:
            selected = {"componentInputParameter": item, "parameterExpressionSelector": _SELECTOR % json.dumps(field)}
            lost.placed["inputs"]["parameters"][lost.key] = selected
            is_changed = True
    while unused := [lost for lost in _lost(spec) if _ITEM in lost.name and not _uses(spec, lost.placed, lost.key)]:
        for lost in unused:
            del lost.placed["inputs"]["parameters"][lost.key]
            del spec["components"][lost.placed["componentRef"]["name"]]["inputDefinitions"]["parameters"][lost.key]
        is_changed = True
    return is_changed


def _uses(spec: Mapping[str, Any], placed: Mapping[str, Any], name: str) -> bool:
    """Whether a task uses one of its inputs, possibly in a task within it."""
    part = spec["components"][placed["componentRef"]["name"]]
    if "dag" not in part or _FIELD not in name or name in placed.get("triggerPolicy", {}).get("condition", ""):
        return True
    return any(
        source.get("componentInputParameter") == name and _uses(spec, inner, key)
        for inner in part["dag"]["tasks"].values()
        for key, source in inner.get("inputs", {}).get("parameters", {}).items()
    )


def _lost(spec: Mapping[str, Any]) -> Iterator[_Lost]:
    for part in (spec["root"], *spec.get("components", {}).values()):
        inputs = part.get("inputDefinitions", {})
        for task, placed in part.get("dag", {}).get("tasks", {}).items():
            given = placed.get("inputs", {})
            for kind, word in (("parameters", "componentInputParameter"), ("artifacts", "componentInputArtifact")):
                known = inputs.get(kind, {})
                for key, source in given.get(kind, {}).items():
                    if word in source and source[word] not in known:
                        yield _Lost(source[word], task, placed, key, known)
