"""The container that runs on the machines of a job, or on a VM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Container:
    """The container of each replica.

    Attributes:
        image: address of the image.
        command: what to run instead of the image's entrypoint; empty for the entrypoint.
        arguments: its arguments.
    """

    image: str
    command: Sequence[str] = ()
    arguments: Sequence[str] = ()
