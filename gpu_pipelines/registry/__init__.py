"""Where models are uploaded to. A registry is named by a URI; a plain path is a directory on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from gpu_pipelines.errors import UserError
from gpu_pipelines.registry.directory import DirectoryRegistry, RegisteredVersion

__all__ = ["DirectoryRegistry", "RegisteredVersion", "model_name_for", "open_registry", "registry_problems"]

_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def open_registry(uri: str) -> DirectoryRegistry:
    """Opens the registry that a URI names.

    Raises:
        UserError: there is no such kind of registry.
    """
    if "://" in uri and not uri.startswith("file://"):
        raise UserError(f"The registry {uri!r} is of a kind that is not supported.", "Give a directory.")
    return DirectoryRegistry(Path(uri.removeprefix("file://")).expanduser())


def registry_problems(uri: str, model_name: str) -> list[str]:
    """What is wrong with a registry's URI or a model's name, without touching either."""
    found = []
    if not uri:
        found.append("registry is empty. Give a directory, such as ./registry.")
    else:
        try:
            open_registry(uri)
        except UserError as error:
            found.append(f"{error.problem} {error.remedy}")
    if model_name and not _MODEL_NAME.fullmatch(model_name):
        found.append(
            f"model_name is {model_name[:80]!r}; give 1 to 63 lower-case letters, digits, dots, dashes or underscores, "
            "a letter or digit first."
        )
    return found


def model_name_for(source: str) -> str:
    """The name of a model that was given none: after the source of its data.

    `sample:digits` gives digits, `data/Flower Photos/` and `data/flower_photos.csv` give flower-photos.
    """
    stem = Path(source.rpartition(":")[2]).expanduser().resolve().stem
    return re.sub(r"[^a-z0-9.]+", "-", stem.lower()).strip("-.")[:63] or "model"
