"""Replaces parts of KFP, as long as a context lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

#: The object, the name of the part in it, and what makes the new part from the old one.
Replacement = tuple[Any, str, Callable[[Any], Any]]


@contextmanager
def replaced(parts: Iterable[Replacement]) -> Iterator[None]:
    """Replaces parts of KFP; all of them are made before the first is replaced.

    Args:
        parts: what to replace.

    Raises:
        AttributeError: the installed KFP does not have a part.
        KeyError: it has it elsewhere.
    """
    made = [_made(*part) for part in parts]
    try:
        for place, name, _, new in made:
            setattr(place, name, new)
        yield
    finally:
        for place, name, before, _ in made:
            setattr(place, name, before)


def _made(place: Any, name: str, mend: Callable[[Any], Any]) -> tuple[Any, str, Any, Any]:
    """An object and a name, the old part, and the new part."""
    before, new = vars(place)[name], mend(getattr(place, name))
    return place, name, before, staticmethod(new) if isinstance(before, staticmethod | classmethod) else new
