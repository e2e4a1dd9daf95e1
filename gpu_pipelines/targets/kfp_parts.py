"""Replaces parts of KFP, as long as a context lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from gpu_pipelines.errors import UserError

#: The object, the name of the part in it, and what makes the new part from the old one.
Replacement = tuple[Any, str, Callable[[Any], Any]]


@contextmanager
def replaced(parts: Callable[[], Iterable[Replacement]], what: str) -> Iterator[None]:
    """Replaces parts of KFP; all of them are made before the first is replaced.

    Args:
        parts: imports from KFP what to replace.
        what: what KFP does with these parts, such as "compiles loops".

    Raises:
        UserError: the installed KFP does not have a part, or has it elsewhere.
    """
    try:
        made = [_made(*part) for part in parts()]
    except (ImportError, AttributeError, KeyError) as error:
        raise UserError(
            f"kfp {version('kfp')} {what} in another way than kfp 2.17 ({error}).",
            "Install the version of constraints.txt, or a later gpu-pipelines.",
        ) from None
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
