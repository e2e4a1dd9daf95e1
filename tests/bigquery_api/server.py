"""The server: REST and gRPC with TLS behind a proxy, at Google's own addresses, as Google's clients reach BigQuery.

It can be told to fail: a request, a page of a stream, or the connection while a page is on its way. Files are loaded
from resumable uploads; a load job runs when its upload ends.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl

import grpc
from google.cloud.bigquery_storage_v1 import types

from bigquery_api.tables import Tables
from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.certificates import Certificates
from gpu_pipelines.emulator.faults import MESSAGES, Fault, Faults
from gpu_pipelines.emulator.json_server import answering, server_of
from gpu_pipelines.emulator.tunnel import ProxyHandler

_SERVICE = "google.cloud.bigquery.storage.v1.BigQueryRead"


class BigQueryApi:
    """A server that runs.

    Attributes:
        tables: what it holds.
        pages: (stream, offset) of every page that was sent, or begun to be.
        rows_in_page: rows of a page of a stream.
        gate: pages after the first of a stream wait for it.
        cut_after: bytes to clients after which all connections are cut, in the middle of whatever is sent; once.
    """

    def __init__(self, certificates: Certificates) -> None:
        self.tables = Tables()
        self.pages: list[tuple[str, int]] = []
        self.rows_in_page = 100
        self.gate = threading.Event()
        self.gate.set()
        self.cut_after: int | None = None
        self.url = ""
        self.grpc_port = self.tls_port = 0
        self.connections: list[socket.socket] = []
        self.uploads: dict[str, tuple[dict[str, Any], bytearray]] = {}
        self._certificates = certificates
        self._faults = Faults()

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

    def answer(self, verb: str, path: str, body: Any) -> dict[str, Any]:
        """The answer of REST."""
        if path == "/token":
            return {"access_token": "token-of-a-test", "expires_in": 3600, "token_type": "Bearer"}
        self.require_no_fault(f"{verb} {path}")
        path = path.removeprefix("/bigquery/v2/projects/")
        if match := re.fullmatch(r"([^/]+)/datasets/([^/]+)/tables/([^/]+)", path):
            name = ".".join(match.groups())
            if verb == "PATCH":
                self.tables.get(name).labels = dict(body["labels"])
            return self.tables.described(name)
        if match := re.fullmatch(r"([^/]+)/datasets/([^/]+)", path):
            return self.tables.described_dataset(*match.groups())
        if verb == "POST" and re.fullmatch(r"[^/]+/jobs", path):
            return self.tables.insert_job(body)
        if match := re.fullmatch(r"[^/]+/jobs/([^/]+)", path):
            return self.tables.told_job(match[1])
        if match := re.fullmatch(r"[^/]+/queries/([^/]+)", path):
            rows = self.tables.get(self.tables.jobs[match[1]].destination).rows.num_rows
            reference = self.tables.told_job(match[1])["jobReference"]
            return {"jobComplete": True, "jobReference": reference, "totalRows": str(rows), "schema": {"fields": []}}
        raise ApiError(404, f"There is no {verb} {path}.")

    def upload(self, verb: str, query: dict[str, str], content: bytes) -> tuple[dict[str, Any], dict[str, str]]:
        """A resumable upload of a file that is loaded: it is begun with the job, and carried out in pieces.

        Returns:
            The answer, and its headers; of a piece that is not the last, none of the first.
        """
        if query.get("uploadType") != "resumable":
            raise ApiError(400, f"There are no uploads of the type {query.get('uploadType')}.")
        if verb == "POST":
            self.require_no_fault("POST /upload")
            number = str(len(self.uploads))
            self.uploads[number] = (json.loads(content), bytearray())
            place = f"https://bigquery.googleapis.com/upload/bigquery/v2/projects/p/jobs?uploadType=resumable&upload_id={number}"
            return {}, {"Location": place}
        self.require_no_fault("PUT /upload")
        job, held = self.uploads[query["upload_id"]]
        held.extend(content)
        return self.tables.load(job, bytes(held)), {}

    def create_session(self, request: Any, context: Any) -> Any:
        """CreateReadSession."""
        with _as_status(context):
            _require_credentials(context)
            self.require_no_fault("GRPC CreateReadSession")
            return self.tables.create_session(request)

    def read_rows(self, request: Any, context: Any) -> Iterator[Any]:
        """ReadRows: pages from an offset on; the first has the schema."""
        with _as_status(context):
            _require_credentials(context)
            self.require_no_fault("GRPC ReadRows")
            rows = self.tables.streams[request.read_stream]
            offset = int(request.offset)
            first = True
            while offset < rows.num_rows or first:
                self.pages.append((request.read_stream, offset))
                self.require_no_fault(f"PAGE {offset}")
                if offset:
                    self.gate.wait(20)
                page = rows.slice(offset, self.rows_in_page)
                offset += page.num_rows
                yield _page(page, offset / max(1, rows.num_rows), first)
                first = False


def _page(rows: Any, share: float, first: bool) -> Any:
    response = types.ReadRowsResponse(row_count=rows.num_rows)
    if first:
        response.arrow_schema.serialized_schema = rows.schema.serialize().to_pybytes()
    if rows.num_rows:
        batch = rows.combine_chunks().to_batches()[0]
        response.arrow_record_batch.serialized_record_batch = batch.serialize().to_pybytes()
    response.stats.progress.at_response_end = share
    return response


@contextmanager
def _as_status(context: Any) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        context.abort(grpc.StatusCode[error.status], error.message)


def _require_credentials(context: Any) -> None:
    if not str(dict(context.invocation_metadata()).get("authorization", "")).startswith("Bearer "):
        raise ApiError(401, "Request is missing required authentication credential.")


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
        path, _, query = self.path.partition("?")
        headers: dict[str, str] = {}
        is_json = self.headers.get("Content-Type", "").startswith("application/json")
        status = 200
        try:
            if path != "/token" and not self.headers.get("Authorization", "").startswith("Bearer "):
                raise ApiError(401, "Request is missing required authentication credential.")
            if path.startswith("/upload/"):
                told, headers = self.api.upload(self.command, dict(parse_qsl(query)), content)
            else:
                told = self.api.answer(self.command, path, json.loads(content) if content and is_json else None)
        except ApiError as error:
            status, told = error.code, error.body()
        except ConnectionError:
            self.close_connection = True
            return
        self.send(status, told, **headers)

    do_GET = do_POST = do_PUT = do_PATCH = _handle


def _start_grpc(api: BigQueryApi, certificates: Certificates) -> Any:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
    methods = {
        "CreateReadSession": grpc.unary_unary_rpc_method_handler(
            api.create_session, types.CreateReadSessionRequest.deserialize, types.ReadSession.serialize
        ),
        "ReadRows": grpc.unary_stream_rpc_method_handler(
            api.read_rows, types.ReadRowsRequest.deserialize, types.ReadRowsResponse.serialize
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
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
