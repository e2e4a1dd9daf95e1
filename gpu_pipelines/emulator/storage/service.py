"""Cloud Storage: the handlers of gcp-storage-emulator over files, and what they lack for many and for large objects."""

from __future__ import annotations

import json
import re
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import gcp_storage_emulator
from gcp_storage_emulator.exceptions import NotFound

from gpu_pipelines.emulator.api_error import ApiError, answer_to
from gpu_pipelines.emulator.storage import preconditions as storage_preconditions
from gpu_pipelines.emulator.storage.batches import KIND, body_of, parts_of
from gpu_pipelines.emulator.storage.bucket_files import HERE, BucketFiles
from gpu_pipelines.emulator.storage.object_names import listed
from gpu_pipelines.emulator.storage.preconditions import CheckingRouter, failed_precondition

#: gsutil's uploads in pieces have their own path.
_PIECES = "/resumable/upload/"
_PATHS = ("/storage/v1/", "/upload/", "/download/", "/batch/", _PIECES)
_BATCHES = "/batch/"
_BUCKETS = "/storage/v1/b"
#: The code that reads requests.
_PARSERS = (str(Path(gcp_storage_emulator.__file__).parent), storage_preconditions.__file__)
_LAYOUT = re.compile(r"/storage/v1/b/([^/]+)/storageLayout")
_MOVE = re.compile(r"/storage/v1/b/([^/]+)/o/(.+)/moveTo/o/(.+)")
_LIST = re.compile(r"/storage/v1/b/([^/]+)/o")
_CONTENT = re.compile(r"(/download)?/storage/v1/b/([^/]+)/o/(.+)")
_RANGE = re.compile(r"\s*bytes=([0-9]*)-([0-9]*)\s*")
#: Headers of an answer: the address of an upload, and its progress.
_TOLD = ("Location", "Range", "Content-Range", "ETag", "X-Goog-Generation", "X-Goog-Hash")
_UPLOADS = ("media", "multipart", "resumable")


@dataclass(frozen=True)
class StorageAnswer:
    """An answer of Cloud Storage.

    Attributes:
        status: the HTTP status.
        kind: content type.
        content: the body.
        headers: further headers.
        file: the body, from where the file is; None for `content`.
        length: bytes of the file.
    """

    status: int
    kind: str
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    file: BinaryIO | None = None
    length: int = 0


class Storage:
    """Buckets, and what answers for them.

    Args:
        buckets: a folder with a folder for each bucket.
        records: a folder for their other properties.
        bucket: name of an existing bucket.
        project_number: number of the project.

    Raises:
        UserError: the records are damaged.
    """

    def __init__(self, buckets: Path, records: Path, bucket: str, project_number: str) -> None:
        self._lock = threading.RLock()
        self._bucket = bucket
        self.files = BucketFiles(buckets, records, project_number)
        if bucket not in self.files.buckets:
            self.add_bucket(bucket)

    def serves(self, path: str) -> bool:
        """Whether a path belongs to Cloud Storage; its handlers have no permissions."""
        return path.startswith(_PATHS) and not path.endswith("/iam/testPermissions")

    def answer(self, verb: str, target: str, headers: Mapping[str, str], content: bytes, host: str) -> StorageAnswer:
        """The answer to a request to a host, such as https://storage.googleapis.com."""
        if target.startswith(_PIECES):
            target = target.removeprefix("/resumable")
        try:
            with self._lock:
                return self._answer(verb, target, headers, content, host)
        except NotFound:
            return _refusal(404, f"{verb} {target}: Not Found.")
        except ApiError as error:
            return _refusal(error.code, error.message, error.status)
        except Exception as error:
            if _is_of_the_request(error):
                return _refusal(400, f"The emulator does not take {verb} {target}: {type(error).__name__}: {error}")
            told = answer_to(error)
            return _refusal(told.code, told.message, told.status)

    def _answer(self, verb: str, target: str, headers: Mapping[str, str], content: bytes, host: str) -> StorageAnswer:
        address = urlsplit(target)
        query = dict(parse_qsl(address.query))
        if verb == "POST" and address.path.startswith("/upload/") and query.get("uploadType") not in _UPLOADS:
            return _refusal(400, f"Invalid upload type: {query.get('uploadType', '')!r}.")
        if verb == "GET" and address.path == _BUCKETS:
            return _json(listed("storage#buckets", self.files.buckets, query), host)
        if verb == "GET" and (match := _LIST.fullmatch(address.path)):
            return _json(self.files.list(unquote(match[1]), query), host)
        if verb == "GET" and (match := _CONTENT.fullmatch(address.path)) and (match[1] or query.get("alt") == "media"):
            if refused := failed_precondition(self.files, verb, target, "", b""):
                return _refusal(*refused) if refused[0] >= 400 else StorageAnswer(refused[0], "application/json")
            return self._content(unquote(match[2]), unquote(match[3]), headers)
        if verb == "GET" and (match := _LAYOUT.fullmatch(address.path)):
            return _json(self._layout(unquote(match[1])), host)
        if verb == "POST" and (match := _MOVE.fullmatch(address.path)):
            return _json(self.files.move(*map(unquote, match.groups())), host)
        if verb == "DELETE" and address.path.startswith("/upload/"):
            self.files.cancel(query.get("upload_id", ""))
            return _refusal(499, "The upload was cancelled.")
        if verb == "POST" and address.path.startswith(_BATCHES):
            return self._batch({name.lower(): value for name, value in headers.items()}, content, host)
        call = _Call(self.files, verb, target, headers, content)
        CheckingRouter(call).handle(verb)
        if call.status == 501:
            return _refusal(400, f"The emulator does not take {verb} {target}.")
        body, kind = call.wfile.getvalue(), call.told.get("Content-Type", "application/json")
        if call.status >= 400 and not _is_error(body):
            return _refusal(call.status, f"{verb} {target}: {call.phrase or 'refused'}.")
        told = {name: value.replace(HERE, host) for name, value in call.told.items() if name in _TOLD}
        if call.status == 308 and not self.files.get_resumable_byte_count(query["upload_id"]):
            # Its handlers would name the first byte.
            del told["Range"]
        return StorageAnswer(call.status, kind, body.replace(HERE.encode(), host.encode()), told)

    def _batch(self, headers: Mapping[str, str], content: bytes, host: str) -> StorageAnswer:
        """The answers to several requests; one that fails does not keep the others from being carried out."""
        done = []
        for part in list(parts_of(headers.get("content-type", ""), content)):
            answer = self.answer(part.verb, part.target, part.headers, part.content, host)
            if answer.file:
                answer.file.close()
                answer = _refusal(400, "A batch has no contents of objects.")
            status = 204 if answer.status == 200 and not answer.content else answer.status
            done.append((part, status, answer.kind, answer.content))
        return StorageAnswer(200, KIND, body_of(done))

    def _layout(self, bucket: str) -> dict[str, Any]:
        """The description of a bucket that gcloud asks for before it copies folders."""
        found = self.files.buckets.get(bucket)
        if found is None:
            raise NotFound
        told = {name: found[name] for name in ("location", "locationType")}
        return {"kind": "storage#storageLayout", "bucket": bucket, **told, "hierarchicalNamespace": {"enabled": False}}

    def _content(self, bucket: str, name: str, headers: Mapping[str, str]) -> StorageAnswer:
        record, file = self.files.opened(bucket, name)
        size = int(record["size"])
        kind = record.get("contentType") or "application/octet-stream"
        told = {"X-Goog-Generation": record["generation"]}
        wanted = next((value for key, value in headers.items() if key.lower() == "range"), "")
        first, last = _part(wanted, size)
        if first >= size and wanted:
            file.close()
            return StorageAnswer(416, "application/json", headers={"Content-Range": f"bytes */{size}"})
        file.seek(first)
        if wanted:
            told["Content-Range"] = f"bytes {first}-{last}/{size}"
        else:
            told["X-Goog-Hash"] = f"crc32c={record['crc32c']},md5={record['md5Hash']}"
        return StorageAnswer(206 if wanted else 200, kind, headers=told, file=file, length=last + 1 - first)

    def add_bucket(self, name: str) -> None:
        """Creates a bucket; the handlers take no location with that."""
        for verb, path, given in (("POST", "", {"name": name}), ("PATCH", f"/{name}", {"location": "US-CENTRAL1"})):
            self._do(verb, _BUCKETS + path, json.dumps(given).encode(), "application/json")

    def put(self, name: str, content: bytes) -> None:
        """Writes an object into the existing bucket."""
        target = f"/upload{_BUCKETS}/{self._bucket}/o?uploadType=media&name={quote(name, safe='')}"
        self._do("POST", target, content, "application/octet-stream")

    def _do(self, verb: str, target: str, content: bytes, kind: str) -> None:
        done = self.answer(verb, target, {"Content-Type": kind}, content, HERE)
        if done.status != 200:
            raise RuntimeError(f"{verb} {target}: {done.content.decode()}")

    def close(self) -> None:
        """Closes what it has open."""
        with self._lock:
            self.files.close()


def _is_of_the_request(error: Exception) -> bool:
    """Whether an error is about a request that cannot be parsed: its handlers check little themselves."""
    at = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, (ValueError, RecursionError)) or at.startswith(_PARSERS)


def _part(wanted: str, size: int) -> tuple[int, int]:
    """The first and the last byte of a Range header; all of them if it has another form."""
    match = _RANGE.fullmatch(wanted)
    first, last = match.groups() if match else ("", "")
    if first:
        return int(first), min(int(last), size - 1) if last else size - 1
    return (max(size - int(last), 0), size - 1) if last else (0, size - 1)


def _json(document: dict[str, Any], host: str) -> StorageAnswer:
    return StorageAnswer(200, "application/json", json.dumps(document).replace(HERE, host).encode())


def _refusal(status: int, message: str, named: str = "") -> StorageAnswer:
    reason = {404: "notFound", 409: "conflict", 412: "conditionNotMet"}.get(status, "invalid")
    error = {"code": status, "message": message, "errors": [{"message": message, "domain": "global", "reason": reason}]}
    if named:
        error["status"] = named
    return StorageAnswer(status, "application/json", json.dumps({"error": error}).encode())


def _is_error(content: bytes) -> bool:
    """Whether a body is an error in the form of Google's APIs."""
    try:
        error = json.loads(content)["error"]
        return isinstance(error["code"], int) and bool(error["message"])
    except (ValueError, TypeError, KeyError):
        return False


class _Call:
    """A request as gcp-storage-emulator's router takes it, in place of http.server's handler, and its answer."""

    def __init__(self, files: BucketFiles, verb: str, target: str, headers: Mapping[str, str], content: bytes) -> None:
        self.storage, self.command, self.path = files, verb, target
        self.headers = Message()
        own = ("host", "content-length", "transfer-encoding")
        for name, value in headers.items():
            if name.lower() not in own:
                self.headers[name] = value
        self.headers["Host"] = HERE.partition("//")[2]
        self.headers["Content-Length"] = str(len(content))
        self.rfile, self.wfile = BytesIO(content), BytesIO()
        self.server = SimpleNamespace(server_address=("", 0))
        self.status, self.phrase = 0, ""
        self.told: dict[str, str] = {}

    def send_response(self, status: int, phrase: str = "") -> None:
        """Takes the status of the answer."""
        self.status, self.phrase = status, phrase

    def send_header(self, name: str, value: str) -> None:
        """Takes a header of the answer."""
        self.told["Content-Type" if name.lower() == "content-type" else name] = value

    def end_headers(self) -> None:
        """Nothing follows the headers but the body."""
