"""The objects of Cloud Storage as files of a folder, which containers find under `/gcs`.

A file that a container writes there is an object at once, and an uploaded object is a file, as with Vertex AI's mount.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from gcp_storage_emulator.exceptions import BadRequest, Conflict, NotFound
from gcp_storage_emulator.handlers.objects import _make_object_resource
from gcp_storage_emulator.storage import RESUMABLE_DIR, Storage, _FileStore

from gpu_pipelines.emulator.state_folder import damaged, replace_file
from gpu_pipelines.emulator.storage.file_content import FileContent
from gpu_pipelines.emulator.storage.object_names import page_of
from gpu_pipelines.emulator.storage.object_records import ObjectRecords, Stamp, cannot_write

#: Folders of the store that are not buckets; no bucket's name begins like this.
_OWN = ("_resumable", "_softdelete", "_markers", ".meta")
_FIELDS = ("buckets", "resumable", "bucket_iam_policies")
#: The server in the records of objects; an answer names its own address.
HERE = "http://storage.emulator"


class _Files(_FileStore):  # type: ignore[misc, unused-ignore]
    """A store that keeps buckets in one folder, and everything else in another."""

    def __init__(self, buckets: Path, records: Path) -> None:
        super().__init__(use_memory=False, root=buckets)
        self._records = records

    def _disk_path(self, rel: str) -> Path:
        rel = self._norm(rel)
        root = self._records if rel.split("/")[0] in _OWN else self._root
        return Path(root, *rel.split("/"))

    def write_bytes(self, rel: str, content: bytes | FileContent) -> None:
        path = self._disk_path(rel)
        new = self._records / f"{hashlib.sha256(str(path).encode()).hexdigest()}.new"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, FileContent):
                content.write_to(new)
            else:
                new.write_bytes(content)
            new.replace(path)
        except OSError as error:
            raise cannot_write(f"{error.strerror or error}: {path}") from error
        finally:
            # A partly written file must not fill the disk.
            new.unlink(missing_ok=True)


class BucketFiles(Storage):  # type: ignore[misc, unused-ignore]
    """The objects of all buckets, in the interface of gcp-storage-emulator's handlers.

    Args:
        buckets: the folder with a folder for each bucket.
        records: a folder for properties of objects that files lack.
        project_number: the project of new buckets.

    Raises:
        UserError: the records are damaged.
    """

    def __init__(self, buckets: Path, records: Path, project_number: str) -> None:
        records.mkdir(parents=True, exist_ok=True)
        buckets.mkdir(parents=True, exist_ok=True)
        self._data_dir, self._use_memory_fs = str(buckets), False
        self._folder, self._kept_in = buckets, records
        self.project_number = project_number
        self._store = _Files(buckets, records)
        for left in records.glob("*.new"):
            left.unlink()
        # Objects are not held here; the handlers of gcp-storage-emulator find none of their own.
        self.objects: dict[str, Any] = {}
        self.soft_deleted: dict[str, Any] = {}
        self._records = ObjectRecords(records / "objects.db")
        try:
            self._read_config_from_file()
        except BaseException:
            self._records.close()
            raise

    def list(self, bucket: str, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of the objects of a bucket, in the form of the API.

        Args:
            bucket: its name.
            query: the parameters of the request.

        Raises:
            NotFound: there is no such bucket.
            ApiError: a parameter is wrong.
        """
        if bucket not in self.buckets:
            raise NotFound
        if query.get("softDeleted") == "true":
            return {"kind": "storage#objects", "prefixes": [], "items": []}
        page = page_of(self._folder / bucket, self._kept_in / "_markers" / bucket, query)
        # One that a container has just removed is none.
        items = [record for name in page.names if (record := self._look(bucket, name))]
        listed = {"kind": "storage#objects", "prefixes": page.prefixes, "items": items}
        return {**listed, "nextPageToken": page.token} if page.token else listed

    def get_file_obj(self, bucket_name: str, file_name: str) -> dict[str, Any]:
        """The record of an object; raises NotFound if there is none."""
        if bucket_name not in self.buckets or (found := self._look(bucket_name, file_name)) is None:
            raise NotFound
        return found

    def get_file(self, bucket_name: str, file_name: str, show_error: bool = True) -> FileContent:
        """The content of an object; raises NotFound if there is none."""
        self.get_file_obj(bucket_name, file_name)
        return FileContent(self._store._disk_path(self._object_path(bucket_name, file_name)))

    def opened(self, bucket: str, name: str) -> tuple[dict[str, Any], BinaryIO]:
        """The record of an object and its file; raises NotFound if there is none."""
        record = self.get_file_obj(bucket, name)
        return record, self._store._disk_path(self._object_path(bucket, name)).open("rb")

    def create_file(
        self,
        bucket_name: str,
        file_name: str,
        content: bytes | FileContent,
        file_obj: dict[str, Any],
        file_id: str | None = None,
    ) -> None:
        """Writes an object, and ends its upload in pieces; raises NotFound if there is no such bucket."""
        if bucket_name not in self.buckets:
            raise NotFound
        # The handlers count the properties of an upload as a change of them.
        file_obj |= {"mediaLink": _link(file_obj), "metageneration": "1"}
        rel = self._object_path(bucket_name, file_name)
        self._store.write_bytes(rel, content)
        self._records.keep(bucket_name, file_name, file_obj, stamp_of(self._store._disk_path(rel)))
        if file_id:
            self.cancel(file_id)

    def add_to_resumable_upload(
        self, file_id: str, content: bytes, total_size: int | None = None, expected_start: int | None = None
    ) -> FileContent | None:
        """Appends a piece to an upload; gives the whole content with the last one.

        Raises:
            BadRequest: the piece does not begin where the last one ended.
        """
        path, held = self._piece(file_id), self.get_resumable_byte_count(file_id)
        if expected_start not in (None, held):
            raise BadRequest(f"Invalid Content-Range start: expected {held}, got {expected_start}")
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as file:
                file.write(content)
        except OSError as error:
            raise cannot_write(f"{error.strerror or error}: {path}") from error
        is_whole = total_size is not None and path.stat().st_size >= total_size
        return FileContent(path, size=total_size, is_given_up=True) if is_whole else None

    def get_resumable_byte_count(self, file_id: str) -> int:
        """The bytes of an upload that are here."""
        path = self._piece(file_id)
        return path.stat().st_size if path.exists() else 0

    def cancel(self, file_id: str) -> None:
        """Ends an upload in pieces without an object; raises NotFound if there is none."""
        self.delete_resumable_file_obj(file_id)
        self._delete_file(RESUMABLE_DIR, self.safe_id(file_id))
        self._write_config_to_file()

    def _piece(self, file_id: str) -> Path:
        return self._store._disk_path(f"{RESUMABLE_DIR}/{self.safe_id(file_id)}")

    def move(self, bucket: str, name: str, to: str) -> dict[str, Any]:
        """Gives an object another name; raises NotFound if there is none."""
        record = self.get_file_obj(bucket, name)
        made: dict[str, Any] = _make_object_resource(HERE, bucket, to, record["contentType"], record["size"], record)
        self.create_file(bucket, to, self.get_file(bucket, name), {**made, "etag": record["etag"]})
        self.delete_file(bucket, name)
        return self.get_file_obj(bucket, to)

    def patch_object(self, bucket_name: str, file_name: str, file_obj: dict[str, Any]) -> None:
        """Changes the record of an object."""
        path = self._store._disk_path(self._object_path(bucket_name, file_name))
        self._records.keep(bucket_name, file_name, file_obj, stamp_of(path))

    def delete_file(self, bucket_name: str, file_name: str) -> None:
        """Deletes an object permanently; raises NotFound if there is none."""
        self.get_file_obj(bucket_name, file_name)
        self._delete_file(bucket_name, file_name)
        self._records.forget(bucket_name, file_name)

    def delete_bucket(self, bucket_name: str) -> None:
        """Deletes an empty bucket."""
        if bucket_name in self.buckets and self.list(bucket_name, {"maxResults": "1"})["items"]:
            raise Conflict(f"Bucket '{bucket_name}' is not empty")
        super().delete_bucket(bucket_name)

    def close(self) -> None:
        """Closes the records."""
        self._records.close()

    def _object_path(self, bucket_name: str, file_name: str) -> str:
        # An object whose name ends with a slash stands for a folder; no file can have this name.
        if file_name.endswith("/"):
            return f"_markers/{bucket_name}/{quote(file_name, safe='')}"
        return str(super()._object_path(bucket_name, file_name))

    def _look(self, bucket: str, name: str) -> dict[str, Any] | None:
        """The record of an object, updated from its file; None if there is no file."""
        path, held = self._store._disk_path(self._object_path(bucket, name)), self._records.of(bucket, name)
        if not path.is_file():
            if held:
                self._records.forget(bucket, name)
            return None
        stamp = stamp_of(path)
        if held and held[1] == stamp:
            return held[0]
        made: dict[str, Any] = _make_object_resource(HERE, bucket, name, "application/octet-stream", str(stamp[0]))
        made["crc32c"], made["md5Hash"] = FileContent(path).digests
        made["etag"] = made["md5Hash"]
        made["mediaLink"] = _link(made)
        self._records.keep(bucket, name, made, stamp)
        return made

    def _write_config_to_file(self) -> None:
        try:
            replace_file(self._kept_in / ".meta", json.dumps({name: getattr(self, name) for name in _FIELDS}).encode())
        except OSError as error:
            raise cannot_write(f"{error.strerror or error}: {self._kept_in}") from error

    def _read_config_from_file(self) -> None:
        path = self._kept_in / ".meta"
        try:
            data = json.loads(path.read_bytes())
            for name in _FIELDS:
                setattr(self, name, dict(data[name]))
            if "objects" in data:
                self._take_over(data["objects"], data["stamps"])
        except FileNotFoundError:
            for name in _FIELDS:
                setattr(self, name, {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(path, error) from error

    def _take_over(self, objects: dict[str, Any], stamps: dict[str, Any]) -> None:
        """Keeps the records of format 1, which were in the file of the buckets."""
        kept = []
        for bucket, held in objects.items():
            for name, record in held.items():
                size, time = stamps.get(self._object_path(bucket, name), (-1, 0))
                kept.append((bucket, name, {**record, "mediaLink": _link(record)}, (size, time)))
        self._records.keep_all(kept)
        self._write_config_to_file()


def stamp_of(path: Path) -> Stamp:
    """The properties that change when a file is written: its size and the time, nanoseconds."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _link(record: Mapping[str, Any]) -> str:
    """The address of an object's content. That of gcp-storage-emulator has the name as it is."""
    place = f"{HERE}/download/storage/v1/b/{record['bucket']}/o/{quote(record['name'], safe='')}"
    return f"{place}?generation={record['generation']}&alt=media"
