"""A server of models as the Hugging Face hub is one, for its own clients: HF_ENDPOINT names it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from forked import Forked

#: What it answers for a model that cannot be had, as the hub does: the status and X-Error-Code.
REFUSED = {"owner/gated": (403, "GatedRepo"), "owner/gone": (404, "RepoNotFound")}


@contextmanager
def hub_of(folder: Path) -> Iterator[str]:
    """The address of a hub while it runs.

    Args:
        folder: of `OWNER/NAME/REVISION/FILE`.
    """

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self.wfile.write(self._answer())

        def _answer(self) -> bytes:
            parts = self.path.partition("?")[0].strip("/").split("/")
            asks = parts[:2] == ["api", "models"]
            model = "/".join(parts[2:4] if asks else parts[:2])
            revision, *file = parts[5 if asks else 3 :] or [""]
            files = folder / model / revision
            status, code = REFUSED.get(model, (200, ""))
            if not code and not files.is_dir():
                status, code = 404, "RevisionNotFound"
            elif not code and not files.joinpath(*file).exists():
                status, code = 404, "EntryNotFound"
            content = b""
            if not code:
                content = _told(model, files, "tree" in parts) if asks else files.joinpath(*file).read_bytes()
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", hashlib.sha1(str(files).encode(), usedforsecurity=False).hexdigest())
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return content

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def printed_beside_hub(folder: Path, code: str, *arguments: str) -> str:
    """What a program prints whose hub has the models of a folder.

    Args:
        folder: as for `hub_of`.
        code: the program.
        arguments: what is on its command line.
    """
    (folder / "program.py").write_text(code)
    with hub_of(folder) as address:
        environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "0"}
        process = Forked(str(folder / "program.py"), arguments, environment, anew=["huggingface_hub.constants"])
        printed, errors = process.communicate()
    assert process.returncode == 0, errors
    return printed


def _told(model: str, files: Path, listed: bool) -> bytes:
    if not listed:
        return json.dumps({"_id": "1", "id": model, "tags": [], "siblings": []}).encode()
    paths = [path for path in sorted(files.rglob("*")) if path.is_file()]
    told = [{"type": "file", "path": str(p.relative_to(files)), "size": p.stat().st_size, "oid": "0"} for p in paths]
    return json.dumps(told).encode()
