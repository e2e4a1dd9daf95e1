"""Results of benchmarks, kept beside the checkpoints so that nothing is measured twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import read_document, write_document
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.errors import UserError

#: Folder beside the checkpoints.
FOLDER = "benchmarks"


@dataclass(frozen=True)
class ResultStore:
    """A folder of results, one file each.

    Attributes:
        place: where the checkpoints are: a directory, or `gs://…`.
    """

    place: str

    def read(self, key: str) -> dict[str, Any] | None:
        """The result with a key; None if there is none, or it cannot be read."""
        try:
            if not is_remote(self.place):
                return read_document(Path(self.place) / FOLDER / f"{key}.json", "result")
            folder = RemoteFolder(f"{self.place}/{FOLDER}")
            return dict(json.loads(folder.read(f"{key}.json"))) if f"{key}.json" in folder.names() else None
        except (UserError, ValueError):
            return None

    def write(self, key: str, result: Mapping[str, Any]) -> None:
        """Keeps a result. If that fails, such as in a read-only bucket, the work continues without."""
        try:
            if is_remote(self.place):
                content = json.dumps({"format_version": 1, **result}).encode()
                RemoteFolder(f"{self.place}/{FOLDER}").write(f"{key}.json", content)
                return
            folder = Path(self.place) / FOLDER
            folder.mkdir(exist_ok=True)
            write_document(folder / f"{key}.json", dict(result))
        except (UserError, OSError) as error:
            print(f"warning: the result of a benchmark is not kept beside the checkpoints: {error}", flush=True)
