"""What a pipeline reads and writes: its request names the places, and a target judges whether its steps get there."""

from __future__ import annotations

from dataclasses import dataclass

#: What a place holds: data is read by sources of many kinds, and a registry is written to as well; a directory may
#: also be the name of a model on a hub, and a file is Python.
DATA, REGISTRY, DIRECTORY, FILE = "data", "registry", "directory", "file"


@dataclass(frozen=True)
class Place:
    """A place that a run needs.

    Attributes:
        parameter: the parameter that names it.
        uri: where it is.
        kind: `DATA`, `REGISTRY`, `DIRECTORY` or `FILE`.
    """

    parameter: str
    uri: str
    kind: str


def lost_registry(registry: str, others: str) -> str:
    """That nothing would be left of a registry in a container; `others` names registries that outlive it."""
    return f"The registry {registry} would be a directory of the container, lost at its end. Give {others}."
