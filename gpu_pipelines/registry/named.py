"""Resolves the name of a model: to a version in a registry, or to a directory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gpu_pipelines.artifacts.exported_model import CONFIG, DOCUMENTS
from gpu_pipelines.artifacts.mlflow_server import MLFLOW_FILE
from gpu_pipelines.component_interface.default_registry import DEFAULT_REGISTRY
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import DirectoryRegistry, Registry, open_registry


def existing_registry(uri: str) -> Registry:
    """Opens a registry to read.

    Args:
        uri: as for `open_registry`.

    Raises:
        UserError: there is no such kind of registry, or no such directory or file.
    """
    opened = open_registry(uri)
    if isinstance(opened, DirectoryRegistry) and uri != DEFAULT_REGISTRY and not opened.root.is_dir():
        there = "is not a directory" if opened.root.exists() else "does not exist"
        raise UserError(f"The registry {uri} {there}.", "Give the directory that the runs used as registry.")
    # MLflow's client would create it.
    if uri.startswith(MLFLOW_FILE) and not Path(uri.removeprefix(MLFLOW_FILE)).expanduser().is_file():
        raise UserError(f"The registry {uri} does not exist.", "Give the file that the runs used as registry.")
    return opened


def directory_named(model: str, registry: str) -> Path | None:
    """The directory that a model's name refers to; None if it refers to a version in the registry.

    A model is named after the folder of its data, which is often beside the registry. So a folder without a model is
    meant only if the registry has no model of that name.

    Args:
        model: `NAME@REFERENCE`, NAME, or a directory.
        registry: URI of the registry to search.

    Raises:
        UserError: no model is named.
    """
    if not model:
        raise UserError("No model is named.", "Give NAME@ALIAS, NAME@VERSION, or the directory of an exported model.")
    directory = Path(model).expanduser()
    if not directory.is_dir():
        return None
    if not any((directory / name).is_file() for name in (CONFIG, *DOCUMENTS)):
        with suppress(UserError):
            if model in existing_registry(registry).names():
                return None
    return directory
