"""The places of a pipeline: its request names what it reads and writes, and a target judges whether its steps can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_pipelines.artifacts.mlflow_server import MLFLOW_FILE
from gpu_pipelines.data.sources.listing import is_listed_in
from gpu_pipelines.training.script.settings import ScriptSettings
from gpu_pipelines.tuning.space import is_address

#: Kinds of places: sources of many kinds read data, and a registry is also written to; a directory may also be the name
#: of a model on a hub; a file has a function of Python, a program is a script or a folder of code, and an output is
#: only written to.
DATA, REGISTRY, DIRECTORY, FILE, PROGRAM, OUTPUT = "data", "registry", "directory", "file", "program", "output"


@dataclass(frozen=True)
class Place:
    """A place that a run needs.

    Attributes:
        parameter: the parameter that names it.
        uri: where it is.
        kind: `DATA`, `REGISTRY`, `DIRECTORY`, `FILE`, `PROGRAM` or `OUTPUT`.
    """

    parameter: str
    uri: str
    kind: str


def lost_registry(registry: str, others: str) -> str:
    """Says that a registry in a container would be lost; `others` names registries that outlive it."""
    kind = "file" if registry.startswith(MLFLOW_FILE) else "directory"
    return f"The registry {registry} would be a {kind} of the container, lost at its end. Give {others}."


def problems_of_own_files(places: Sequence[Place], written: Mapping[str, str]) -> list[str]:
    """Cases in which a run would read as data what it writes itself, or what earlier runs wrote.

    Args:
        places: what the run reads and writes.
        written: further places that it writes to, by the option that gives each.
    """
    # Images are looked up below image_root by their names: other files there are not read.
    read = [each for each in places if each.kind == DATA and each.parameter != "image_root"]
    registries = {f"-p {each.parameter}=…": each.uri for each in places if each.kind == REGISTRY}
    return [
        f"Runs write to {place}, which lies in the data {data.uri}: it would be read as well. Give a place outside of "
        f"it by {option}, or keep the data in a folder of its own."
        for data in read
        for option, place in {**written, **registries}.items()
        if is_listed_in(data.uri, place)
    ]


def places_of_script(settings: ScriptSettings) -> Iterator[Place]:
    """The places of a training script and its code; files in the image are not places.

    Args:
        settings: those of `run_training_script`.
    """
    name, place = ("code", settings.code) if settings.code else ("script", settings.script.strip())
    if not place or (settings.module and not settings.code):
        return
    # An absolute path that does not exist here is in the image.
    if "://" in place or not Path(place).is_absolute() or Path(place).exists():
        yield Place(name, place, PROGRAM)


def places_of_space(space: str) -> Iterator[Place]:
    """The place of a search space; none if the parameter is its text.

    Args:
        space: the parameter of `tune_model`.
    """
    if space and is_address(space):
        yield Place("space", space, FILE)
