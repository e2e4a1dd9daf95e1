"""The server: Vertex AI, Artifact Registry, Cloud Logging, Cloud Storage and what else of Google Cloud is used here.

Requests are parsed, and answers built, with the API's own protobuf types, and held to the rules of the service; see
rules.py. It keeps what it is told, can be told to fail, and runs custom jobs as processes; see replicas.py.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from vertex_api.api_error import ApiError
from vertex_api.faults import MESSAGES, Fault, Faults
from vertex_api.rest import Answer, HttpRequest, answer
from vertex_api.services import PROJECT, REGION, State
from vertex_api.storage import Storage

_OVERRIDDEN = ("ARTIFACTREGISTRY", "CLOUDQUOTAS", "CLOUDRESOURCEMANAGER", "IAM", "LOGGING", "SERVICEUSAGE")


class VertexApi:
    """A server that runs.

    Attributes:
        url: its address, without a slash at the end.
        state: what it knows.
        folder: an empty folder of its own; gcloud's configuration is looked for there.
        storage: Cloud Storage; there is a bucket `example-bucket`.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.state = State()
        self.folder = folder
        self.storage = Storage()
        self._faults = Faults()
        self.state.replicas.folder = folder

    def fail_next(
        self,
        pattern: str,
        status: int | None = 503,
        times: int = 1,
        *,
        message: str = "",
        took_effect: bool = False,
        seconds: float = 0.0,
    ) -> None:
        """Lets the next requests fail.

        Args:
            pattern: regular expression, looked for in `METHOD /path`, such as "POST .*/customJobs$"; of gRPC, in
                `GRPC Method`, such as "GRPC CreateCustomJob".
            status: HTTP status of the answer; 0 answers nothing and closes the connection; None answers as usual.
            times: for how many requests.
            message: Google's message; empty for the usual one of that status.
            took_effect: carry out the request before the answer is spoilt, as when an answer is lost on the way.
            seconds: hold the answer back for so long.
        """
        text = message or MESSAGES.get(status or 0, "")
        self._faults.add(Fault(pattern, status, times, text, took_effect, seconds))

    def fault(self, call: str) -> Fault | None:
        """The failure that is ordered for a request; held back already for as long as it should be."""
        found = self._faults.take(call)
        if found:
            time.sleep(found.seconds)
        return found if found and found.status is not None else None

    def environment(self) -> dict[str, str]:
        """Variables with which gcloud, Google's libraries and this project speak to this server."""
        overrides = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{self.url}/" for name in (*_OVERRIDDEN, "AIPLATFORM")}
        return {
            **overrides,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{self.url}/storage/v1/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CONFIG": str(self.folder / "gcloud"),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_AI_REGION": REGION,
            "STORAGE_EMULATOR_HOST": self.url,
            # gcsfs asks for a bucket's type over gRPC first, which no emulator answers.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            # There is no metadata server to ask for credentials.
            "NO_GCE_CHECK": "true",
        }

    def close(self) -> None:
        """Ends what it runs."""
        self.state.replicas.close()
        self.storage.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: VertexApi

    def _handle(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = HttpRequest.of(self.command, self.path, self.headers.get("Content-Type", ""), content)
        fault = self.api.fault(f"{request.verb} {request.path}")
        if fault and not fault.took_effect:
            self._fail(fault)
            return
        if self.api.storage.serves(request.path):
            status, kind, content = self.api.storage.answer(self.command, self.path, dict(self.headers), content)
        else:
            status, kind, content = self._answer(request)
        if fault:
            self._fail(fault)
        else:
            self._send(status, kind, content)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _handle

    def _answer(self, request: HttpRequest) -> tuple[int, str, bytes]:
        try:
            found: Answer = answer(self.api.state, request)
        except ApiError as error:
            return error.code, "application/json", json.dumps(error.body()).encode()
        if isinstance(found, bytes):
            return 200, "text/plain", found
        return 200, "application/json", json.dumps(found).encode()

    def _fail(self, fault: Fault) -> None:
        if not fault.status:
            self.close_connection = True
            return
        body = ApiError(fault.status, fault.message).body()
        self._send(fault.status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[VertexApi]:
    """Serves on a free port.

    Args:
        folder: an empty folder.
    """
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    api = VertexApi(f"http://127.0.0.1:{server.server_port}", folder)
    handler.api = api  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.close()
        server.shutdown()
        server.server_close()
        thread.join()
