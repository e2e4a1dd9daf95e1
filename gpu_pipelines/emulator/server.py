"""The server: Vertex AI, Artifact Registry, Cloud Logging, Cloud Storage and what else of Google Cloud is used here.

Requests are parsed, and answers built, with the API's own protobuf types, and held to the rules of the service; see
rules.py. It keeps what it is told, can be told to fail, and runs custom jobs as processes; see replicas.py.

Clients reach it in two ways: at an address of its own, without encryption and without credentials; or, through a proxy,
at Google's own addresses, with TLS and credentials, over REST or gRPC; see tunnel.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.certificates import Certificates, make_certificates
from gpu_pipelines.emulator.faults import MESSAGES, Fault, Faults
from gpu_pipelines.emulator.grpc_face import start_grpc
from gpu_pipelines.emulator.json_server import answering, server_of, url_of
from gpu_pipelines.emulator.rest import TOKENS, Answer, HttpRequest, answer
from gpu_pipelines.emulator.services import PROJECT, REGION, State
from gpu_pipelines.emulator.storage import Storage
from gpu_pipelines.emulator.tunnel import ProxyHandler

_OVERRIDDEN = (
    "AIPLATFORM",
    "ARTIFACTREGISTRY",
    "CLOUDQUOTAS",
    "CLOUDRESOURCEMANAGER",
    "IAM",
    "LOGGING",
    "SERVICEUSAGE",
)


class VertexApi:
    """A server that runs.

    Attributes:
        url: its address, without a slash at the end.
        state: what it knows.
        folder: an empty folder of its own; gcloud's configuration is looked for there.
        storage: Cloud Storage; there is a bucket `example-bucket`.
        certificates: for Google's host names, from a throwaway authority.
        grpc_port, tls_port: where the proxy finds gRPC and REST with TLS.
    """

    def __init__(self, url: str, folder: Path, certificates: Certificates) -> None:
        self.url = url
        self.state = State()
        self.folder = folder
        self.storage = Storage()
        self.certificates = certificates
        self.grpc_port = self.tls_port = 0
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
        overrides = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{self.url}/" for name in _OVERRIDDEN}
        return {
            **overrides,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{self.url}/storage/v1/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CONFIG": str(self.folder / "gcloud"),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_AI_REGION": REGION,
            "STORAGE_EMULATOR_HOST": self.url,
            **self.proxy_environment(),
        }

    def answer_to(self, command: Sequence[str], cwd: Path | None = None) -> str:
        """What a command prints that speaks to this server, such as the real gcloud, and that has to end well."""
        environment = {**os.environ, **self.environment()}
        done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def proxy_environment(self) -> dict[str, str]:
        """Variables with which Google's libraries reach this server at Google's own addresses, with credentials."""
        # gcsfs asks for a bucket's type over gRPC first, which no emulator answers.
        return {**self.certificates.environment(self.url), "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}

    def close(self) -> None:
        """Ends what it runs."""
        self.state.replicas.close()
        self.storage.close()


class _Handler(ProxyHandler):
    api: VertexApi
    secure = False

    def _handle(self) -> None:
        content = self.body()
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
            self.send(status, content, kind)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _handle

    def _answer(self, request: HttpRequest) -> tuple[int, str, bytes]:
        try:
            self._check_credentials(request)
            found: Answer = answer(self.api.state, request)
        except ApiError as error:
            return error.code, "application/json", json.dumps(error.body()).encode()
        if isinstance(found, bytes):
            return 200, "text/plain", found
        return 200, "application/json", json.dumps(found).encode()

    def _check_credentials(self, request: HttpRequest) -> None:
        sent = self.headers.get("Authorization", "").startswith("Bearer ")
        if self.secure and not sent and request.path != TOKENS:
            raise ApiError(401, "Request is missing required authentication credential.")
        if sent and not self.secure:
            raise ApiError(400, "Credentials were sent over a connection without encryption.")

    def _fail(self, fault: Fault) -> None:
        if not fault.status:
            self.close_connection = True
            return
        self.send(fault.status, ApiError(fault.status, fault.message).body())


@contextmanager
def serving(folder: Path, certificates: Certificates | None = None) -> Iterator[VertexApi]:
    """Serves on free ports.

    Args:
        folder: an empty folder.
        certificates: those to serve with; None makes some. A process that is itself a client over gRPC must take the
            same for all servers: gRPC reads whom it trusts once.
    """
    held = certificates or make_certificates(folder, PROJECT)
    handlers: list[Any] = [type("Handler", (_Handler,), {"secure": secure}) for secure in (False, True)]
    plain, encrypted = handlers
    servers = server_of(plain), server_of(encrypted, held)
    plain.api = encrypted.api = api = VertexApi(url_of(servers[0]), folder, held)
    api.tls_port = servers[1].server_port
    grpc_server, api.grpc_port = start_grpc(api, held)
    with answering(*servers):
        try:
            yield api
        finally:
            api.close()
            grpc_server.stop(None)
