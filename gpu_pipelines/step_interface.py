"""Between KFP and the functions that do a step's work: flat parameters to settings, figures to metric artifacts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from gpu_pipelines.artifacts.remote_files import is_remote

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
