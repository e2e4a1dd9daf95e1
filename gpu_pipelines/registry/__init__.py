"""Model registries, the destination of uploads. A registry is named by a URI; a plain path is a local directory."""

from __future__ import annotations

import re
from os import PathLike, fspath
from pathlib import Path

from gpu_pipelines.artifacts.mlflow_server import MLFLOW, MLFLOW_FILE
from gpu_pipelines.errors import UserError, said_by
from gpu_pipelines.registry.directory import DirectoryRegistry
from gpu_pipelines.registry.registered import RegisteredVersion, Registry

__all__ = [
    "DirectoryRegistry",
    "RegisteredVersion",
    "Registry",
    "is_local",
    "model_name_for",
    "open_registry",
    "registry_problems",
]

VERTEX = "vertex://"

_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def open_registry(
    uri: str | PathLike[str], near: str = "", serving_image: str = "", encryption_key: str = ""
) -> Registry:
    """Opens the registry with a URI, without reading it.

    Args:
        uri: a directory; `vertex://PROJECT/REGION` for Vertex AI Model Registry, where `vertex://` alone takes the
            job's own project and region; or `mlflow:https://HOST`, `mlflow:http://HOST:PORT` or `mlflow:sqlite:///FILE`
            for MLflow.
        near: `gs://…`, whose bucket keeps the files of Vertex AI's models; empty for that of the settings.
        serving_image: container that serves the models on Vertex AI; empty for the default.
        encryption_key: Cloud KMS key of models on Vertex AI; empty for that of the settings, if there is one.

    Raises:
        UserError: there is no such kind of registry.
    """
    uri = fspath(uri)
    if uri.startswith(VERTEX):
        from gpu_pipelines.registry.vertex import VertexRegistry

        return VertexRegistry(uri.removeprefix(VERTEX), near, serving_image, encryption_key)
    if uri.startswith(MLFLOW):
        from gpu_pipelines.registry.mlflow_registry import MlflowRegistry

        return MlflowRegistry(uri)
    if not is_local(uri):
        raise UserError(
            f"The registry {uri!r} is of a kind that is not supported.",
            "Give a directory, vertex://PROJECT/REGION, or mlflow:https://HOST.",
        )
    return DirectoryRegistry(Path(uri.removeprefix("file://")).expanduser())


def is_local(uri: str) -> bool:
    """Whether a registry is a directory or a file on this machine."""
    return "://" not in uri or uri.startswith(("file://", MLFLOW_FILE))


def registry_problems(uri: str, model_name: str) -> list[str]:
    """Problems with a registry's URI or a model's name, without accessing either."""
    found = []
    if not uri:
        found.append("registry is empty. Give a directory, such as ./registry.")
    else:
        found += said_by(lambda: open_registry(uri))
    if model_name and not _MODEL_NAME.fullmatch(model_name):
        found.append(
            f"model_name is {model_name[:80]!r}; give 1 to 63 lower-case letters, digits, dots, dashes or underscores, "
            "a letter or digit first."
        )
    return found


def model_name_for(source: str) -> str:
    """The default name of a model: after the source of its data.

    `sample:digits` gives digits, `data/Flower Photos/` and `data/flower_photos.csv` give flower-photos,
    `bq://project.dataset.flower_photos` and `hf://owner/flower-photos?split=all` do too.
    """
    if source.startswith("bq://"):
        source = source.rpartition(".")[2]
    elif source.startswith("hf://"):
        source = re.split("[@?]", source)[0]
    stem = Path(source.rpartition(":")[2]).expanduser().resolve().stem
    return re.sub(r"[^a-z0-9.]+", "-", stem.lower()).strip("-.")[:63] or "model"
