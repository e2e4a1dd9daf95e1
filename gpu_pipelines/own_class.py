"""Classes that a user or a package brings: `package.module:ClassName`."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from gpu_pipelines.errors import UserError


def own_class(place: str, base: type[Any], what: str, see: str = "") -> type[Any]:
    """Imports a class.

    Args:
        place: `package.module:ClassName`.
        base: what it must be a subclass of.
        what: it is called, for messages; such as "The recipe package.module:ClassName".
        see: where it is described what such a class is.

    Raises:
        UserError: it cannot be imported, is no such class, or lacks a method.
    """
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # importing runs the user's module, which can raise anything
        raise UserError(
            f"{what} cannot be imported: {type(error).__name__}: {error}.",
            "Give package.module:ClassName of a module that Python finds (PYTHONPATH, or an installed package).",
        ) from None
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise UserError(f"{place} is not a subclass of {base.__module__}.{base.__qualname__}.", see)
    if lacking := sorted(getattr(found, "__abstractmethods__", ())):
        raise UserError(f"{what} does not define {', '.join(lacking)}.", see)
    return found
