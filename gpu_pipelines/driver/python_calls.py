"""The functions of the package as programs call them: arguments have the declared types, and errors name arguments
in place of flags."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from os import PathLike
from typing import Any

from gpu_pipelines.component_interface.parameter import CALLED, KFP_TYPES, plain, typed
from gpu_pipelines.driver.run import Run
from gpu_pipelines.errors import UserError, of_the_system

#: A flag to rename. Commands stay as they are, also requests like those of `accelerators plan`, and so does a flag in
#: parentheses after its name.
_FLAG = re.compile(r"(?:\b(?:gcloud|gpu-pipelines) |Instead: ).*|\(--[a-z-]+\)|(?<![\w-])--([a-z][a-z-]*)(?![\w=-])")


def called_from_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the package as `gpu_pipelines` shows it.

    Args:
        function: the function. Arguments that take anything, or have no type, are not checked.

    Returns:
        The function, which first raises UserError with all arguments of wrong types. None stands for a default that is
        empty. Errors name arguments and options in place of flags. A full disk and a file without permission are
        UserErrors, and so is a text that is not UTF-8, as on the command line.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # which says it in Python's own words
        if problems := list(_problems(function, signature, bound.arguments)):
            raise UserError.of_all(problems)
        try:
            return function(*bound.args, **bound.kwargs)
        except UserError as error:
            _name_arguments(error, signature)
            raise
        except (OSError, UnicodeEncodeError) as error:
            told = of_the_system(error)
            if told is None:
                raise
            raise told from error

    # Pickle, such as for another process, finds it by this name.
    called.__module__ = "gpu_pipelines"
    return called


def _problems(function: Any, signature: inspect.Signature, given: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the types of arguments; the right ones are converted to what the function takes."""
    declared = {name: each.annotation for name, each in signature.parameters.items()}
    hints = typing.get_type_hints(types.SimpleNamespace(__annotations__=declared), function.__globals__)
    for name, value in given.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if value is None and not parameter.default:
            given[name] = parameter.default
            continue
        try:
            given[name] = _fitting(hints[name], value)
        except ValueError:
            yield f"{name} takes {_called(hints[name])}; got {str(value)[:80]!r}."
            continue
        if is_dataclass(value) and not isinstance(value, Run):  # which this package made
            yield from _problems_of_fields(name, value)


def _problems_of_fields(name: str, value: Any) -> Iterator[str]:
    hints = typing.get_type_hints(type(value))
    for each in fields(value):
        hint, held = hints[each.name], getattr(value, each.name)
        try:
            if isinstance(held, str) and hint == Sequence[str]:
                raise ValueError(held)  # a text is not split, and would pass for a list of letters
            _fitting(hint, held)
        except ValueError:
            yield f"{each.name} of {name} takes {_called(hint)}; got {str(held)[:80]!r}."


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types of which a value may be one."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _fitting(hint: Any, value: Any) -> Any:
    """A value converted to a type.

    Raises:
        ValueError: it is of another type.
    """
    for kind in _kinds(hint):
        base = typing.get_origin(kind) or kind
        if base in (str, int, float, bool):
            with suppress(ValueError):
                return typed(KFP_TYPES[base], plain(value))
        elif base is Sequence and isinstance(value, Iterable) and not isinstance(value, Mapping | bytes):
            if isinstance(value, str):
                return value
            (of,) = typing.get_args(kind)
            return [str(each) if of is str else _fitting(of, each) for each in value]
        elif base is Any or (base is not Sequence and isinstance(value, base)):
            return value
    raise ValueError(value)


def _called(hint: Any) -> str:
    """The name for values of a type."""
    bases = [typing.get_origin(kind) or kind for kind in _kinds(hint)]
    return " or ".join(dict.fromkeys(_name_of(base) for base in bases if base is not types.NoneType))


def _name_of(base: Any) -> str:
    if base in KFP_TYPES:
        return CALLED[KFP_TYPES[base]]
    named = {PathLike: "a path", Sequence: "a list", Mapping: "a mapping"}
    return named.get(base, f"{'an' if base.__name__[0] in 'AEIOU' else 'a'} {base.__name__}")


def _name_arguments(error: UserError, signature: inspect.Signature) -> None:
    """Makes an error name arguments in place of flags; other flags stay unless the function takes options."""
    has_options = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())

    def named(match: re.Match[str]) -> str:
        name = (match[1] or "").replace("-", "_")
        return name if name and (has_options or name in signature.parameters) else match[0]

    error.problem, error.remedy = _FLAG.sub(named, error.problem), _FLAG.sub(named, error.remedy)
