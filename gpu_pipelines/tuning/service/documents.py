"""The folder of a study, local or in object storage: the request, and a record of each trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import write_document_at
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote, read_remote
from gpu_pipelines.errors import DamagedError


class StudyDocuments:
    """The documents in the folder of a study.

    Args:
        address: a directory, or gs://….
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")

    def place_of(self, name: str) -> str:
        """The address of a relative path."""
        return f"{self.address}/{name}"

    def names(self, folder: str) -> list[str]:
        """The documents in a folder, by name, sorted.

        Raises:
            UserError: the storage cannot be listed.
        """
        place = self.place_of(folder)
        found = RemoteFolder(place).names() if is_remote(place) else [path.name for path in Path(place).glob("*")]
        return sorted(name for name in found if name.endswith(".json") and not name.startswith("."))

    def read(self, name: str) -> dict[str, Any] | None:
        """A document; None if there is none.

        Args:
            name: its relative path.

        Raises:
            UserError: the storage cannot be read, or the document is damaged.
        """
        place = self.place_of(name)
        try:
            content = read_remote(place) if is_remote(place) else Path(place).read_bytes()
            return dict(json.loads(content))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DamagedError(f"{place} is damaged: {error}.") from None

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Writes a document as a whole, replacing an earlier one.

        Args:
            name: its relative path.
            content: the document; without NaN and infinity.

        Raises:
            UserError: the storage cannot be written to.
        """
        place = self.place_of(name)
        if not is_remote(place):
            Path(place).parent.mkdir(parents=True, exist_ok=True)
        write_document_at(place, content)
