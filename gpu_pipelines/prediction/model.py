"""The model to predict with: a registered version, or one from an earlier step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.artifacts.integrity import VERSION, digest_of, model_files
from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.registry import RegisteredVersion, Registry, open_registry
from gpu_pipelines.registry.missing import missing_model

_MOST_NAMED = 10


@dataclass(frozen=True)
class Model:
    """A model whose files are here.

    Attributes:
        directory: its files on this machine.
        place: where workers on other machines find the files: the directory, or `gs://…`.
        digest: hex SHA-256 of the names and hashes of its files.
        registry: URI of the registry; empty for a model that is in none.
        name: its name in the registry.
        version: its number in the registry; 0 for a model that is in none.
        aliases: the aliases of the version.
    """

    directory: Path
    place: str
    digest: str
    registry: str = ""
    name: str = ""
    version: int = 0
    aliases: tuple[str, ...] = ()

    @property
    def said(self) -> dict[str, Any]:
        """The description of the model in the document of predictions."""
        if not self.version:
            return {"place": self.place, "digest": self.digest}
        return {
            "registry": self.registry,
            "name": self.name,
            "version": self.version,
            "aliases": list(self.aliases),
            "digest": self.digest,
        }

    @property
    def title(self) -> str:
        """Its name for people."""
        return f"{self.name} version {self.version}" if self.version else self.place


def registered_version(registry: str, name: str, reference: str) -> RegisteredVersion:
    """The version with an alias or number.

    Args:
        registry: URI of the registry.
        name: the name of the model; empty for the only one in the registry.
        reference: alias or number.

    Raises:
        UserError: there is no such version, or there are several models and none is named.
    """
    opened = open_registry(registry)
    return opened.version(name or _only_name(opened, registry), reference)


def _only_name(registry: Registry, uri: str) -> str:
    names = registry.names()
    if len(names) == 1:
        return names[0]
    if not names:
        raise missing_model(registry, "", uri)
    raise UserError(
        f"model_name is empty, and {uri} has {len(names)} models: {some_of(names, _MOST_NAMED)}.",
        "Give the name of the model to predict with.",
    )


def registered_model(registry: str, name: str, reference: str) -> Model:
    """A registered version, with its files checked; arguments and errors as for `registered_version`.

    Raises:
        UserError: also if it is damaged.
    """
    version = registered_version(registry, name, reference)
    directory = version.path
    digest = digest_of(model_files(version.info.get("files") or _hashes(directory)))
    place = version.place
    return Model(directory, place, digest, registry, version.name, version.number, version.aliases)


def model_in(directory: Path, place: str) -> Model:
    """The exported model in a directory, without a registry.

    Args:
        directory: its files on this machine.
        place: where they came from.
    """
    return Model(directory, place, digest_of(model_files(_hashes(directory))))


def _hashes(directory: Path) -> dict[str, str]:
    return sha256_of_tree(directory, leave_out=(VERSION,))
