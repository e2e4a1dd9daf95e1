"""The gRPC interface: the same methods and the same state, over TLS, as most of Google's clients use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc
from google.cloud import resourcemanager_v3
from google.protobuf.message import DecodeError

from gpu_pipelines.emulator.api_error import ApiError, answer_to
from gpu_pipelines.emulator.bigquery.read_api import BigQueryCalls
from gpu_pipelines.emulator.certificates import Certificates
from gpu_pipelines.emulator.not_emulated import RefusedByName
from gpu_pipelines.emulator.transcoding import Method, parsed

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

_NO_REQUEST = object()
#: The permissions for reading from BigQuery, by method.
_PERMISSIONS = {"CreateReadSession": ("readsessions.create", "tables.getData"), "ReadRows": ("readsessions.getData",)}
_PROJECTS = "google.cloud.resourcemanager.v3.Projects"
#: google-cloud-aiplatform requests it over gRPC, with its credentials, even if everything else uses REST.
_GET_PROJECT = Method(_PROJECTS, "GetProject", resourcemanager_v3.GetProjectRequest, ())


def start_grpc(api: VertexApi, certificates: Certificates) -> tuple[Any, int]:
    """Starts a gRPC server with TLS; returns it and its port."""
    # Each open stream of BigQuery, and each job that a client waits for, occupies one thread.
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=40))
    services: dict[str, dict[str, Any]] = {}
    for method, handle in _methods(api):
        services.setdefault(method.service, {})[method.name] = grpc.unary_unary_rpc_method_handler(
            _behaviour(api, method, handle),
            request_deserializer=_reader(method),
            response_serializer=_serialized,
        )
    server.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(service, methods) for service, methods in services.items())
    )
    server.add_generic_rpc_handlers((_bigquery_calls(api), RefusedByName()))
    credentials = grpc.ssl_server_credentials([(certificates.key.read_bytes(), certificates.chain.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    return server, port


def _bigquery_calls(api: VertexApi) -> BigQueryCalls:
    def check(method: str, metadata: Mapping[str, str]) -> None:
        if fault := api.fault(f"GRPC {method}"):
            raise ApiError(fault.status or 503, fault.message)
        permissions = api.state.permissions
        account = permissions.account_of(metadata.get("authorization", ""))
        for needed in _PERMISSIONS[method]:
            permissions.require(account, f"bigquery.{needed}")

    return BigQueryCalls(lambda: api.bigquery().reads, check)


def _methods(api: VertexApi) -> list[tuple[Method, Callable[[Any, str], Any]]]:
    def project(request: Any, account: str) -> Any:
        told = api.state.project.told(request.name.removeprefix("projects/"), "v3")
        return parsed(resourcemanager_v3.Project, told)

    holding = {
        "GetCustomJob": api.state.custom_jobs,
        "GetHyperparameterTuningJob": api.state.tuning_jobs,
        "GetBatchPredictionJob": api.state.batch_prediction_jobs,
    }

    def calling(method: Method) -> Callable[[Any, str], Any]:
        def call(request: Any, account: str) -> Any:
            if held := holding.get(method.name):
                held.hold(request)
            return api.state.call(method, request, account)

        return call

    methods = [(method, calling(method)) for method, _ in api.state.handlers.values()]
    return [*methods, (_GET_PROJECT, project)]


def _behaviour(api: VertexApi, method: Method, handle: Callable[[Any, str], Any]) -> Callable[[Any, Any], Any]:
    def behave(request: Any, context: Any) -> Any:
        metadata = dict(context.invocation_metadata())
        if method != _GET_PROJECT and not str(metadata.get("authorization", "")).startswith("Bearer "):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request is missing required authentication credential.")
        if request is _NO_REQUEST:
            _abort(context, ApiError(400, f"The request is no {method.request.__name__}."))
        fault = api.fault(f"GRPC {method.name}")
        if fault and not fault.took_effect:
            _abort(context, ApiError(fault.status or 503, fault.message))
        try:
            answer = handle(request, api.state.permissions.account_of(str(metadata.get("authorization", ""))))
        except Exception as error:
            _abort(context, answer_to(error))
        if fault:
            _abort(context, ApiError(fault.status or 503, fault.message))
        return answer

    return behave


def _reader(method: Method) -> Callable[[bytes], Any]:
    def read(content: bytes) -> Any:
        """Parses a request, or returns that it is invalid: gRPC would report an exception as a server error."""
        try:
            return method.request.deserialize(content)
        except DecodeError:
            return _NO_REQUEST

    return read


def _abort(context: Any, error: ApiError) -> None:
    context.abort(grpc.StatusCode[error.status], error.message)


def _serialized(message: Any) -> bytes:
    plain = type(message).pb(message) if hasattr(type(message), "pb") else message
    return bytes(plain.SerializeToString())
