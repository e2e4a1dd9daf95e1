"""The layer between KFP and the functions that do a step's work: settings from parameters, metric artifacts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from gpu_pipelines.artifacts.remote_files import RemoteFolder, folder_at, is_remote, listed
from gpu_pipelines.artifacts.scratch import scratch_folder
from gpu_pipelines.component_interface.attempts import attempts
from gpu_pipelines.component_interface.parameter import CALLED, parameters_in, typed
from gpu_pipelines.errors import UserError, nearest, user_errors_end_the_step
from gpu_pipelines.garbage import collect_rarely
from gpu_pipelines.numbers import as_number
from gpu_pipelines.step_environment import RUN, RUN_CHECKPOINTS, STORAGE

Settings = TypeVar("Settings")

#: Placeholder in a URI for the run of a step, for platforms that do not fill it in.
THIS_RUN = f"${{{RUN}}}"
#: Placeholder in a URI for the folder in which the trainings of a run on this machine have their checkpoints.
CHECKPOINTS_OF_RUN = f"${{{RUN_CHECKPOINTS}}}"
#: Placeholder in a URI for the training, by its parameters and data: in a loop one step of a pipeline trains often.
THIS_TRAINING = "%TRAINING%"
#: Metadata of an artifact whose files are not at its URI: their place.
PLACE = "place"


@contextmanager
def own_process() -> Iterator[None]:
    """The context of all that a step does: its process exists only for that, and a `UserError` is its last output.

    After an error of a service it tries again; see `gpu_pipelines.component_interface.attempts`.
    """
    collect_rarely()
    with user_errors_end_the_step(), attempts():
        yield


def fields_from(settings: type[Settings], arguments: Mapping[str, Any]) -> Settings:
    """Makes a settings dataclass from the arguments with its fields' names, numbers in the types of the fields."""
    found = {
        field.name: as_number(type(field.default), arguments[field.name])
        for field in fields(settings)  # type: ignore[arg-type]
        if field.name in arguments
    }
    return settings(**found)


def with_advanced(settings: Settings, advanced: Mapping[str, Any], *others: str) -> Settings:
    """A step's settings for its code: with the values of the component's input `advanced`, and numbers in the types of
    the fields, because KFP passes them on as JSON.

    Args:
        settings: values of the other inputs.
        advanced: values by name, which win.
        others: names in `advanced` that are not fields and that the step takes from there itself.

    Raises:
        UserError: `advanced` names something that is not a parameter, or has a value of another type.
    """
    given, declared = vars(settings), parameters_in(type(settings))
    for name, value in advanced.items():
        if name in others:
            continue
        if name not in given:
            raise UserError(f"advanced has a field {name[:80]!r}.", nearest(name, sorted(given)))
        wanted = declared[name].type
        try:
            typed(wanted, value)
        except ValueError:
            raise UserError(f"{name} (in advanced) takes {CALLED[wanted]}; got {json.dumps(value)[:80]}.") from None
    return fields_from(type(settings), {**given, **advanced})


def place_of(artifact: Any, uri: str = "") -> str:
    """Where an artifact's files are or go: a URI in object storage, or a local path.

    Cloud Storage is not read or written through a container's mount of it, on which renames and appends are unreliable.
    If the platform moves artifacts itself (`STORAGE` is set), they are at their local paths; an artifact that is moved
    keeps its URI, to which Kubeflow Pipelines uploads, and has the place in its metadata.

    Args:
        artifact: a KFP artifact.
        uri: a place to move the artifact to; empty for its current one.

    Raises:
        UserError: the place has a placeholder for the run, which is not known.
    """
    if uri:
        place = in_this_run(uri)
        if os.environ.get(STORAGE):
            artifact.metadata[PLACE] = place
            return place
        artifact.uri = place
    elif artifact.metadata.get(PLACE):
        return str(artifact.metadata[PLACE])
    return str(artifact.uri if is_remote(artifact.uri) and not os.environ.get(STORAGE) else artifact.path)


def in_this_run(uri: str) -> str:
    """A URI in which the run is filled in.

    Raises:
        UserError: the run is not known.
    """
    for placeholder, variable in ((THIS_RUN, RUN), (CHECKPOINTS_OF_RUN, RUN_CHECKPOINTS)):
        if placeholder in uri:
            value = os.environ.get(variable)
            if not value:
                raise UserError(
                    f"{uri} contains a placeholder for the run, but {variable} is not set.",
                    "Set it to the value for this run.",
                )
            uri = uri.replace(placeholder, value)
    return uri


def of_this_training(uri: str, settings: Any, dataset: Any) -> str:
    """A URI in which the training is filled in.

    Args:
        uri: the URI.
        settings: dataclass with the settings of the training.
        dataset: a KFP artifact.
    """
    said = json.dumps([asdict(settings), dataset.uri], sort_keys=True)
    return uri.replace(THIS_TRAINING, hashlib.sha256(said.encode()).hexdigest()[:16])


def storage_of(artifact: Any) -> str:
    """Storage that a step may write to: that of an artifact, or the platform's; empty for none."""
    storage = os.environ.get(STORAGE) or artifact.uri
    return storage if is_remote(storage) else ""


def local_files(artifact: Any) -> Path:
    """A directory with the files of an input artifact; in object storage, a copy, made once on each machine.

    Raises:
        UserError: the artifact has no files, or the storage cannot be read.
    """
    return folder_at(place_of(artifact))


@contextmanager
def local_folder(artifact: Any) -> Iterator[Path]:
    """A directory with the files of an input artifact, which may be a single file; see `local_files`."""
    place = place_of(artifact).rstrip("/")
    with scratch_folder("input") as scratch:
        alone = scratch / place.rpartition("/")[2]
        if is_remote(place) and list(listed(place)) == [place]:
            folder, _, name = place.rpartition("/")
            RemoteFolder(folder).download([name], alone.parent)
        elif Path(place).is_file():
            shutil.copy2(place, alone)
        yield alone.parent if alone.is_file() else local_files(artifact)


@contextmanager
def output_files(artifact: Any, marker: str) -> Iterator[Path]:
    """A directory to write an output artifact to; uploaded at the end if the artifact is in object storage.

    Args:
        artifact: a KFP artifact.
        marker: the file that marks all others as complete; it is uploaded last.

    Raises:
        UserError: the storage cannot be written to.
    """
    place = place_of(artifact)
    if not is_remote(place):
        yield Path(place)
        return
    with scratch_folder("output") as scratch:
        directory = scratch / "files"
        yield directory
        names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
        folder = RemoteFolder(place)
        folder.upload(directory, [name for name in names if name != marker])
        folder.upload(directory, [marker])


def log_metrics(artifact: Any, figures: Mapping[str, float]) -> None:
    """Logs figures on a KFP `Metrics` artifact, and writes them as a JSON file at its place.

    KFP keeps metrics only as metadata; without a file, its local cache takes the artifact for deleted and never reuses
    the step.
    """
    for name, value in figures.items():
        artifact.log_metric(name, value)
    write_figures(artifact, figures)


def write_figures(artifact: Any, figures: Mapping[str, Any]) -> None:
    """Writes an artifact's metadata also as a JSON file at its place; see `log_metrics`."""
    Path(artifact.path).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
