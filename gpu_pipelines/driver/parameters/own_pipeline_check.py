"""What is wrong with the parameters of a user's own pipeline, before it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import said_by

if TYPE_CHECKING:
    from gpu_pipelines.targets.messages import Compiled
    from gpu_pipelines.targets.own.steps import Step
    from gpu_pipelines.targets.target import Target

#: Names of the item types that a pipeline in Python may declare for a list.
_ITEMS = {int: "whole numbers", float: "numbers", bool: "truth values"}


def problems_of_own(compiled: Compiled, target: Target, arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the parameters of a user's pipeline, and with those of this project's components in it.

    Args:
        compiled: the pipeline.
        target: where it will run.
        arguments: values by the names of its parameters.
    """
    from gpu_pipelines.dag.places import problems_of_own_files
    from gpu_pipelines.registry import open_registry
    from gpu_pipelines.targets.own.values import (
        imported_from_here,
        places_of,
        predictions_of,
        problems_of,
        scripts_of,
        sources_of,
        uploads_to,
    )

    if wrong := _problems_of_items(compiled, arguments):
        return wrong
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
    problems += [problem for script in scripts_of(steps, arguments) for problem in script.problems_here()]
    if predicted := list(predictions_of(steps, arguments)):
        from gpu_pipelines.prediction.check import require_possible

        seen = [each for each in predicted if _is_that_of_run(target, each.registry)]
        problems += [each for settings in seen for each in said_by(partial(require_possible, settings))]
    for registry in sorted(uploads_to(steps, arguments, target.registry)):
        if _is_that_of_run(target, registry):
            problems += said_by(open_registry(registry).require_writable)
    return problems


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


def _is_that_of_run(target: Target, registry: str) -> bool:
    """Whether a run from here uses this registry: with --emulate it uses the emulator's in place of Vertex AI's."""
    from gpu_pipelines.registry import VERTEX

    return not (getattr(target.options, "emulate", False) and registry.startswith(VERTEX))


def steps_of(compiled: Compiled) -> Sequence[Step]:
    """The steps of a user's pipeline, as they were written."""
    from gpu_pipelines.targets.own.steps import steps_in

    # In the spec that is sent, steps that became jobs are no longer components.
    spec = compiled.written or compiled.spec
    return steps_in(spec) if spec else []
