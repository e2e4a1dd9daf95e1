"""A small file that several processes change, on one machine or many: each change names the version to replace.

- In Cloud Storage the server decides, by the object's generation
  (https://cloud.google.com/storage/docs/request-preconditions).
- In a directory the file itself is locked with flock(2) during the change, and replaced by a whole one.
  Linux passes such locks on to the server of an NFS mount.
- Other object storage has no conditions here: what was written is read back, which leaves a gap of one request.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from gpu_pipelines.artifacts.documents import replace_file
from gpu_pipelines.artifacts.remote_files import as_user_errors, connected, is_remote
from gpu_pipelines.errors import UserError


class VersionedFile(Protocol):
    """A file whose changes are conditional. The version of a missing file is the empty text."""

    def read(self) -> tuple[bytes, str]:
        """Content and version."""
        ...

    def write(self, content: bytes, version: str) -> str | None:
        """Replaces a version; returns the new version, or None if the file has another one by now.

        Raises:
            UserError: the storage cannot be written to, or does not exist.
        """
        ...

    def delete(self, version: str) -> None:
        """Deletes a version; does nothing if the file has another one by now."""
        ...


def versioned_file(uri: str) -> VersionedFile:
    """The file of a path or of a URI in object storage.

    Raises:
        UserError: there is no such storage, or no installed package reads it.
    """
    if not is_remote(uri):
        return _LocalFile(Path(uri))
    files, path = connected(uri)
    return _CloudStorageFile(uri, files, path) if uri.startswith(("gs://", "gcs://")) else _RemoteFile(uri, files, path)


class _LocalFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[bytes, str]:
        try:
            with self._locked(create=False) as file:
                return _content_and_version(file)
        except FileNotFoundError:
            return b"", ""

    def write(self, content: bytes, version: str) -> str | None:
        try:
            with self._locked(create=not version) as file:
                if _content_and_version(file)[1] != version:
                    return None
                replace_file(self._path, content)
        except FileNotFoundError:
            return None
        return _digest(content)

    def delete(self, version: str) -> None:
        with suppress(FileNotFoundError), self._locked(create=False) as file:
            if _content_and_version(file)[1] == version:
                self._path.unlink()

    @contextmanager
    def _locked(self, *, create: bool) -> Iterator[int]:
        """The open file, locked by this process."""
        while True:
            file = os.open(self._path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
            try:
                with suppress(OSError):  # a file system without such locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                if _is_still_at(file, self._path):
                    yield file
                    return
            finally:
                os.close(file)


def _is_still_at(file: int, path: Path) -> bool:
    """Whether an open file was not deleted or replaced while this process waited for it."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _content_and_version(file: int) -> tuple[bytes, str]:
    content = os.pread(file, 1 << 20, 0)
    return content, _digest(content) if content else ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _CloudStorageFile:
    def __init__(self, uri: str, files: Any, path: str) -> None:
        self._uri, self._files = uri, files
        self._bucket, self._name, _ = files.split_path(path)

    def read(self) -> tuple[bytes, str]:
        while True:
            with as_user_errors(self._uri, "read"):
                try:
                    found = self._files.call("GET", "b/{}/o/{}", self._bucket, self._name, json_out=True)
                except FileNotFoundError:
                    return b"", ""
                generation = str(found["generation"])
                # An object that was replaced meanwhile no longer exists.
                with suppress(FileNotFoundError):
                    _, content = self._files.call(
                        "GET", "b/{}/o/{}", self._bucket, self._name, alt="media", generation=generation
                    )
                    return content, generation

    def write(self, content: bytes, version: str) -> str | None:
        address = f"{self._files.base.replace('/storage/v1/', '/upload/storage/v1/')}b/{quote(self._bucket, safe='')}/o"
        with as_user_errors(self._uri, "written to"):
            try:
                written = self._files.call(
                    "POST",
                    address,
                    uploadType="media",
                    name=self._name,
                    ifGenerationMatch=version or "0",
                    headers={"Content-Type": "application/octet-stream"},
                    data=content,
                    json_out=True,
                )
            except FileExistsError:
                return None
            except FileNotFoundError:
                if version:
                    return None
                raise UserError(
                    f"{self._uri} cannot be written to: there is no such bucket.", "Check its name."
                ) from None
        return str(written["generation"])

    def delete(self, version: str) -> None:
        with as_user_errors(self._uri, "deleted from"), suppress(FileExistsError, FileNotFoundError):
            self._files.call("DELETE", "b/{}/o/{}", self._bucket, self._name, ifGenerationMatch=version)


class _RemoteFile:
    def __init__(self, uri: str, files: Any, path: str) -> None:
        self._uri, self._files, self._path = uri, files, path

    def read(self) -> tuple[bytes, str]:
        with as_user_errors(self._uri, "read"):
            try:
                content: bytes = self._files.cat_file(self._path)
            except FileNotFoundError:
                return b"", ""
        return content, _digest(content)

    def write(self, content: bytes, version: str) -> str | None:
        if self.read()[1] != version:
            return None
        with as_user_errors(self._uri, "written to"):
            self._files.pipe_file(self._path, content)
        return _digest(content) if self.read()[0] == content else None

    def delete(self, version: str) -> None:
        if version and self.read()[1] == version:
            with as_user_errors(self._uri, "deleted from"), suppress(FileNotFoundError):
                self._files.rm_file(self._path)
