"""A target with its options, from a command line or a Python program."""

from __future__ import annotations

import shlex
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_pipelines.errors import InvalidRequestError, UserError, nearest
from gpu_pipelines.targets.options import Option, declared, flag_of, kinds_of_options

if TYPE_CHECKING:
    from gpu_pipelines.targets.target import Target

Options = TypeVar("Options")


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
    from gpu_pipelines.targets.target import require_attributes, target_named

    target = target_named(name, can, command)
    own = [each for each, *_ in fields_of_command(target.Options, command)]
    _refuse_others(name, given, own, command)
    values = {each: given[each] for each in own if given.get(each) is not None}
    options = target.Options(**values)
    opened = target(options, options.project_settings())
    require_attributes(opened)
    return opened


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


def target_and_others(
    target: str, command: str, given: Mapping[str, Any], can: str = ""
) -> tuple[Target, dict[str, Any]]:
    """A target with the options that a Python program gave, and the values that are not options.

    Args:
        target: its name.
        command: name of the command.
        given: the values, by the names of flags with underscores.
        can: the method or attribute that the target must have; empty for any.

    Raises:
        UserError: there is no such target, it cannot do that, or a value is of a wrong type.
    """
    from gpu_pipelines.targets.target import target_named

    fields = fields_of_command(target_named(target, can, command).Options, command)
    own = {name: (declaration, hint) for name, declaration, hint, _ in fields}
    others = {name: value for name, value in given.items() if name not in own}
    # Not a parameter of a pipeline: it is the function's own.
    if others.pop("accelerator", None):
        raise InvalidRequestError(f"The target {target} has no accelerator.", "Leave it out.")
    return open_target(target, as_declared(given, own), command), others


def target_with(target: str, command: str, options: Mapping[str, Any], can: str = "", otherwise: str = "") -> Target:
    """As `target_and_others`, but every value must be an option.

    Args:
        target: its name.
        command: name of the command.
        options: the values, by the names of flags with underscores.
        can: the method or attribute that the target must have; empty for any.
        otherwise: remedy for a value that is not an option of any target.

    Raises:
        UserError: there is no such target, it cannot do that, or it has no such option.
    """
    opened, others = target_and_others(target, command, options, can)
    if others:
        remedies = dict.fromkeys(option_of_targets(name, command) for name in others)
        raise InvalidRequestError(
            f"{command} has no {', '.join(others)}.", " ".join(filter(None, remedies)) or otherwise
        )
    return opened


def options_given(options: type[Options], command: str, given: Mapping[str, Any]) -> Options:
    """The options of a command without a target, as a Python program gave them.

    Args:
        options: the dataclass that declares them.
        command: name of the command.
        given: their values, by the names of their flags with underscores; None means not given.

    Raises:
        UserError: lists unknown options, or values of wrong types.
    """
    own = {name: (declaration, hint) for name, declaration, hint, _ in fields_of_command(options, command)}
    if unknown := [f"There is no option {name[:80]!r}. {nearest(name, own)}" for name in given if name not in own]:
        raise UserError.of_all(unknown)
    return options(**as_declared(given, own))


def container_options(
    options: type[Options], of: str, accelerator: str | None, command: Sequence[str], given: Mapping[str, Any]
) -> Options:
    """As `options_given`, for a command that runs a container on an accelerator.

    Args:
        options: the dataclass that declares them.
        of: name of the command.
        accelerator: NAME:COUNT; None for none.
        command: the words that the container runs, or one line; empty for those of its image.
        given: the values of the others.

    Raises:
        UserError: lists unknown options, or values of wrong types.
    """
    line = command if isinstance(command, str) else shlex.join(map(str, command))
    return options_given(options, of, {**given, "accelerator": accelerator, "command": line or None})


def arguments_of(words: Sequence[Any]) -> list[str]:
    """The arguments of a container, as a Python program gives them: texts and numbers, or one line of a shell.

    Raises:
        UserError: a quotation mark of the line is left open.
    """
    from gpu_pipelines.targets.options import words_of

    return words_of("arguments", words) if isinstance(words, str) else [str(each) for each in words]


def as_declared(given: Mapping[str, Any], options: Mapping[str, tuple[Option, Any]]) -> dict[str, Any]:
    """Given values in the types of the options, without those that are None or not options.

    Args:
        given: the values, by the names of options. A mapping may stand for a list of `KEY=VALUE`, one text for a list
            of it, and a list of texts for a text with commas.
        options: the declarations and the types of the options.

    Raises:
        UserError: lists the values of wrong types, and those that are too small.
    """
    from gpu_pipelines.component_interface.parameter import CALLED, KFP_TYPES, joined, plain, typed

    values, problems = {}, []
    for name, value in given.items():
        if name not in options or value is None:
            continue
        declaration, hint = options[name]
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        kind, *others = (each for each in (typing.get_args(hint) if is_union else (hint,)) if each is not type(None))
        kind = list if kind == list[str] else kind
        if kind is list and isinstance(value, Mapping):
            value = [f"{key}={text}" for key, text in value.items() if text is not None]
        if kind is str:
            value = joined(value)
        elif kind is list and isinstance(value, str):
            value = [value]  # as a flag that is given once
        wanted = None if others else KFP_TYPES.get(str if kind is Path else kind)
        try:
            found = typed(wanted, plain(value)) if wanted else value
        except ValueError:
            problems.append(f"{name} takes {CALLED[str(wanted)]}; got {str(value)[:80]!r}.")
            continue
        if declaration.minimum is not None and found < declaration.minimum:
            problems.append(f"{name} is {found}; the least is {declaration.minimum:g}.")
        values[name] = Path(found) if kind is Path else found
    if problems:
        raise UserError.of_all(problems)
    return values


def option_of_targets(name: str, command: str = "run") -> str:
    """Remedy for a name that is an option of targets and not a parameter; empty if no target has it."""
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
    known = declared(options)
    for name, (hint, default) in kinds_of_options(options).items():
        if command in known[name].commands:
            yield name, known[name], hint, default
