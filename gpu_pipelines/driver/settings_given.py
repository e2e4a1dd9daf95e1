"""The parameters of a step as a Python program gives them to a function, checked by name and type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from gpu_pipelines.component_interface.parameter import CALLED, parameters_in, plain, typed
from gpu_pipelines.errors import UserError, nearest

Settings = TypeVar("Settings")


def settings_given(settings: type[Settings], given: Mapping[str, Any]) -> Settings:
    """The settings of a step with the parameters that were given.

    Args:
        settings: dataclass of the step's parameters.
        given: the values, by name.

    Raises:
        UserError: lists every unknown parameter and every value of a wrong type.
    """
    declared, values, problems = parameters_in(settings), {}, []
    for name, value in given.items():
        if name not in declared:
            problems.append(f"There is no parameter {name[:80]!r}. {nearest(name, declared)}")
            continue
        try:
            values[name] = typed(declared[name].type, plain(value))
        except ValueError:
            problems.append(f"{name} takes {CALLED[declared[name].type]}; got {str(value)[:80]!r}.")
    if problems:
        raise UserError.of_all(problems)
    return settings(**values)
