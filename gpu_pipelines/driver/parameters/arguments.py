"""The values of a pipeline's parameters for a run, from the command line and a file, checked against its interface."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.component_interface.parameter import Parameter
from gpu_pipelines.dag.places import REGISTRY
from gpu_pipelines.driver.opening import option_of_targets
from gpu_pipelines.driver.parameters.advanced_fields import (
    ADVANCED,
    as_taken,
    fields_of,
    fields_opened,
    in_place_of_advanced,
    left_to_steps,
    with_defaults_of_file,
)
from gpu_pipelines.driver.parameters.interface import (
    as_stored,
    compiled_in,
    parameters_of_pipeline,
    parameters_of_spec,
    with_defaults_of_task,
)
from gpu_pipelines.driver.parameters.own_pipeline_check import problems_of_own
from gpu_pipelines.driver.parameters.texts import (
    REMEDIES,
    TYPES,
    content_if_file,
    converted,
    given_values,
    values_in_file,
)
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.tracking.trackers import problems_of_tracking
from gpu_pipelines.yaml_output import is_utf8

if TYPE_CHECKING:
    from gpu_pipelines.targets.messages import Compiled, Values
    from gpu_pipelines.targets.target import Target

#: Most names of parameters to list in an error.
_MOST_LISTED = 20
#: The parameter that names a tracker; the project's settings may set it, too.
_TRACKING = "tracking"


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
    before = {**left_to_steps(fields, known, before), **before}
    opened = with_defaults_of_file(fields, known)
    arguments = all_arguments(known, assignments, file, before, opened, of_anybody=name not in PIPELINES)
    if name in PIPELINES:
        request, checked = load_request(name), {**compiled_in(compiled.spec), **compiled.known, **arguments}
        tracking = problems_of_tracking(checked.get(_TRACKING, ""), target.name, is_here=target.is_here)
        places = request.places(checked)
        problems = [*request.problems(checked), *tracking] or target.unreachable(places)
        problems = problems or problems_of_own_files(places, target.written) or target.problems(compiled, checked)
    else:
        problems = problems_of_own(compiled, target, arguments)
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
        inside = {**left_to_steps(fields, known, parameters), **(parameters.get(ADVANCED) or {})}
        parameters = {**{name: value for name, value in parameters.items() if name != ADVANCED}, **inside}
        known = in_place_of_advanced(known, with_defaults_of_file(fields, known))
    task = parameters.get("task")
    if isinstance(task, str) and compiled.name.replace("-", "_") in PIPELINES:
        of_task = with_defaults_of_task(known, task)
        # A task other than the default counts as given, too.
        known = {**of_task, **({"task": known["task"]} if "task" in known else {})}
    stored = {name: as_stored(known[name].type, value) for name, value in parameters.items() if name in known}
    return {name: value for name, value in stored.items() if value != known[name].default}


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
    known = in_place_of_advanced(known, fields or {})
    texts: list[tuple[str, Any]] = list(values_in_file(file, of_anybody)) if file else []
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
    given = {name: as_stored(known[name].type, value) for name, value in stood.items() if name in known}
    for name, value in fields_opened(texts, problems) if fields else texts:
        if name not in known:
            others = None if len(known) <= _MOST_LISTED else "gpu-pipelines parameters PIPELINE lists them."
            remedy = option_of_targets(name) or nearest(name, sorted(known), otherwise=others)
            problems.append(f"There is no parameter {name[:80]!r}. {remedy}")
            continue
        try:
            given[name] = converted(known[name].type, content_if_file(name, value, of_anybody), of_anybody)
        except (ValueError, RecursionError):
            given[name] = None
            wanted = "a list" if of_anybody and known[name].type == "List" else TYPES.get(known[name].type)
            problems.append(f"{name} takes {wanted}; got {str(value)[:80]!r}.{REMEDIES.get(known[name].type, '')}")
    problems += [
        f"The parameter {name} must be given." for name, p in known.items() if not (p.optional or name in given)
    ]
    if problems:
        raise UserError.of_all(problems)
    if isinstance(given.get("task"), str) and not of_anybody:
        known = with_defaults_of_task(known, given["task"])
    return {name: given.get(name, copy.deepcopy(parameter.default)) for name, parameter in known.items()}
