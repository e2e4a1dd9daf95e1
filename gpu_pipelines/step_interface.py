"""Between KFP and the functions that do a step's work: flat parameters to settings, figures to metric artifacts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from gpu_pipelines.artifacts.remote_files import RemoteFolder, fetched_folder, is_remote

Settings = TypeVar("Settings")


def fields_from(settings: type[Settings], arguments: Mapping[str, Any]) -> Settings:
    """Makes a settings dataclass of those arguments that have the names of its fields."""
    names = [field.name for field in fields(settings)]  # type: ignore[arg-type]
    return settings(**{name: arguments[name] for name in names if name in arguments})


def place_of(artifact: Any, uri: str = "") -> str:
    """Where an artifact's files are or go: a URI in object storage, or a local path.

    Cloud Storage is not reached through a container's mount of it, on which renames and appends are not to be relied
    on.

    Args:
        artifact: a KFP artifact.
        uri: a place that the artifact is moved to; empty for the one it has.
    """
    if uri:
        artifact.uri = uri
    return str(artifact.uri if is_remote(artifact.uri) else artifact.path)


def local_files(artifact: Any) -> Path:
    """A directory with the files of an input artifact; in object storage, a copy, made once on each machine.

    Raises:
        UserError: the artifact has no files, or the storage cannot be read.
    """
    place = place_of(artifact)
    return fetched_folder(place) if is_remote(place) else Path(place)


@contextmanager
def output_files(artifact: Any, marker: str) -> Iterator[Path]:
    """A directory to write an output artifact to; uploaded at the end if the artifact is in object storage.

    Args:
        artifact: a KFP artifact.
        marker: the file that says that all others are whole; it goes last.

    Raises:
        UserError: the storage cannot be written to.
    """
    place = place_of(artifact)
    if not is_remote(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-output-") as scratch:
        directory = Path(scratch) / "files"
        yield directory
        names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
        folder = RemoteFolder(place)
        folder.upload(directory, [name for name in names if name != marker])
        folder.upload(directory, [marker])


def log_metrics(artifact: Any, figures: Mapping[str, float]) -> None:
    """Logs figures on a KFP `Metrics` artifact, and leaves them as a JSON file at its place.

    KFP keeps metrics as metadata alone; without a file, its local cache holds the artifact for deleted and never reuses
    the step.
    """
    for name, value in figures.items():
        artifact.log_metric(name, value)
    write_figures(artifact, figures)


def write_figures(artifact: Any, figures: Mapping[str, Any]) -> None:
    """Writes what an artifact holds as metadata as a JSON file at its place as well; see `log_metrics`."""
    Path(artifact.path).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
