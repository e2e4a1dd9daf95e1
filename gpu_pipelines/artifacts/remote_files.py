"""Files and folders in object storage (`gs://…`), through fsspec: read, written in parallel, never appended to."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import io
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from gpu_pipelines.artifacts.upload import Upload, UploadGivenUpError
from gpu_pipelines.errors import AccessDeniedError, NotFoundError, UnavailableError, UserError, some_of
from gpu_pipelines.network_errors import (
    LOGIN_REMEDY,
    TRUST_REMEDY,
    UNAVAILABLE,
    error_of_status,
    no_token_was_given,
    untrusted_certificate,
)

#: Packages for the schemes that are not installed by default.
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs"}
# https://cloud.google.com/storage/docs/buckets#naming, without the length, which is left to the service.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*")
#: Bytes of one request when a file is read from beginning to end.
_READ_AHEAD = 8 << 20


class NoSuchStorageError(UserError):
    """A URI of a storage that no installed package reads."""


def is_remote(uri: str) -> bool:
    """Whether a URI names a place in object storage rather than a path of this machine."""
    return "://" in uri


def problems_of_place(name: str, uri: str) -> list[str]:
    """What is wrong with a place in object storage: `gs://` and `s3://` alone name no bucket.

    Args:
        name: its name in messages.
        uri: any URI or path; other schemes are not checked.
    """
    scheme, _, rest = uri.partition("://")
    if scheme not in ("gs", "gcs", "s3") or "://" not in uri or _BUCKET.fullmatch(rest.partition("/")[0]):
        return []
    return [f"{name} is {uri[:200]!r}, which has no name of a bucket. Give {scheme}://BUCKET/FOLDER."]


def connected(uri: str) -> tuple[Any, str]:
    """The file system (of fsspec) of a URI, and the path in it.

    Raises:
        UserError: there is no such storage, or no installed package reads it.
    """
    import fsspec

    scheme = uri.partition("://")[0]
    # It logs a traceback for errors that are reported here.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    if scheme.startswith("mlflow:"):
        fsspec.register_implementation(scheme, "gpu_pipelines.artifacts.mlflow_files.MlflowFiles", clobber=True)
    try:
        # gcsfs's usual class asks each bucket's type over gRPC, which an emulator does not answer: 60 s for each file
        # system. Its variable that chooses the class has no effect if gcsfs was imported before.
        if scheme in ("gs", "gcs") and os.environ.get("STORAGE_EMULATOR_HOST"):
            from gcsfs.core import GCSFileSystem

            fsspec.register_implementation(scheme, GCSFileSystem, clobber=True)
        return fsspec.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        package = _PACKAGES.get(scheme)
        remedy = f"Install it: pip install {package}." if package else "Give a local path or gs://bucket/folder."
        raise NoSuchStorageError(f"{uri} cannot be read: {error}.", remedy) from None


@contextmanager
def as_user_errors(uri: str, done: str) -> Iterator[None]:
    """Turns errors of a storage's client into a `UserError`; a missing file stays a `FileNotFoundError`.

    Args:
        uri: the requested URI.
        done: what failed, such as "read" or "written to".
    """
    try:
        yield
    except (FileNotFoundError, UserError, UploadGivenUpError):
        raise
    except Exception as error:  # Credentials, permissions, network: each client library has exceptions of its own.
        raise _explained(error, f"{uri} cannot be {done}") from None


def _explained(error: Exception, what: str) -> UserError:
    """The meaning of a storage's error, and what to do about it; the libraries retry by themselves."""
    told = " ".join(f"{type(error).__name__}: {error}".split())
    if reason := untrusted_certificate(error):
        return UserError(f"{what}: its certificate is not trusted ({reason}).", TRUST_REMEDY)
    status = _status_of(error)
    if status in UNAVAILABLE:
        again = f"{what}: the storage is not available ({told}) after several tries."
        return UnavailableError(again, "Try again later.", status)
    if no_token_was_given(error):
        return UnavailableError(f"{what}: no access token was given ({told}).", "Try again later.")
    if status == 401 or type(error).__module__.startswith("google.auth"):
        return AccessDeniedError(f"{what}: {told}", LOGIN_REMEDY)
    if isinstance(error, (ConnectionError, TimeoutError)) or type(error).__module__.startswith("aiohttp"):
        unreached = f"{what}: the storage cannot be reached ({told}) after several tries."
        return UnavailableError(unreached, "Check your network.")
    check = "Check the bucket's name and the account's permissions (gcloud auth application-default login)."
    return error_of_status(status, f"{what}: {told}", check)


def _status_of(error: Exception) -> int:
    """The HTTP status of an error; 0 if it has none."""
    if type(error).__name__ == "ProxyError":
        # So gcsfs has 502.
        return 502
    given = str(getattr(error, "code", None) or getattr(error, "status", None))
    return int(given) if given.isdecimal() else 0


def listed(uri: str, pattern: bool = False) -> dict[str, Mapping[str, Any]]:
    """The files of a URI: one file, those below a folder, or those that a pattern matches.

    Args:
        uri: such as `gs://bucket/folder`.
        pattern: whether `*`, `?`, `[…]` and `**` in it are wildcards, as in a shell.

    Returns:
        URI of each file, sorted, with the storage's details (`size` in bytes and others); empty if there is none.

    Raises:
        UserError: the storage cannot be listed.
    """
    files, path = connected(uri)
    scheme = uri.partition("://")[0]
    with as_user_errors(uri, "listed"):
        files.invalidate_cache()
        try:
            if pattern:
                found = files.glob(path, detail=True)
            else:
                info = files.info(path.rstrip("/"))
                # The marker of a folder, which some programs show, may have content, and is then listed as a file.
                is_file = info["type"] == "file" and not info["name"].endswith("/")
                found = {info["name"]: info} if is_file else files.find(path.rstrip("/"), detail=True)
        except FileNotFoundError:
            return {}
    return {
        f"{scheme}://{name.lstrip('/')}": info
        for name, info in sorted(found.items())
        if info["type"] == "file" and not name.endswith("/")
    }


def folders_in(uri: str) -> list[str]:
    """The names of the folders directly in a folder, without hidden ones; empty if there is no such folder.

    Raises:
        UserError: the storage cannot be listed.
    """
    files, path = connected(uri)
    with as_user_errors(uri, "listed"):
        try:
            found = files.ls(path.rstrip("/"), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
    # The marker of the folder itself is listed among those in it.
    places = [info["name"].rstrip("/") for info in found if info["type"] == "directory"]
    names = [place.rpartition("/")[2] for place in places if place != path.strip("/")]
    return [name for name in names if not name.startswith(".")]


def read_remote(uri: str, most: int | None = None, start: int = 0) -> bytes:
    """The content of a file, or a part of it, in one request.

    Args:
        uri: such as `gs://bucket/folder/name`.
        most: bytes after which it stops; None for all. A file that ends before gives fewer.
        start: first byte.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it cannot be read.
    """
    files, path = connected(uri)
    with as_user_errors(uri, "read"):
        try:
            content: bytes = files.cat_file(path, start=start or None, end=None if most is None else start + most)
        except Exception as error:
            # An empty file has no range of bytes, and neither has the part after its end.
            if most is None or _status_of(error) != 416:
                raise
            return b""
    return content


def open_remote(uri: str) -> BinaryIO:
    """Opens a file for reading in pieces; later errors are `UserError`s as well.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it cannot be read.
    """
    files, path = connected(uri)
    with as_user_errors(uri, "read"):
        return io.BufferedReader(_RemoteFile(uri, files.open(path, "rb", block_size=_READ_AHEAD)), 1 << 20)


class _RemoteFile(io.RawIOBase):
    """A file of fsspec whose errors say what to do."""

    def __init__(self, uri: str, file: Any) -> None:
        super().__init__()
        self._uri = uri
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with as_user_errors(self._uri, "read"):
            return int(self._file.readinto(buffer))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        super().close()


class RemoteFolder:
    """A folder in object storage.

    Args:
        uri: such as `gs://bucket/folder`.

    Raises:
        UserError: there is no such storage, or no installed package reads it.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._files, path = connected(self.uri)
        self._path = path.rstrip("/")

    def names(self) -> list[str]:
        """Relative paths of all files below the folder, as they are now; empty if there is none.

        Raises:
            NotFoundError: there is no such bucket.
            UserError: it cannot be listed.
        """
        return sorted(self._details())

    def state(self) -> str:
        """Hex SHA-256 of the names of all files with what distinguishes versions of a file."""
        told = ("size", "generation", "md5Hash", "etag", "ETag", "mtime")
        found = sorted(self._details().items())
        entries = [(f"{self._path}/{path}", [str(info.get(name)) for name in told]) for path, info in found]
        return hashlib.sha256(json.dumps(entries).encode()).hexdigest()

    def sizes(self) -> dict[str, int]:
        """Bytes of all files by relative path."""
        return {name: int(info["size"]) for name, info in self._details().items()}

    def md5(self) -> dict[str, str]:
        """MD5 of all files by relative path, base64; empty where the storage keeps none."""
        return {name: str(info.get("md5Hash") or "") for name, info in self._details().items()}

    def _details(self) -> dict[str, Mapping[str, Any]]:
        """The storage's details of all files as they are now, by relative path."""
        try:
            with as_user_errors(self.uri, "listed"):
                self._files.invalidate_cache()
                found = self._files.find(self._path, detail=True)
        except FileNotFoundError:
            raise NotFoundError(f"{self.uri} cannot be listed: there is no such bucket.", "Check its name.") from None
        named = {path[len(self._path) + 1 :]: info for path, info in found.items()}
        return {name: info for name, info in named.items() if _is_file(name)}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """The content of a file, from byte `start` to byte `stop`."""
        with as_user_errors(self.uri, "read"):
            content: bytes = self._files.cat_file(f"{self._path}/{name}", start=start or None, end=stop)
        return content

    def download(self, names: Sequence[str], directory: Path) -> None:
        """Copies files to the same relative paths below a local directory, in parallel."""
        for name in names:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
        with as_user_errors(self.uri, "read"):
            self._files.get([f"{self._path}/{name}" for name in names], [str(directory / name) for name in names])

    def upload(self, directory: Path, names: Sequence[str], watched: Upload | None = None) -> None:
        """Copies files from a local directory to the same relative paths, in parallel; existing ones are replaced.

        Args:
            directory: the local directory.
            names: the relative paths.
            watched: reports its progress, and may be given up.

        Raises:
            UploadGivenUpError: it was given up.
        """
        sources, places = [str(directory / name) for name in names], [f"{self._path}/{name}" for name in names]
        with as_user_errors(self.uri, "written to"):
            if watched is None or not self._files.async_impl:
                self._files.put(sources, places)
            else:
                watched.run(self._files, sources, places)

    def write(self, name: str, content: bytes) -> None:
        """Writes one file; an existing one is replaced."""
        with as_user_errors(self.uri, "written to"):
            self._files.pipe_file(f"{self._path}/{name}", content)

    def require_same(self, directory: Path, names: Sequence[str]) -> None:
        """Checks that files there are the same as in a local directory; see `different`.

        Raises:
            UserError: names those that differ.
        """
        if different := self.different(directory, names):
            raise UserError(
                f"{self.uri} does not hold what was written to it: {some_of(different, most=3)}.", "Try again."
            )

    def different(self, directory: Path, names: Sequence[str]) -> list[str]:
        """Those files that differ from a local directory, by size and, if the storage has it, MD5."""
        there = self._details()
        return [name for name in names if not _is_same(directory / name, there.get(name, {}))]

    def delete(self, names: Sequence[str]) -> None:
        """Deletes files, in parallel; missing ones are passed over."""
        if not names:
            return
        try:
            with as_user_errors(self.uri, "deleted from"):
                self._files.rm([f"{self._path}/{name}" for name in names])
        except FileNotFoundError:
            pass


def _is_file(name: str) -> bool:
    """Whether a relative path is that of a file, not of a folder's marker, as mounted buckets and consoles make it."""
    return bool(name) and not name.endswith("/")


def _is_same(file: Path, info: Mapping[str, Any]) -> bool:
    if info.get("size") != file.stat().st_size:
        return False
    return not info.get("md5Hash") or md5_of_file(file) == info["md5Hash"]


def md5_of_file(file: Path) -> str:
    """MD5 of a file's bytes, base64, as Cloud Storage keeps it for each object; it is not for security here."""
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return base64.b64encode(digest.digest()).decode()


def is_large_for_the_disk(size: int) -> bool:
    """Whether a size in bytes is more than half of the free disk for temporary files."""
    return size > free_for_temporary_files() / 2


def free_for_temporary_files() -> int:
    """Free bytes of the disk for temporary files."""
    return shutil.disk_usage(tempfile.gettempdir()).free


def own_folder(kind: str) -> Path:
    """A folder for temporary files of this user that all processes find; TMPDIR chooses the disk.

    Args:
        kind: its purpose.

    Raises:
        UserError: it belongs to another user.
    """
    place = Path(tempfile.gettempdir()) / f"gpu-pipelines-{kind}-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        raise UserError(f"{place} belongs to another user.", "Remove it, or set TMPDIR.")
    return place


def folder_at(place: str) -> Path:
    """The directory at a place; for a folder in object storage a copy, made once on each machine.

    Args:
        place: a path, which may begin with `~`, or such as `gs://bucket/folder`.

    Raises:
        UserError: the folder in object storage is empty or cannot be read.
    """
    return fetched_folder(place) if is_remote(place) else Path(place).expanduser()


def fetched_folder(uri: str, without: Callable[[str], bool] | None = None) -> Path:
    """A local copy of a folder, downloaded once for all processes of this machine that need it.

    Args:
        uri: such as `gs://bucket/folder`.
        without: whether a path in the folder is left out; None leaves out nothing.

    Raises:
        UserError: it is empty or cannot be read.
    """
    folder = RemoteFolder(uri)
    names = [name for name in folder.names() if without is None or not without(name)]
    if not names:
        raise UserError(
            f"{uri} has no files.", "Check its name; a folder in a bucket is the beginning of the names of its files."
        )
    place = own_folder("fetched")
    some = "" if without is None else f"-{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]}"
    directory = place / (folder.state() + some)
    with (place / f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            # The name is unique, so that a download that was killed is not beside the next one.
            part = place / f"{directory.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            try:
                folder.download(names, part)
                part.rename(directory)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return directory
