"""Errors in the form of Google's APIs."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
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
    """An error as an answer.

    Args:
        code: HTTP status.
        message: the message of Google's service.
        status: google.rpc.Code, if it differs from that of the HTTP status.
    """

    def __init__(self, code: int, message: str, status: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or STATUSES[code]

    def body(self) -> dict[str, Any]:
        """The error as JSON of the REST interface."""
        return {"error": {"code": self.code, "message": self.message, "status": self.status}}

    def json(self) -> bytes:
        """The same JSON as text."""
        return json.dumps(self.body()).encode()


def answer_to(error: Exception) -> ApiError:
    """The answer for an error. Unexpected errors are answered as well, and the emulator continues."""
    if isinstance(error, ApiError):
        return error
    traceback.print_exception(error)
    return ApiError(500, f"The emulator failed: {type(error).__name__}: {error}")


@contextmanager
def as_warning(about: str = "") -> Iterator[None]:
    """Prints an error that nobody waits for, such as of a full disk: jobs end and schedules go on all the same.

    Args:
        about: what it is about, in front of the message.
    """
    try:
        yield
    except ApiError as error:
        print(f"warning: {about}{': ' if about else ''}{error.message}", file=sys.stderr)


def not_found(name: str) -> ApiError:
    """The error for a missing resource, in Vertex AI's words."""
    return ApiError(404, f"The resource {name} is not found.")
