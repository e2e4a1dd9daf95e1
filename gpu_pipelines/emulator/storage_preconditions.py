"""What gcp-storage-emulator lacks of Cloud Storage: `ifGenerationMatch` of uploads and deletions.

https://cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.server import Router


class CheckingRouter(Router):
    """The emulator's router, which refuses what is not of the generation that a request names."""

    def handle(self, method: str) -> Any:
        handler: Any = self._request_handler
        parts = urlsplit(handler.path)
        query = parse_qs(parts.query)
        if (
            "ifGenerationMatch" in query
            and self._generation(handler.storage, parts.path, query) != (query["ifGenerationMatch"][0])
        ):
            handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
            body = json.dumps({"error": {"code": 412, "message": "conditionNotMet"}}).encode()
            handler.send_response(412)
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
