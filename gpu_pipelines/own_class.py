"""Finds and imports classes of a user or a package: `package.module:ClassName`."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError


def own_class(place: str, base: type[Any], what: str, see: str = "") -> type[Any]:
    """Imports a class, from a module in the working directory if there is no other.

    Args:
        place: `package.module:ClassName`.
        base: what it must be a subclass of.
        what: its name in messages, such as "The recipe package.module:ClassName".
        see: where to read about such classes.

    Raises:
        UserError: it cannot be imported, is not such a class, or lacks a method.
    """
    found = _found(place, what)
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise UserError(f"{place} is not a subclass of {base.__module__}.{base.__qualname__}.", see)
    _require_whole(found, what, see)
    return found


def require_own_part(place: str, what: str, see: str = "") -> None:
    """Imports a class or a function; arguments and errors as those of `own_class`."""
    _require_whole(_found(place, what), what, see)


def _found(place: str, what: str) -> Any:
    module, _, name = place.partition(":")
    try:
        return getattr(_imported(module), name)
    except (Exception, SystemExit) as error:  # importing runs the user's module, which can raise anything
        raise UserError(
            f"{what} cannot be imported: {type(error).__name__}: {error}.",
            "Give package.module:ClassName of a module that is installed, in PYTHONPATH, or where the command runs.",
        ) from None


def _require_whole(found: Any, what: str, see: str) -> None:
    if lacking := sorted(getattr(found, "__abstractmethods__", ())):
        raise UserError(f"{what} does not define {', '.join(lacking)}.", see)


def places_of(group: str, what: str, built_in: Mapping[str, str], taken: Collection[str] = ()) -> dict[str, str]:
    """The classes of this program and those of installed packages by their names, `package.module:Class`.

    One whose name is taken is left out, which is said on stderr.

    Args:
        group: the entry points of the packages.
        what: what they are, for people.
        built_in: the classes of this program.
        taken: further names that a package cannot have.
    """
    found = dict(built_in)
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        if point.name in found or point.name in taken:
            package = point.dist.name if point.dist else "a package"
            print(f"warning: the {what} {point.name} of {package} is left out: the name is taken", file=sys.stderr)
        else:
            found[point.name] = point.value
    return found


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if error.name != name.partition(".")[0] or here in sys.path:
            raise
    # After all others: a user's file may have the name of an installed package.
    sys.path.append(here)
    return import_module(name)


def said_by_own(what: str, ask: Callable[..., list[str]], *given: Any, see: str = "", **named: Any) -> list[str]:
    """The problems reported by a class of a user or a package; if it fails, that fact.

    The text of its error is left out: it may repeat its input, such as an address with a secret.

    Args:
        what: its name in messages, such as "The channel NAME".
        ask: its method, such as `problems`.
        given: arguments of the method.
        see: where to read about such classes.
        named: keyword arguments of the method.
    """
    try:
        found = ask(*given, **named)
        return [found] if isinstance(found, str) else list(found)
    except UserError as error:
        return [error.in_one_line]
    except Exception as error:  # other people's code can raise anything
        return [f"{what} cannot say what is wrong: its problems failed ({told_of_own(ask, error)}). {see}".strip()]


def told_of_own(method: Callable[..., Any], error: Exception) -> str:
    """Where a method of a user or a package failed, and the class of its error, without the error's text.

    Args:
        method: the method.
        error: the error that it raised.
    """
    code = getattr(inspect.unwrap(method), "__code__", None)  # a partial, for instance, has none
    file = code.co_filename if code else ""
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    place = f"{Path(file).name}, line {lines[-1]}: " if lines else f"{Path(file).name}: " if file else ""
    return f"{place}{type(error).__name__}"
