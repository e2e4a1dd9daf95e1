"""Cloud Storage: gcp-storage-emulator over files, behind this server's address, so that one address suffices and faults
apply."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from functools import partial
from http.server import HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests
from gcp_storage_emulator.server import RequestHandler

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.bucket_files import BucketFiles
from gpu_pipelines.emulator.storage_preconditions import CheckingRouter

#: gsutil's uploads in pieces have their own path.
_PIECES = "/resumable/upload/"
_PATHS = ("/storage/v1/", "/upload/", "/download/", "/batch/", _PIECES)
#: Headers of an answer: the address of an upload, and its progress.
_TOLD = ("Location", "Range", "Content-Range", "ETag", "X-Goog-Generation", "X-Goog-Hash")
_UPLOADS = ("media", "multipart", "resumable")
_SECONDS = 60


@dataclass(frozen=True)
class StorageAnswer:
    """An answer of Cloud Storage.

    Attributes:
        status: the HTTP status.
        kind: content type.
        content: the body.
        headers: further headers.
    """

    status: int
    kind: str
    content: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Storage:
    """Buckets, and the emulator that serves them.

    Args:
        buckets: a folder with a folder for each bucket.
        records: a folder for their other properties.
        bucket: name of an existing bucket.
        project_number: number of the project.

    Raises:
        UserError: the records are damaged.
    """

    def __init__(self, buckets: Path, records: Path, bucket: str, project_number: str) -> None:
        # The emulator answers one request at a time, and forgets those that wait too long.
        self._lock = threading.RLock()
        self._bucket = bucket
        self._server = _Server(("127.0.0.1", 0), RequestHandler)
        self._address = f"http://127.0.0.1:{self._server.server_port}"
        try:
            self.files = BucketFiles(buckets, records, project_number, self._address)
        except BaseException:
            self._server.server_close()
            raise
        self._server.RequestHandlerClass = partial(_Handler, self.files)
        # A short interval, because `shutdown` waits for the end of one.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        if bucket not in self.files.buckets:
            self.add_bucket(bucket)

    def serves(self, path: str) -> bool:
        """Whether a path belongs to Cloud Storage; the emulator has no permissions."""
        return path.startswith(_PATHS) and not path.endswith("/iam/testPermissions")

    def answer(self, verb: str, target: str, headers: dict[str, str], content: bytes, host: str) -> StorageAnswer:
        """The emulator's answer to a request to a host, such as https://storage.googleapis.com."""
        if target.startswith(_PIECES):
            target = target.removeprefix("/resumable")
        address = urlsplit(target)
        query = parse_qs(address.query)
        kinds, most = query.get("uploadType", [""]), query.get("maxResults", ["1"])[-1]
        if not most.isdecimal():
            return _refusal(400, f"Invalid value at 'maxResults': {most!r}.")
        if verb == "POST" and address.path.startswith("/upload/") and kinds[-1] not in _UPLOADS:
            return _refusal(400, f"Invalid upload type: {kinds[-1]!r}.")
        passed = {name: value for name, value in headers.items() if name.lower() not in ("host", "accept-encoding")}
        try:
            with self._lock:
                found = requests.request(verb, self._address + target, headers=passed, data=content, timeout=_SECONDS)
        except requests.ConnectionError:
            if why := self.files.refused():
                refusal = ApiError(400, f"The emulator cannot write the object: {why}", "FAILED_PRECONDITION")
                return StorageAnswer(refusal.code, "application/json", refusal.json())
            # Its answer to requests that it cannot parse, such as gcloud's uploads.
            return _refusal(400, f"The emulator does not take {verb} {target}.")
        kind = found.headers.get("Content-Type", "application/json")
        if found.status_code == 501:
            return _refusal(400, f"The emulator does not take {verb} {target}.")
        if found.status_code >= 400 and not _is_error(found.content):
            return _refusal(found.status_code, f"{verb} {target}: {found.reason or 'refused'}.")
        told = {name: value for name, value in found.headers.items() if name in _TOLD}
        if "Location" in told:
            told["Location"] = told["Location"].replace(self._address, host)
        return StorageAnswer(found.status_code, kind, found.content, told)

    def add_bucket(self, name: str) -> None:
        """Creates a bucket; the emulator itself takes no location."""
        with self._lock:
            at = f"{self._address}/storage/v1/b"
            requests.post(at, json={"name": name}, timeout=_SECONDS).raise_for_status()
            requests.patch(f"{at}/{name}", json={"location": "US-CENTRAL1"}, timeout=_SECONDS).raise_for_status()

    def put(self, name: str, content: bytes) -> None:
        """Writes an object into the existing bucket."""
        with self._lock:
            at = f"{self._address}/upload/storage/v1/b/{self._bucket}/o"
            wanted = {"uploadType": "media", "name": name}
            requests.post(at, params=wanted, data=content, timeout=_SECONDS).raise_for_status()

    def close(self) -> None:
        """Stops the emulator."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _refusal(status: int, message: str) -> StorageAnswer:
    reason = {404: "notFound", 409: "conflict", 412: "conditionNotMet"}.get(status, "invalid")
    error = {"code": status, "message": message, "errors": [{"message": message, "domain": "global", "reason": reason}]}
    return StorageAnswer(status, "application/json", json.dumps({"error": error}).encode())


def _is_error(content: bytes) -> bool:
    """Whether a body is an error in the form of Google's APIs."""
    try:
        error = json.loads(content)["error"]
        return isinstance(error["code"], int) and bool(error["message"])
    except (ValueError, TypeError, KeyError):
        return False


class _Server(HTTPServer):
    #: If more than five wait, the kernel lets the rest try again seconds later.
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: the answer is enough."""


class _Handler(RequestHandler):  # type: ignore[misc, unused-ignore]
    """The emulator's handler, with the preconditions that it lacks."""

    def _handle(self) -> None:
        CheckingRouter(self).handle(self.command)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _handle
