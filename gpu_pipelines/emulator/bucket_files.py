"""The objects of Cloud Storage as files of a folder, which containers find under `/gcs`.

A file that a container writes there is an object at once, and an uploaded object is a file, as with Vertex AI's mount.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c
from gcp_storage_emulator.handlers.objects import _make_object_resource
from gcp_storage_emulator.storage import Storage, _FileStore

from gpu_pipelines.emulator.state_folder import damaged, replace_file

#: Folders of the store that are not buckets; no bucket's name begins like this.
_OWN = ("_resumable", "_softdelete", "_markers", ".meta")
_FIELDS = ("buckets", "objects", "resumable", "bucket_iam_policies", "soft_deleted")
Stamp = tuple[int, int]


class _Files(_FileStore):  # type: ignore[misc, unused-ignore]
    """A store that keeps buckets in one folder, and everything else in another."""

    def __init__(self, buckets: Path, records: Path) -> None:
        super().__init__(use_memory=False, root=buckets)
        self._records = records
        self.stamps: dict[str, Stamp] = {}
        self.refused = ""

    def _disk_path(self, rel: str) -> Path:
        rel = self._norm(rel)
        root = self._records if rel.split("/")[0] in _OWN else self._root
        return Path(root, *rel.split("/"))

    def write_bytes(self, rel: str, content: bytes) -> None:
        path = self._disk_path(rel)
        new = self._records / f"{hashlib.sha256(str(path).encode()).hexdigest()}.new"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(content)
            new.replace(path)
        except OSError as error:
            # A partly written file must not fill the disk.
            new.unlink(missing_ok=True)
            self.refused = f"{error.strerror or error}: {path}"
            raise
        self.stamps[self._norm(rel)] = stamp_of(path)


class BucketFiles(Storage):  # type: ignore[misc, unused-ignore]
    """The objects of all buckets, in the interface of gcp-storage-emulator's handlers.

    Args:
        buckets: the folder with a folder for each bucket.
        records: a folder for properties of objects that files lack.
        project_number: the project of new buckets.
        address: the address of the server for them.

    Raises:
        UserError: the records are damaged.
    """

    def __init__(self, buckets: Path, records: Path, project_number: str, address: str) -> None:
        records.mkdir(parents=True, exist_ok=True)
        buckets.mkdir(parents=True, exist_ok=True)
        self._data_dir, self._use_memory_fs = str(buckets), False
        self._folder, self._records, self._address = buckets, records, address
        self.project_number = project_number
        self._store = _Files(buckets, records)
        for left in records.glob("*.new"):
            left.unlink()
        self._read_config_from_file()

    def refused(self) -> str:
        """Why the last object could not be written, returned once; empty if it could."""
        told, self._store.refused = self._store.refused, ""
        return str(told)

    def get_file_obj(self, bucket_name: str, file_name: str) -> dict[str, Any]:
        """The record of an object; raises NotFound if there is none."""
        self._look(bucket_name, file_name)
        found: dict[str, Any] = super().get_file_obj(bucket_name, file_name)
        return found

    def get_file(self, bucket_name: str, file_name: str, show_error: bool = True) -> bytes:
        """The content of an object; raises NotFound if there is none."""
        content: bytes = super().get_file(bucket_name, file_name, False)
        return content

    def get_file_list(self, bucket_name: str, *arguments: Any, **named: Any) -> Any:
        """The objects and prefixes of a bucket, as in gcp-storage-emulator."""
        if bucket_name in self.buckets:
            there = set(self._names_on_disk(bucket_name))
            for name in there | set(self.objects.get(bucket_name, {})):
                self._look(bucket_name, name)
        return super().get_file_list(bucket_name, *arguments, **named)

    def delete_file(self, bucket_name: str, file_name: str) -> None:
        """Deletes an object permanently; raises NotFound if there is none."""
        self._look(bucket_name, file_name)
        self._hard_delete_file(bucket_name, file_name)

    def delete_bucket(self, bucket_name: str) -> None:
        """Deletes an empty bucket."""
        self.get_file_list(bucket_name)
        super().delete_bucket(bucket_name)

    def _object_path(self, bucket_name: str, file_name: str) -> str:
        # An object whose name ends with a slash stands for a folder; no file can have this name.
        if file_name.endswith("/"):
            return f"_markers/{bucket_name}/{quote(file_name, safe='')}"
        return str(super()._object_path(bucket_name, file_name))

    def _look(self, bucket: str, name: str) -> None:
        """Updates the record of an object from its file."""
        rel = self._object_path(bucket, name)
        path, held = self._store._disk_path(rel), self.objects.get(bucket, {})
        if bucket not in self.buckets or bucket in _OWN:
            return
        if not path.is_file():
            if held.pop(name, None) is not None:
                self._store.stamps.pop(rel, None)
            return
        stamp = stamp_of(path)
        if name in held and tuple(self._store.stamps.get(rel, ())) == stamp:
            return
        content = path.read_bytes()
        made = _make_object_resource(self._address, bucket, name, "application/octet-stream", str(len(content)))
        digest = google_crc32c.Checksum(content).digest()
        made["crc32c"] = _base64(digest)
        made["md5Hash"] = made["etag"] = _base64(hashlib.md5(content, usedforsecurity=False).digest())
        self.objects.setdefault(bucket, {})[name] = made
        self._store.stamps[rel] = stamp

    def _names_on_disk(self, bucket: str) -> Iterator[str]:
        root = self._folder / bucket
        for folder, _, files in os.walk(root):
            for file in files:
                yield (Path(folder) / file).relative_to(root).as_posix()

    def _write_config_to_file(self) -> None:
        data = {**{name: getattr(self, name) for name in _FIELDS}, "stamps": self._store.stamps}
        try:
            replace_file(self._records / ".meta", json.dumps(data).encode())
        except OSError as error:
            self._store.refused = f"{error.strerror or error}: {self._records}"
            raise

    def _read_config_from_file(self) -> None:
        path = self._records / ".meta"
        try:
            # Download links name the server that wrote them.
            text = re.sub(r"http://127\.0\.0\.1:\d+/download/", f"{self._address}/download/", path.read_text())
            data = json.loads(text)
            self._store.stamps = {name: (size, time) for name, (size, time) in data.pop("stamps").items()}
            for name in _FIELDS:
                setattr(self, name, dict(data[name]))
        except FileNotFoundError:
            for name in _FIELDS:
                setattr(self, name, {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(path, error) from error


def stamp_of(path: Path) -> Stamp:
    """The properties that change when a file is written: its size and the time, nanoseconds."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")
