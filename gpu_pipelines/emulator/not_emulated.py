"""Methods of Vertex AI that the emulator does not have: refused by name, so that nobody looks for a typing error."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import grpc

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.transcoding import Binding, bindings_of

_SERVICES = "google.cloud.aiplatform_v1.services"
_OTHER_VERSION = re.compile(r"/(v1beta1|ui)/(projects/.*|publishers/.*)")
#: Services of Google Cloud that steps use, by the prefixes of their paths.
_OTHER_SERVICES = {"/compute/": "Compute Engine"}
_CALL = re.compile(r"/google\.cloud\.(?:aiplatform|bigquery\.storage)\.(v\w+)\.(\w+)/(\w+)")


def refusal(verb: str, path: str) -> ApiError | None:
    """The refusal of a request to Vertex AI or another service; None if it is to none of them."""
    for beginning, service in _OTHER_SERVICES.items():
        if path.startswith(beginning):
            return ApiError(501, f"The emulator does not have {service}: {verb} {path}.")
    if _OTHER_VERSION.fullmatch(path):
        return ApiError(501, f"The emulator has the version v1 of Vertex AI alone: {verb} {path}.")
    for name, binding in _methods():
        if binding.verb == verb and binding.path.fullmatch(path):
            return _refused(name)
    return None


@cache
def _methods() -> tuple[tuple[str, Binding], ...]:
    """All methods of Google's client library, by their HTTP paths."""
    found: list[tuple[str, Binding]] = []
    for folder in pkgutil.iter_modules(import_module(_SERVICES).__path__):
        module = import_module(f"{_SERVICES}.{folder.name}.transports.rest_base")
        for name in dir(module):
            if match := re.fullmatch(r"_Base(\w+)RestTransport", name):
                transport = getattr(module, name)
                stubs = [stub for stub in dir(transport) if re.fullmatch(r"_Base[A-Z]\w+", stub)]
                for stub in stubs:
                    method = stub.removeprefix("_Base")
                    found += [(f"{match[1]}.{method}", each) for each in bindings_of(getattr(transport, stub))]
    return tuple(found)


def _refused(name: str) -> ApiError:
    return ApiError(501, f"The emulator does not have {name}; docs/emulator.md says what it has.")


class RefusedByName(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
    """Answers gRPC calls of methods without a handler."""

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call; None if it belongs neither to Vertex AI nor to BigQuery."""
        match = _CALL.fullmatch(handler_call_details.method)
        if match is None:
            return None
        version, service, method = match.groups()
        text = _refused(f"{service}.{method}").message
        if version != "v1":
            text = f"The emulator has the version v1 of Vertex AI alone: {service}.{method} of {version}."

        def refuse(request: bytes, context: Any) -> bytes:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, text)
            return request

        handler: Callable[..., Any] = grpc.unary_unary_rpc_method_handler
        return handler(refuse)
