"""What runs on the machines of a job, or on a VM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Container:
    """What each replica runs.

    Attributes:
        image: address of the image.
        command: what to run in place of the image's entrypoint; empty for that.
        arguments: its arguments.
    """

    image: str
    command: Sequence[str] = ()
    arguments: Sequence[str] = ()
