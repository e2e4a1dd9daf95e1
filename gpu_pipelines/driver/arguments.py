"""Pipeline parameters from the command line and from a file, checked against the interface of the pipeline or of the
file that it was compiled to."""

from __future__ import annotations

import copy
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gpu_pipelines.component_interface.catalog import flagged_parameters
from gpu_pipelines.component_interface.parameter import CALLED, Parameter
from gpu_pipelines.dag.placement import CHECKS
from gpu_pipelines.dag.places import REGISTRY
from gpu_pipelines.driver.opening import option_of_targets
from gpu_pipelines.errors import UserError, nearest, said_by
from gpu_pipelines.numbers import LARGEST_WHOLE_NUMBER, as_number, as_protobuf_writes, number_of
from gpu_pipelines.targets.spec_steps import tasks_in
from gpu_pipelines.tasks.tasks import defaults_of_task
from gpu_pipelines.tracking.trackers import problems_of_tracking
from gpu_pipelines.yaml_input import data_of, node_of, read_text, text_of
from gpu_pipelines.yaml_output import is_utf8

if TYPE_CHECKING:
    from gpu_pipelines.targets.messages import Compiled, Values
    from gpu_pipelines.targets.own.placed import Step
    from gpu_pipelines.targets.target import Target

_TYPES = {**CALLED, "Integer": "a whole number (at most 2^53)"}
#: What an error adds for a type whose name does not say how to write a value.
_REMEDIES = {"Dict": ' Write it as JSON, {"NAME": "value"}; a shell wants that in quotes.'}

#: Names of the item types that a pipeline in Python may declare for a list.
_ITEMS = {int: "whole numbers", float: "numbers", bool: "truth values"}
#: Most names of parameters to list in an error.
_MOST_LISTED = 20
#: The parameter of this project's pipelines whose fields are parameters as well.
ADVANCED = "advanced"
#: The parameter that names a tracker; the project's settings may set it, too.
_TRACKING = "tracking"
#: The types by their names in a compiled file.
_COMPILED_TYPES = {
    "STRING": "String",
    "NUMBER_INTEGER": "Integer",
    "NUMBER_DOUBLE": "Float",
    "BOOLEAN": "Boolean",
    "LIST": "List",
    "STRUCT": "Dict",
}


def parameters_of_pipeline(pipeline: Any) -> dict[str, Parameter]:
    """The parameters of a KFP pipeline, by name."""
    inputs = pipeline.component_spec.inputs or {}
    return {
        name: Parameter(spec.type, spec.default, spec.optional, spec.description or "") for name, spec in inputs.items()
    }


def with_defaults_of_task(known: Mapping[str, Parameter], task: str) -> dict[str, Parameter]:
    """Parameters with the defaults of a task in place of those of the default task.

    A default that a pipeline has changed stays, such as one in a file that somebody else compiled.

    Args:
        known: the parameters by name.
        task: name of the task.
    """
    if "task" not in known or not isinstance(known["task"].default, str):
        return dict(known)
    before, now = defaults_of_task(known["task"].default), defaults_of_task(task)
    changed = {
        name: replace(known[name], default=value)
        for name, value in now.items()
        if name in known and known[name].default == before.get(name)
    }
    return {**known, "task": replace(known["task"], default=task), **changed}


def checked_values(
    compiled: Compiled,
    target: Target,
    assignments: Sequence[str],
    file: Path | None,
    before: Mapping[str, Any] | None = None,
) -> Values:
    """The parameters of a run, checked as far as that can be done where the command runs.

    Args:
        compiled: the pipeline.
        target: where it will run.
        assignments: texts of the form `key=value`; they win over the file.
        file: a YAML file of parameters.
        before: values to use where none is given, in place of the target's defaults.

    Raises:
        UserError: lists everything that is wrong with them.
    """
    from gpu_pipelines.dag import PIPELINES, load_request, pipeline_for
    from gpu_pipelines.dag.places import problems_of_own_files
    from gpu_pipelines.targets.messages import Values

    name = compiled.name.replace("-", "_")
    if (by_script := pipeline_for(name, given_values(assignments, file))) != name:
        raise UserError(
            f"{compiled.name} does not train with a script.", f"Compile or upload {by_script}, and give script there."
        )
    known = parameters_of_pipeline(compiled.built) if compiled.built else parameters_of_spec(compiled.spec)
    fields = fields_of(compiled.name, known)
    if before is None:
        said = {**known, **fields}
        before = {name: value for name, value in defaults_of_project(target).items() if name in said}
    before = {**_left_to_steps(fields, known, before), **before}
    opened = with_defaults_of_file(fields, known)
    arguments = all_arguments(known, assignments, file, before, opened, of_anybody=name not in PIPELINES)
    if name in PIPELINES:
        request, checked = load_request(name), {**compiled_in(compiled.spec), **compiled.known, **arguments}
        tracking = problems_of_tracking(checked.get(_TRACKING, ""), target.name, is_here=target.is_here)
        places = request.places(checked)
        problems = [*request.problems(checked), *tracking] or target.unreachable(places)
        problems = problems or problems_of_own_files(places, target.written) or target.problems(compiled, checked)
    else:
        problems = _problems_of_items(compiled, arguments) or _problems_of_own(compiled, target, arguments)
    if problems:
        raise UserError.of_all(problems)
    return Values(arguments, as_taken(arguments, known, fields))


def defaults_of_project(target: Target) -> dict[str, Any]:
    """Values for parameters from the settings of a project; a pipeline need not have the parameters."""
    settings = target.settings
    of_project = {_TRACKING: settings.tracking, REGISTRY: settings.registry, **target.defaults()}
    return {name: value for name, value in of_project.items() if value}


def values_given(compiled: Compiled, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The given values of an earlier run, by the parameters' own names: all that differ from the defaults.

    A run records all its values, defaults included, without saying which were given.

    Args:
        compiled: the pipeline of that run.
        parameters: the values as the pipeline took them.
    """
    from gpu_pipelines.dag import PIPELINES

    known = parameters_of_spec(compiled.spec)
    if fields := fields_of(compiled.name, known):
        inside = {**_left_to_steps(fields, known, parameters), **(parameters.get(ADVANCED) or {})}
        parameters = {**{name: value for name, value in parameters.items() if name != ADVANCED}, **inside}
        opened = with_defaults_of_file(fields, known)
        known = {**{name: each for name, each in known.items() if name != ADVANCED}, **opened}
    task = parameters.get("task")
    if isinstance(task, str) and compiled.name.replace("-", "_") in PIPELINES:
        of_task = with_defaults_of_task(known, task)
        # A task other than the default counts as given, too.
        known = {**of_task, **({"task": known["task"]} if "task" in known else {})}
    stored = {name: _stored(known[name].type, value) for name, value in parameters.items() if name in known}
    return {name: value for name, value in stored.items() if value != known[name].default}


def _problems_of_items(compiled: Compiled, arguments: Mapping[str, Any]) -> list[str]:
    """Lists with items of another type than the pipeline of a Python file declares, with which a step would fail."""
    problems = []
    for name, kind in compiled.item_types.items():
        wrong = [each for each in arguments.get(name) or [] if not _is_item(each, kind)]
        if wrong:
            problems.append(f"{name} takes a list of {_ITEMS[kind]}; {json.dumps(wrong[0])[:80]} is none.")
    return problems


def _is_item(value: Any, kind: type) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    return isinstance(value, int | float) and (kind is float or value == int(value))


def _problems_of_own(compiled: Compiled, target: Target, arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the parameters of this project's components in a user's pipeline."""
    from gpu_pipelines.dag.places import problems_of_own_files
    from gpu_pipelines.registry import open_registry
    from gpu_pipelines.targets.own.values import (
        imported_from_here,
        places_of,
        predictions_of,
        problems_of,
        sources_of,
        uploads_to,
    )

    steps = steps_of(compiled)
    places = places_of(steps, arguments)
    imported = imported_from_here(compiled.written or compiled.spec, arguments)
    problems = problems_of(steps, arguments) + target.unreachable([*places, *imported])
    problems = problems or problems_of_own_files(places, target.written)
    if problems or not target.is_here:
        return problems
    if read := list(sources_of(steps, arguments)):
        from gpu_pipelines.data.source_check import problems_here

        problems = [problem for settings in read for problem in problems_here(settings)]
    if predicted := list(predictions_of(steps, arguments)):
        from gpu_pipelines.prediction.check import require_possible

        seen = [each for each in predicted if _is_that_of_run(target, each.registry)]
        problems += [each for settings in seen for each in said_by(partial(require_possible, settings))]
    for registry in sorted(uploads_to(steps, arguments, target.registry)):
        if _is_that_of_run(target, registry):
            problems += said_by(open_registry(registry).require_writable)
    return problems


def _is_that_of_run(target: Target, registry: str) -> bool:
    """Whether a run from here uses this registry: with --emulate it uses the emulator's in place of Vertex AI's."""
    from gpu_pipelines.registry import VERTEX

    return not (getattr(target.options, "emulate", False) and registry.startswith(VERTEX))


def steps_of(compiled: Compiled) -> Sequence[Step]:
    """The steps of a user's pipeline, as they were written."""
    from gpu_pipelines.targets.own.placed import steps_in

    # In the spec that is sent, steps that became jobs are no longer components.
    spec = compiled.written or compiled.spec
    return steps_in(spec) if spec else []


def fields_of(pipeline: str, known: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The fields of the parameter `advanced` of a pipeline of this project; none for another pipeline.

    Args:
        pipeline: its name, in the form of the command line or of KFP.
        known: its own parameters.
    """
    from gpu_pipelines.dag import PIPELINES, load_request

    name = pipeline.replace("-", "_")
    if name not in PIPELINES or ADVANCED not in known:
        return {}
    from gpu_pipelines.dag.advanced import fields_of_advanced

    return fields_of_advanced(load_request(name).SETTINGS.values())


def with_defaults_of_file(fields: Mapping[str, Parameter], known: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The fields of `advanced` with the defaults that a pipeline was compiled with, in place of those of the steps.

    Args:
        fields: see `fields_of`.
        known: the pipeline's own parameters.
    """
    inside = known[ADVANCED].default or {} if fields else {}
    return {
        name: replace(each, default=_stored(each.type, inside[name])) if name in inside else each
        for name, each in fields.items()
    }


def _left_to_steps(
    fields: Mapping[str, Parameter], known: Mapping[str, Parameter], taken: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of fields that have a default in the file, and that a run with an `advanced` of its own leaves out.

    Such a run gets the default of the step: its `advanced` replaces the file's.
    """
    inside = known[ADVANCED].default or {} if fields and ADVANCED in taken else {}
    return {name: fields[name].default for name in inside if name in fields}


def as_taken(
    arguments: Mapping[str, Any], known: Mapping[str, Parameter], fields: Mapping[str, Parameter]
) -> dict[str, Any]:
    """The values as the pipeline takes them: fields of `advanced` are in `advanced` if they differ from their defaults.

    Args:
        arguments: the values, by the parameters' own names.
        known: the pipeline's own parameters.
        fields: those of `advanced`; see `fields_of`.
    """
    if not fields:
        return dict(arguments)
    others = {name: arguments[name] for name in sorted(fields) if arguments[name] != fields[name].default}
    return {**{name: arguments[name] for name in known if name != ADVANCED}, ADVANCED: others}


def parameters_of_spec(spec: Mapping[str, Any]) -> dict[str, Parameter]:
    """The parameters of a compiled pipeline, by name."""
    definitions = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    return {name: _parameter(definition) for name, definition in definitions.items()}


def compiled_in(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a compiled pipeline that are not parameters: its task, and the number of processes that train.

    Args:
        spec: the pipeline; empty if a target runs it as it was built, and then nothing is known.
    """
    for given in [task.get("inputs", {}).get("parameters", {}) for name, task in tasks_in(spec) if name == CHECKS]:
        values = {name: given.get(name, {}).get("runtimeValue", {}).get("constant") for name in ("task", "processes")}
        if any(values.values()):
            return {"processes": int(values["processes"] or 0), **({"task": values["task"]} if values["task"] else {})}
    return {}


def _parameter(definition: Mapping[str, Any]) -> Parameter:
    given = str(definition.get("parameterType"))
    kind, default = _COMPILED_TYPES.get(given, given), definition.get("defaultValue")
    optional = definition.get("isOptional", False) or default is not None
    return Parameter(kind, _stored(kind, default), optional, definition.get("description", ""))


def _stored(kind: str, value: Any) -> Any:
    """A value of a compiled file or of the service, which write every number with a decimal point."""
    if kind == "Integer":
        return as_number(int, value)
    return as_protobuf_writes(value) if isinstance(value, list | dict) else value


def all_arguments(
    known: Mapping[str, Parameter],
    assignments: Sequence[str],
    file: Path | None,
    before: Mapping[str, Any] | None = None,
    fields: Mapping[str, Parameter] | None = None,
    *,
    of_anybody: bool = False,
) -> dict[str, Any]:
    """The values of all parameters of a run: those given, and defaults for the rest, which follow the task.

    Fields of `advanced` are given, and come back, by their own names; they may be given in `advanced` as well.

    Args:
        known: the parameters.
        assignments: texts of the form `key=value`; they win over the file, and the last of several for a name wins.
        file: a YAML mapping of parameters.
        before: values to use where none is given, in place of the defaults.
        fields: the parameters that are fields of `advanced`; see `fields_of`.
        of_anybody: whether it is a user's pipeline, whose lists may hold anything, and whose parameter `task` is its
            own.

    Raises:
        UserError: lists every unknown parameter and every value of a wrong type.
    """
    problems: list[str] = []
    if fields:
        known = {**{name: each for name, each in known.items() if name != ADVANCED}, **fields}
    texts: list[tuple[str, Any]] = list(_from_file(file, of_anybody)) if file else []
    assigned: dict[str, str] = {}
    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        name = name.strip()
        if not is_utf8(assignment):
            problems.append(
                f"-p {assignment[:80]!a} is not UTF-8, and KFP takes nothing else. Rename the file, for example."
            )
        elif sign:
            if (earlier := assigned.get(name, text)) != text:
                # This lets a script that has its parameters in a variable change one of them.
                told = f"-p {name[:80]} is given twice, with {earlier[:80]!r} and {text[:80]!r}. The last one counts."
                print(f"note: {told}", file=sys.stderr)
            assigned[name] = text
            texts.append((name, text))
        else:
            problems.append(f"-p {assignment[:80]} is not of the form key=value.")
    stood = {**(before or {}), **((before or {}).get(ADVANCED) or {})} if fields else before or {}
    given = {name: _stored(known[name].type, value) for name, value in stood.items() if name in known}
    for name, value in _opened(texts, problems) if fields else texts:
        if name not in known:
            others = None if len(known) <= _MOST_LISTED else "gpu-pipelines parameters PIPELINE lists them."
            remedy = option_of_targets(name) or nearest(name, sorted(known), otherwise=others)
            problems.append(f"There is no parameter {name[:80]!r}. {remedy}")
            continue
        try:
            given[name] = _converted(known[name].type, _text_of_file(name, value, of_anybody), of_anybody)
        except (ValueError, RecursionError):
            given[name] = None
            wanted = "a list" if of_anybody and known[name].type == "List" else _TYPES.get(known[name].type)
            problems.append(f"{name} takes {wanted}; got {str(value)[:80]!r}.{_REMEDIES.get(known[name].type, '')}")
    problems += [
        f"The parameter {name} must be given." for name, p in known.items() if not (p.optional or name in given)
    ]
    if problems:
        raise UserError.of_all(problems)
    if isinstance(given.get("task"), str) and not of_anybody:
        known = with_defaults_of_task(known, given["task"])
    return {name: given.get(name, copy.deepcopy(parameter.default)) for name, parameter in known.items()}


def _text_of_file(name: str, value: Any, of_anybody: bool) -> Any:
    """A parameter's value, or the content of the YAML file on this machine that it names, if it may name one."""
    declared = None if of_anybody else flagged_parameters().get(name)
    if declared is None or declared.flag is None or not declared.flag.is_file or not isinstance(value, str):
        return value
    path = Path(value).expanduser()
    with suppress(OSError):  # a text may be longer than any path
        if path.is_file():
            what = f"The file {path}"
            root = node_of(read_text(path, what), what)
            # On one line: forms, and the comments that KFP writes into its files, can hold no more.
            return "" if root is None else json.dumps(text_of(root), ensure_ascii=False)
    return value


def _opened(texts: Sequence[tuple[str, Any]], problems: list[str]) -> Iterator[tuple[str, Any]]:
    """Names and values, with the fields of `advanced` in its place."""
    for name, value in texts:
        if name != ADVANCED:
            yield name, value
            continue
        try:
            inside = _converted("Dict", value)
        except (ValueError, RecursionError):
            problems.append(f"{name} takes {_TYPES['Dict']}; got {str(value)[:80]!r}.{_REMEDIES['Dict']}")
            continue
        for field, held in inside.items():
            yield field, held if isinstance(held, (str, list, dict)) else json.dumps(held)


def given_values(assignments: Sequence[str], file: Path | None) -> dict[str, Any]:
    """The values that a command line names, as they are written; `all_arguments` checks them.

    Args:
        assignments: texts of the form `key=value`; they win over the file.
        file: a YAML mapping of parameters.

    Raises:
        UserError: the file cannot be read.
    """
    found = dict(_from_file(file)) if file else {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        found[name.strip()] = text
    return found


def _from_file(path: Path, any_items: bool = False) -> list[tuple[str, Any]]:
    """Names and values of a YAML mapping.

    A scalar is its text as written, like on the command line: YAML 1.1 itself would read 1e-3 as text, 010 as 8 and
    12:30 as 750.

    Args:
        path: the file.
        any_items: whether lists may hold anything; otherwise only texts.
    """
    what = f"The parameter file {path}"
    root = node_of(read_text(path, what), what)
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{what} is not a mapping of parameter names to values.")
    return [(str(key.value), _plain(value, what, any_items)) for key, value in root.value]


def _plain(node: yaml.Node, what: str, any_items: bool = False) -> Any:
    """Texts, lists of texts or of anything, mappings with JSON's types, or None, of a YAML node."""
    if isinstance(node, yaml.SequenceNode):
        return [_item(item, what) if any_items else _plain(item, what) for item in node.value]
    return data_of(node, what) if isinstance(node, yaml.MappingNode) else text_of(node)


def _item(node: yaml.Node, what: str) -> Any:
    """An item of a list that may hold anything."""
    if isinstance(node, yaml.SequenceNode):
        return [_item(item, what) for item in node.value]
    if isinstance(node, yaml.ScalarNode) and not node.style:
        with suppress(ValueError):  # 1e-3 is a number of JSON's, and a text of YAML 1.1
            return json.loads(node.value)
    return data_of(node, what)


def _converted(wanted: str, value: Any, any_items: bool = False) -> Any:
    """A value of the type, from a text or from a file.

    Raises:
        ValueError: it is not one.
    """
    if wanted in ("String", "Integer", "Float", "Boolean"):
        if not isinstance(value, str):
            raise ValueError
        return _SCALARS[wanted](value)
    if isinstance(value, str):
        value = _list_or_json(wanted, value, any_items)
    is_list = isinstance(value, list) and (any_items or all(isinstance(item, str) for item in value))
    if (wanted == "List" and is_list) or (wanted == "Dict" and isinstance(value, dict)):
        try:
            return json.loads(json.dumps(value, allow_nan=False))
        except TypeError:
            raise ValueError from None
    raise ValueError


def _list_or_json(wanted: str, text: str, any_items: bool) -> Any:
    if wanted == "List" and not text.lstrip().startswith("["):
        with suppress(ValueError):
            if any_items:
                return json.loads(f"[{text}]")
        return [part.strip() for part in text.split(",") if part.strip()]
    if wanted == "List" and not any_items:
        return json.loads(text, parse_int=str, parse_float=str)  # as written, like in a file
    return json.loads(text)


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip(), re.ASCII) or abs(int(text)) > LARGEST_WHOLE_NUMBER:
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    number = number_of(text.strip())
    if not math.isfinite(number):
        raise ValueError
    return number


def _truth(text: str) -> bool:
    truths: Mapping[str, bool] = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if text.strip().lower() not in truths:
        raise ValueError
    return truths[text.strip().lower()]


_SCALARS: Mapping[str, Any] = {"String": str, "Integer": _whole_number, "Float": _number, "Boolean": _truth}
