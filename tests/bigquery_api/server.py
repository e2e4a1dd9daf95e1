"""BigQuery of the emulator, alone, at Google's own addresses, as Google's clients reach it.

It can be told to fail: a request, a page of a stream, or the connection while a page is on its way.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager, suppress
from typing import Any

import grpc

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.bigquery.jobs import Jobs
from gpu_pipelines.emulator.bigquery.read_api import BigQueryCalls
from gpu_pipelines.emulator.bigquery.reads import ReadSessions
from gpu_pipelines.emulator.bigquery.service import BigQuery
from gpu_pipelines.emulator.bigquery.tables import Tables
from gpu_pipelines.emulator.bigquery_face import answered, error_of
from gpu_pipelines.emulator.certificates import Certificates
from gpu_pipelines.emulator.faults import MESSAGES, Fault, Faults
from gpu_pipelines.emulator.json_server import answering, server_of
from gpu_pipelines.emulator.tunnel import ProxyHandler


class BigQueryApi:
    """A server that runs.

    Attributes:
        pages: (stream, offset) of every page that was sent, or begun to be.
        gate: pages after the first of a stream wait for it.
        cut_after: bytes to clients after which all connections are cut, in the middle of whatever is sent; once.
    """

    def __init__(self, certificates: Certificates) -> None:
        self.pages: list[tuple[str, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.cut_after: int | None = None
        self.url = ""
        self.grpc_port = self.tls_port = 0
        self.connections: list[socket.socket] = []
        self._certificates = certificates
        self._faults = Faults()
        self.hold(Tables())

    @property
    def tables(self) -> Tables:
        """What it holds."""
        return self.bigquery.tables

    @property
    def jobs(self) -> Jobs:
        """The jobs that it was sent."""
        return self.bigquery.jobs

    @property
    def reads(self) -> ReadSessions:
        """The read sessions."""
        return self.bigquery.reads

    def hold(self, tables: Tables, rows_in_page: int = 100) -> None:
        """Holds these tables, and knows nothing of before.

        Args:
            tables: the tables.
            rows_in_page: rows of a page of a stream.
        """
        self.bigquery, self.pages = BigQuery(tables), []
        self.reads.rows_in_page, self.reads.before_page = rows_in_page, self._before_page

    def fail_next(self, pattern: str, status: int = 503, times: int = 1, message: str = "") -> None:
        """Lets the next requests fail.

        Args:
            pattern: regular expression, looked for in `VERB /path` of REST, in `GRPC Method`, and in `PAGE OFFSET`
                before a page of a stream is sent.
            status: HTTP status of the answer; 0 cuts all connections.
            times: for how many requests.
            message: Google's message.
        """
        self._faults.add(Fault(pattern, status, times, message or MESSAGES.get(status, ""), False, 0.0))

    def forget_faults(self) -> None:
        """No request fails any more."""
        self._faults = Faults()

    def require_no_fault(self, call: str) -> None:
        """Fails as was ordered."""
        fault = self._faults.take(call)
        if fault and not fault.status:
            self.cut()
            raise ConnectionError("cut")
        if fault:
            raise ApiError(fault.status or 500, fault.message)

    def environment(self) -> dict[str, str]:
        """Variables with which Google's libraries reach this server, with credentials."""
        return self._certificates.environment(self.url)

    def cut(self) -> None:
        """Cuts all connections."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()

    def check_call(self, method: str, metadata: Mapping[str, str]) -> None:
        """Fails as was ordered."""
        self.require_no_fault(f"GRPC {method}")

    def _before_page(self, stream: str, offset: int) -> None:
        self.pages.append((stream, offset))
        self.require_no_fault(f"PAGE {offset}")
        if offset:
            self.gate.wait(20)


class _Wire:
    """A connection to a client that ends after so many bytes as were ordered."""

    def __init__(self, connection: socket.socket, api: BigQueryApi) -> None:
        self._api = api
        self.recv, self.shutdown, self._connection = connection.recv, connection.shutdown, connection

    def sendall(self, content: bytes) -> None:
        left = self._api.cut_after
        if left is not None and len(content) >= left:
            self._api.cut_after = None
            self._connection.sendall(content[:left])
            self._api.cut()
            return
        if left is not None:
            self._api.cut_after = left - len(content)
        self._connection.sendall(content)


class _Handler(ProxyHandler):
    api: BigQueryApi

    def wire(self) -> _Wire:
        self.api.connections.append(self.connection)
        return _Wire(self.connection, self.api)

    def _handle(self) -> None:
        content = self.body()
        path = self.path.partition("?")[0]
        told: Any = {"access_token": "token-of-a-test", "expires_in": 3600, "token_type": "Bearer"}
        status, headers = 200, {}
        try:
            if path != "/token":
                self._require_credentials()
                place = "/upload" if path.startswith("/upload/") else path
                self.api.require_no_fault(f"{self.command} {place}")
                given = (self.command, self.path, dict(self.headers), content, "https://bigquery.googleapis.com")
                status, told, headers = answered(self.api.bigquery, *given)
        except ApiError as error:
            status, told = error.code, error_of(error)
        except ConnectionError:
            self.close_connection = True
            return
        self.send(status, told, **headers)

    def _require_credentials(self) -> None:
        if not self.headers.get("Authorization", "").startswith("Bearer "):
            raise ApiError(401, "Request is missing required authentication credential.")

    do_GET = do_POST = do_PUT = do_PATCH = _handle


def _start_grpc(api: BigQueryApi, certificates: Certificates) -> Any:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
    server.add_generic_rpc_handlers((BigQueryCalls(lambda: api.reads, api.check_call),))
    credentials = grpc.ssl_server_credentials([(certificates.key.read_bytes(), certificates.chain.read_bytes())])
    api.grpc_port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    return server


@contextmanager
def serving(certificates: Certificates) -> Iterator[BigQueryApi]:
    """Serves on free ports."""
    api = BigQueryApi(certificates)
    plain = server_of(type("Proxy", (_Handler,), {"api": api}))
    encrypted = server_of(type("Rest", (_Handler,), {"api": api}), certificates)
    api.tls_port = encrypted.server_port
    grpc_server = _start_grpc(api, certificates)
    with answering(plain, encrypted) as api.url:
        try:
            yield api
        finally:
            grpc_server.stop(None)
