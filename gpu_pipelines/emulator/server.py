"""The server: Vertex AI, Artifact Registry, Cloud Logging, Cloud Storage and other services of Google Cloud.

Requests are parsed, and answers built, with the API's own protobuf types, and checked against the service's rules; see
jobs/rules.py. It keeps its resources, can be made to fail, and runs custom jobs as processes; see jobs/replicas.py.

Clients reach it in two ways: at its own address, without encryption and credentials; or, through a proxy, at Google's
own addresses, with TLS and credentials, over REST or gRPC; see tunnel.py.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError, answer_to
from gpu_pipelines.emulator.bigquery_face import error_of, respond
from gpu_pipelines.emulator.bigquery_face import serves as serves_bigquery
from gpu_pipelines.emulator.certificates import Certificates
from gpu_pipelines.emulator.faults import Fault
from gpu_pipelines.emulator.grpc_face import start_grpc
from gpu_pipelines.emulator.json_server import answering, server_of, url_of
from gpu_pipelines.emulator.project.permissions import AS_ACCOUNT
from gpu_pipelines.emulator.rest import TOKENS, Answer, HttpRequest, answer
from gpu_pipelines.emulator.tunnel import ProxyHandler
from gpu_pipelines.emulator.vertex_api import TOKEN, VertexApi
from gpu_pipelines.errors import UserError

#: The path of an emulator's description of itself.
ABOUT = "/emulator"


class _Handler(ProxyHandler):
    api: VertexApi
    secure = False

    def _handle(self) -> None:
        content, permissions = self.body(), self.api.state.permissions
        account = permissions.account_of(self.headers.get("Authorization", ""))
        if named := AS_ACCOUNT.fullmatch(self.path):
            account, self.path = named.groups()
        request = HttpRequest.of(self.command, self.path, self.headers.get("Content-Type", ""), content, account)
        fault = self.api.fault(f"{request.verb} {request.path}")
        if fault and not fault.took_effect:
            self._fail(fault)
            return
        if request.path == ABOUT:
            self.send(200, self.api.about())
            return
        try:
            permissions.check_path(account, self.command, self.path, content)
        except ApiError as error:
            self.send(error.code, error_of(error) if serves_bigquery(request.path) else error.body())
            return
        host = f"https://{self.headers.get('Host', '')}" if self.secure else self.api.url
        if serves_bigquery(request.path):
            status, kind, content, told = self._bigquery(request, content, host)
        elif self.api.storage.serves(request.path):
            stored = self.api.storage.answer(self.command, self.path, dict(self.headers), content, host)
            status, kind, content, told = stored.status, stored.kind, stored.content, stored.headers
            if stored.file:
                with stored.file as file:
                    if fault:
                        self._fail(fault)
                    else:
                        self.send_file(status, file, stored.length, kind, **told)
                return
        else:
            status, kind, content = self._answer(request)
            told = {}
        if fault:
            self._fail(fault)
        else:
            self.send(status, content, kind, **told)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _handle

    def _answer(self, request: HttpRequest) -> tuple[int, str, bytes]:
        try:
            self._check_credentials(request)
            found: Answer = answer(self.api.state, request)
        except Exception as error:
            told = answer_to(error)
            return told.code, "application/json", told.json()
        if isinstance(found, bytes):
            return 200, "text/plain", found
        return 200, "application/json", json.dumps(found).encode()

    def _bigquery(self, request: HttpRequest, content: bytes, host: str) -> tuple[int, str, bytes, dict[str, str]]:
        try:
            self._check_credentials(request)
            status, document, told = respond(self.api, self.command, self.path, dict(self.headers), content, host)
        except ApiError as error:
            status, document, told = error.code, error_of(error), {}
        return status, "application/json", json.dumps(document).encode(), told

    def _check_credentials(self, request: HttpRequest) -> None:
        token = self.headers.get("Authorization", "")
        # Terraform's provider requires a token; that of the emulator is not secret.
        sent = token.startswith("Bearer ") and (self.secure or token != f"Bearer {TOKEN}")
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
def serving(
    folder: Path, certificates: Certificates | None = None, host: str = "127.0.0.1", port: int = 0
) -> Iterator[VertexApi]:
    """Serves.

    Args:
        folder: the folder of its state.
        certificates: the server's certificates; None takes those of the folder, or creates some. A process that is
            itself a gRPC client must use the same for all servers: gRPC reads trusted certificates once.
        host: address to listen at.
        port: port to listen at; 0 for a free one.

    Raises:
        UserError: the port is in use, or the folder is in use or damaged, or cannot be written to.
    """
    handlers: list[Any] = [type("Handler", (_Handler,), {"secure": secure}) for secure in (False, True)]
    plain, encrypted = handlers
    with ExitStack() as stack:
        own = _listening(plain, host, port)
        stack.callback(own.server_close)
        api = VertexApi(url_of(own), folder, certificates)
        stack.callback(api.close)
        tls = server_of(encrypted, api.certificates)
        plain.api = encrypted.api = api
        api.tls_port = tls.server_port
        grpc_server, api.grpc_port = start_grpc(api, api.certificates)
        stack.callback(grpc_server.stop, None)
        stack.enter_context(answering(own, tls))
        yield api


def _listening(handler: Any, host: str, port: int) -> ThreadingHTTPServer:
    try:
        return server_of(handler, None, host, port)
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            problem, remedy = f"Port {port} of {host} is taken.", "Give another --port; 0 takes a free one."
        else:
            problem, remedy = f"The emulator cannot listen at {host}:{port}: {error}.", "Give another --host or --port."
        raise UserError(problem, remedy) from error
