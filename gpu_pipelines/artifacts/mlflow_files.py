"""The files of a run in MLflow as a file system of fsspec, so that code for `gs://…` reads them.

A place is `ADDRESS/runs/RUN/artifacts/FOLDER`, with the address of the server as in parameters. The files go through
MLflow's client: through the server if that takes them, else into the bucket that it names.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from fsspec.spec import AbstractFileSystem

from gpu_pipelines.artifacts.mlflow_server import MLFLOW, artifacts_of, mlflow_errors

_PATH = re.compile(r"(?P<server>.+?)/runs/(?P<run>\w+)/artifacts(?:/(?P<inner>.*))?")


def place_of_files(uri: str, run: str, folder: str) -> str:
    """The URI of a folder of a run.

    Args:
        uri: of the server, as `mlflow_uri` gives it.
        run: its id.
        folder: among its artifacts.
    """
    return f"{uri}/runs/{run}/artifacts/{folder}"


class MlflowFiles(AbstractFileSystem):
    """The files of all runs of all servers with one scheme."""

    protocol = ("mlflow:http", "mlflow:https", "mlflow:sqlite")

    def __init__(self, scheme: str = "https", **options: Any) -> None:
        super().__init__(**options)
        self._scheme = scheme

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        # A file's path is absolute, so its first slash says nothing.
        return str(path).rpartition("://")[2].strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"scheme": path.partition("://")[0].removeprefix(MLFLOW)}

    def _opened(self, path: str) -> tuple[Any, str]:
        """The access to the files of the run of a path, and the path in the run."""
        parts = _PATH.fullmatch(self._strip_protocol(path))
        if parts is None:
            raise FileNotFoundError(f"{path} names no run of MLflow")
        root = "///" + "/" if self._scheme == "sqlite" else "//"
        return artifacts_of(f"{MLFLOW}{self._scheme}:{root}{parts['server']}", parts["run"]), parts["inner"] or ""

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """The entries of a folder; for a file, the file."""
        path = self._strip_protocol(path)
        with mlflow_errors(f"Listing {path}"):
            files, inner = self._opened(path)
            entries = files.list_artifacts(inner or None) or []
        base = path[: len(path) - len(inner)].rstrip("/")
        found = [
            {
                "name": f"{base}/{entry.path}",
                "size": 0 if entry.is_dir else int(entry.file_size or 0),
                "type": "directory" if entry.is_dir else "file",
            }
            for entry in entries
        ]
        if not found and inner:
            found = [each for each in [self.info(path)] if each["type"] == "file"]
        return found if detail else [each["name"] for each in found]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Name, size and type of a file or folder."""
        path = self._strip_protocol(path)
        with mlflow_errors(f"Looking for {path}"):
            _, inner = self._opened(path)
        if not inner:
            return {"name": path, "size": 0, "type": "directory"}
        parent = path.rpartition("/")[0]
        with mlflow_errors(f"Listing {parent}"):
            files, above = self._opened(parent)
            for entry in files.list_artifacts(above or None) or []:
                if entry.path == inner:
                    kind = "directory" if entry.is_dir else "file"
                    return {"name": path, "size": int(entry.file_size or 0), "type": kind}
        raise FileNotFoundError(path)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            raise NotImplementedError(f"mode {mode}: files are written whole")
        with tempfile.TemporaryDirectory() as scratch:
            # The open file stays readable when its name is gone.
            return self._downloaded(path, Path(scratch)).open("rb")

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        """Copies a file to this machine."""
        target = Path(lpath)
        if self.isdir(rpath):
            target.mkdir(parents=True, exist_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            self._downloaded(rpath, Path(scratch)).replace(target)

    def _downloaded(self, path: str, scratch: Path) -> Path:
        with mlflow_errors(f"Reading {path}"):
            files, inner = self._opened(path)
            # Some servers do not distinguish a missing file from other errors.
            self.info(path)
            return Path(files.download_artifacts(inner, str(scratch)))

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        """Copies a file of this machine, which keeps its name."""
        with mlflow_errors(f"Writing {rpath}"):
            files, inner = self._opened(rpath)
            files.log_artifact(str(lpath), inner.rpartition("/")[0] or None)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        """Writes a file."""
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / path.rpartition("/")[2]
            file.write_bytes(value)
            self.put_file(str(file), path)

    def rm_file(self, path: str) -> None:
        """Deletes a file."""
        with mlflow_errors(f"Deleting {path}"):
            files, inner = self._opened(path)
            files.delete_artifacts(inner)
