"""Features of Cloud Storage that gcp-storage-emulator lacks: preconditions, and contents that it misreads.

https://cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.server import Router

_OBJECT = re.compile(r".*?/b/([^/]+)/o/(.+?)(?:/(?:rewriteTo|copyTo)/b/([^/]+)/o/(.+)|/compose)?")
_COMPOSED = re.compile(r".*?/b/([^/]+)/o/.+/compose")
_UPLOAD = re.compile(r"/upload/.*?/b/([^/]+)/o")
#: The parameters, without "Match" and "NotMatch" at the end, and the field of the object.
_CONDITIONS = {"Generation": "generation", "Metageneration": "metageneration"}


class CheckingRouter(Router):
    """The emulator's router, which refuses a request whose precondition does not hold."""

    def handle(self, method: str) -> Any:
        handler: Any = self._request_handler
        content = emulator._read_raw_data(handler) or b""
        handler.rfile = BytesIO(content)
        del handler.headers["Transfer-Encoding"]
        if content:
            del handler.headers["Content-Length"]
            handler.headers["Content-Length"] = str(len(content))
        kind = handler.headers.get("Content-Type") or ""
        refused = failed_precondition(handler.storage, method, handler.path, kind, content)
        if refused is None:
            return super().handle(method)
        status, reason = refused
        error = {"code": status, "message": reason, "errors": [{"message": reason, "reason": reason}]}
        body = json.dumps({"error": error}).encode() if status >= 400 else b""
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return None


def failed_precondition(storage: Any, verb: str, target: str, kind: str, content: bytes) -> tuple[int, str] | None:
    """The status and the reason of a refusal, if a precondition of a request does not hold.

    Args:
        storage: has the objects.
        verb: GET, POST and so on.
        target: the path, with the query.
        kind: content type of the body.
        content: the body.
    """
    parts = urlsplit(target)
    query = dict(parse_qsl(parts.query))
    if verb == "POST" and (match := _COMPOSED.fullmatch(parts.path)):
        for name, conditions in _composed(content):
            if refused := _failed(storage, "GET", unquote(match[1]), name, conditions, "if", "generation"):
                return refused
    if not any(name.endswith("Match") or name in ("generation", "sourceGeneration") for name in query):
        return None
    if match := _OBJECT.fullmatch(parts.path):
        bucket, name, to_bucket, to_name = (unquote(each or "") for each in match.groups())
        if to_name:
            source = _failed(storage, "GET", bucket, name, query, "ifSource", "sourceGeneration")
            return source or _failed(storage, verb, to_bucket, to_name, query, "if", "")
        return _failed(storage, verb, bucket, name, query, "if", "generation")
    if match := _UPLOAD.fullmatch(parts.path):
        name = _uploaded(storage, query, kind, content)
        return _failed(storage, verb, unquote(match[1]), name, query, "if", "")
    return None


def _failed(
    storage: Any, verb: str, bucket: str, name: str, query: Mapping[str, str], beginning: str, chosen: str
) -> tuple[int, str] | None:
    try:
        found = storage.get_file_obj(bucket, name)
    except NotFound:
        found = {}
    if query.get(chosen, found.get("generation")) != found.get("generation"):
        return 404, "notFound"
    for condition, field in _CONDITIONS.items():
        held = str(found.get(field, "0"))
        for end in ("Match", "NotMatch"):
            wanted = query.get(f"{beginning}{condition}{end}")
            if wanted is None:
                continue
            if not re.fullmatch("[0-9]+", wanted):
                return 400, "invalidParameter"
            if (held == wanted) != (end == "Match"):
                return (304, "notModified") if end == "NotMatch" and verb == "GET" else (412, "conditionNotMet")
    return None


def _composed(content: bytes) -> Iterator[tuple[str, dict[str, str]]]:
    """The objects of which one is composed, with the conditions on each."""
    for source in json.loads(content)["sourceObjects"]:
        if not isinstance(source["name"], str):
            raise ValueError("The name of a source is no text.")
        given = {**source.get("objectPreconditions", {}), **{k: source[k] for k in ("generation",) if k in source}}
        yield source["name"], {name: str(value) for name, value in given.items()}


def _uploaded(storage: Any, query: Mapping[str, str], kind: str, content: bytes) -> str:
    """The name of an object that is uploaded: of the query, of the upload's beginning, or of the body."""
    if "upload_id" in query:
        return str(storage.get_resumable_file_obj(query["upload_id"])["name"])
    if "name" in query:
        return query["name"]
    meta = _parts(content, kind)["meta"] if kind.startswith("multipart/") else json.loads(content)
    return str(meta["name"])


_read_by_the_emulator = emulator._read_data


def _read_data(handler: Any, query: dict[str, list[str]]) -> Any:
    kind = handler.headers.get("Content-Type") or ""
    if query.get("uploadType") == ["media"]:
        # It would parse JSON, and take an empty object for none.
        return emulator._decode_raw_data(emulator._read_raw_data(handler), handler) or b""
    if not kind.startswith("multipart/related"):
        return _read_by_the_emulator(handler, query)
    return _parts(emulator._decode_raw_data(emulator._read_raw_data(handler), handler), kind)


def _parts(raw: bytes, kind: str) -> dict[str, Any]:
    """The parts of an upload. Python's mail parser, which reads uploads, takes a carriage return before the last
    boundary for a part of it; gcsfs ends the content with only a line feed."""
    boundary = kind.partition("boundary=")[2].partition(";")[0].strip("\"'")
    newline = b"\r\n" if raw.lstrip().startswith(f"--{boundary}\r\n".encode()) else b"\n"
    delimiter = newline + f"--{boundary}".encode()
    meta, content = (newline + raw.lstrip()).split(delimiter)[1:3]
    header, content = content.split(2 * newline, 1)
    types = [
        line.partition(b":")[2].strip() for line in header.split(newline) if line.lower().startswith(b"content-type")
    ]
    return {
        "meta": json.loads(meta.split(2 * newline, 1)[1]),
        "content": content,
        "content-type": types[0].decode() if types else "application/octet-stream",
    }


# Applies to every server of this process.
emulator._read_data = _read_data
