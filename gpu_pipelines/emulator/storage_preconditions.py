"""Features of Cloud Storage that gcp-storage-emulator lacks: `ifGenerationMatch`, files ending in a carriage return.

https://cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.server import Router


class CheckingRouter(Router):
    """The emulator's router, which refuses a request that names another generation."""

    def handle(self, method: str) -> Any:
        handler: Any = self._request_handler
        parts = urlsplit(handler.path)
        query = parse_qs(parts.query)
        wanted = query.get("ifGenerationMatch", [""])[0]
        if wanted and self._generation(handler.storage, parts.path, query) != wanted:
            status, reason = (412, "conditionNotMet") if wanted.isdecimal() else (400, "invalidParameter")
            handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
            error = {"code": status, "message": reason, "errors": [{"message": reason, "reason": reason}]}
            body = json.dumps({"error": error}).encode()
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
            return None
        return super().handle(method)

    @staticmethod
    def _generation(storage: Any, path: str, query: dict[str, list[str]]) -> str:
        bucket, _, name = path.partition("/b/")[2].partition("/o")
        name = unquote(name.removeprefix("/")) or query["name"][0]
        try:
            return str(storage.get_file_obj(unquote(bucket), name)["generation"])
        except NotFound:
            return "0"


_read_by_the_emulator = emulator._read_data


def _read_data(handler: Any, query: dict[str, list[str]]) -> Any:
    """The parts of a request. Python's mail parser, which reads uploads, takes a carriage return before the last
    boundary for a part of it; gcsfs ends the content with only a line feed."""
    kind = handler.headers.get("Content-Type") or ""
    if not kind.startswith("multipart/related"):
        return _read_by_the_emulator(handler, query)
    raw = emulator._decode_raw_data(emulator._read_raw_data(handler), handler)
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
