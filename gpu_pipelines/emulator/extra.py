"""The error if the packages of the emulator are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_pipelines.errors import UserError


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Around the imports of the emulator.

    Args:
        what: the option, command or fixture that needs it.

    Raises:
        UserError: a package is missing.
    """
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"{what} needs packages that are not installed: {error.name}.",
            "Install them: pip install 'gpu-pipelines[emulator]'.",
        ) from error
