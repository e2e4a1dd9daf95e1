"""Cloud Storage over a line that is slow for some files: a proxy in front of the emulator."""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest


@contextmanager
def slow_storage(slow: bytes, seconds: float) -> Iterator[None]:
    """Delays uploads to the storage of STORAGE_EMULATOR_HOST.

    Args:
        slow: what the request of a slow upload has in it, such as the name of the file.
        seconds: how long one takes.
    """
    behind = urlsplit(os.environ["STORAGE_EMULATOR_HOST"]).netloc

    class Forwarding(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.command == "POST" and slow in body:
                time.sleep(seconds)
            connection = http.client.HTTPConnection(behind)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _forward

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forwarding)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
            yield
    finally:
        server.shutdown()
        server.server_close()
