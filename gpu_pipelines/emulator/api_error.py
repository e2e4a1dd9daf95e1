"""Errors in the form in which Google's APIs answer them."""

from __future__ import annotations

import json
import traceback
from typing import Any

#: google.rpc.Code by HTTP status.
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class ApiError(Exception):
    """An answer that is an error.

    Args:
        code: HTTP status.
        message: what Google's service would say.
        status: google.rpc.Code, where it is not the one that the HTTP status means.
    """

    def __init__(self, code: int, message: str, status: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or STATUSES[code]

    def body(self) -> dict[str, Any]:
        """The JSON of the REST interface."""
        return {"error": {"code": self.code, "message": self.message, "status": self.status}}

    def json(self) -> bytes:
        """The same as text."""
        return json.dumps(self.body()).encode()


def answer_to(error: Exception) -> ApiError:
    """The answer that an error is. What nobody has thought of is answered as well, and the emulator goes on."""
    if isinstance(error, ApiError):
        return error
    traceback.print_exception(error)
    return ApiError(500, f"The emulator failed: {type(error).__name__}: {error}")


def not_found(name: str) -> ApiError:
    """That a resource is not there, as Vertex AI says it."""
    return ApiError(404, f"The resource {name} is not found.")
