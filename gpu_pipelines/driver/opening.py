"""A target with its options, from what a command line or a Python program has given."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.options import Option, declared, flag_of

if TYPE_CHECKING:
    from gpu_pipelines.targets.target import Target


def open_target(name: str, given: Mapping[str, Any], command: str = "", can: str = "") -> Target:
    """The target of a name, with the options of a command line.

    Args:
        name: of the target.
        given: the values of the options of all targets.
        command: name of the command.
        can: the method or attribute that the target must have; empty for any.

    Raises:
        UserError: there is no such target, it cannot do that, or an option is of another one.
    """
    from gpu_pipelines.targets.target import target_named

    target = target_named(name, can)
    own = [each for each, *_ in fields_of_command(target.Options, command)]
    _refuse_others(name, given, own, command)
    values = {each: given[each] for each in own if given.get(each) is not None}
    options = target.Options(**values)
    return target(options, options.project_settings())


def _refuse_others(name: str, given: Mapping[str, Any], own: Sequence[str], command: str) -> None:
    """Raises UserError if an option of another target was given."""
    from gpu_pipelines.targets.target import targets

    flags, owners = [], set[str]()
    for other, target in targets().items():
        for each, _, _, default in fields_of_command(target.Options, command):
            if each not in own and given.get(each, default) != default:
                owners.add(other)
                flags += [flag_of(each)] if flag_of(each) not in flags else []
    if flags:
        raise UserError(
            f"The target {name} has no {', '.join(flags)}.",
            f"{'It belongs' if len(flags) == 1 else 'They belong'} to {' and '.join(sorted(owners))}. Leave "
            f"{'it' if len(flags) == 1 else 'them'} out, or give another --target.",
        )


def option_of_targets(name: str, command: str = "run") -> str:
    """What to say of a name that is no parameter, but an option of targets; empty if it is of none."""
    from gpu_pipelines.targets.target import targets

    owners = [
        other
        for other, target in targets().items()
        if name in {each for each, *_ in fields_of_command(target.Options, command)}
    ]
    if not owners:
        return ""
    *others, last = sorted(owners)
    listed = f"{', '.join(others)} or {last}" if others else last
    return (
        f"{name} ({flag_of(name)}) is an option of the target {listed}: give it with that target, not as a parameter."
    )


def fields_of_command(options: type, command: str) -> Iterator[tuple[str, Option, Any, Any]]:
    """Name, declaration, type and default of the fields of a dataclass that are options of a command."""
    hints, known = typing.get_type_hints(options), declared(options)
    for each in fields(options):
        if each.name in known and command in known[each.name].commands:
            yield each.name, known[each.name], hints[each.name], each.default
