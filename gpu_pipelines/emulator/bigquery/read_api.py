"""The gRPC interface of BigQuery's Storage Read API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from gpu_pipelines.emulator.api_error import ApiError, answer_to

if TYPE_CHECKING:
    from gpu_pipelines.emulator.bigquery.reads import ReadSessions

_SERVICE = "/google.cloud.bigquery.storage.v1.BigQueryRead/"


class BigQueryCalls(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
    """Answers the calls; its types are imported with the first one, which takes half a second.

    Args:
        reads: provides the sessions.
        check: called with the name of a method and the metadata of a call; raises ApiError to refuse it.
    """

    def __init__(self, reads: Callable[[], ReadSessions], check: Callable[[str, Mapping[str, str]], None]) -> None:
        self._reads, self._check = reads, check
        self._handlers: dict[str, Any] = {}

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call; None if it does not belong to this service."""
        method = str(handler_call_details.method)
        if not method.startswith(_SERVICE):
            return None
        self._handlers = self._handlers or self._made()
        return self._handlers.get(method.removeprefix(_SERVICE))

    def _made(self) -> dict[str, Any]:
        from google.cloud.bigquery_storage_v1 import types

        return {
            "CreateReadSession": grpc.unary_unary_rpc_method_handler(
                self._create, types.CreateReadSessionRequest.deserialize, types.ReadSession.serialize
            ),
            "ReadRows": grpc.unary_stream_rpc_method_handler(
                self._read, types.ReadRowsRequest.deserialize, types.ReadRowsResponse.serialize
            ),
        }

    def _create(self, request: Any, context: Any) -> Any:
        with self._answering("CreateReadSession", context):
            return self._reads().create(request)

    def _read(self, request: Any, context: Any) -> Iterator[Any]:
        with self._answering("ReadRows", context):
            yield from self._reads().read(request)

    @contextmanager
    def _answering(self, method: str, context: Any) -> Iterator[None]:
        """Turns errors into a status."""
        metadata = {name: str(value) for name, value in context.invocation_metadata()}
        try:
            if not metadata.get("authorization", "").startswith("Bearer "):
                raise ApiError(401, "Request is missing required authentication credential.")
            self._check(method, metadata)
            yield
        except Exception as error:
            told = answer_to(error)
            context.abort(grpc.StatusCode[told.status], told.message)
