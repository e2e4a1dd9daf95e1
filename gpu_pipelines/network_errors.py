"""Interprets network errors, whichever of Google's client libraries has wrapped them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from http import HTTPStatus

from gpu_pipelines.errors import AccessDeniedError, NotFoundError, UnavailableError, UserError, first_line

#: The remedy for a certificate that this machine does not trust.
TRUST_REMEDY = (
    "Where a proxy of your network signs them, give the file of its authority to all clients: "
    "export REQUESTS_CA_BUNDLE=FILE SSL_CERT_FILE=FILE GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=FILE."
)
#: The remedy if a service does not know the caller.
LOGIN_REMEDY = (
    "Sign in again: gcloud auth application-default login. GOOGLE_APPLICATION_CREDENTIALS, where it is set, names the "
    "credentials in their place."
)


#: Statuses that are no fault of the request: too many requests, or a fault of the service or its gateway.
UNAVAILABLE = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


def error_of_status(status: int | None, problem: str, remedy: str = "") -> UserError:
    """The error for a service's answer.

    Args:
        status: the HTTP status; 0 or None if there is none.
        problem: what went wrong, for the user.
        remedy: what to do about it.
    """
    if status in UNAVAILABLE:
        return UnavailableError(problem, remedy, int(status or 0))
    if status == HTTPStatus.NOT_FOUND:
        return NotFoundError(problem, remedy)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return AccessDeniedError(problem, remedy)
    return UserError(problem, remedy)


def no_credentials(error: Exception) -> UserError:
    """The error where Google's libraries find no credentials that can be used.

    Args:
        error: what `google.auth.default` raised.
    """
    return AccessDeniedError(
        f"There are no usable Google Cloud credentials: {first_line(error)}",
        "Run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS.",
    )


def untrusted_certificate(error: BaseException) -> str:
    """Why a certificate was not trusted; empty for any other error.

    Args:
        error: the error of a client library.
    """
    for each in _causes(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            return str(each.verify_message) or "certificate verify failed"
    return ""


def why_unreachable(error: BaseException) -> str:
    """Why the system did not reach a service, such as "Connection refused"; empty if it did or does not say.

    Args:
        error: the error of a client library.
    """
    return next((each.strerror for each in _causes(error) if isinstance(each, OSError) and each.strerror), "")


def no_token_was_given(error: BaseException) -> bool:
    """Whether an error means that the source of tokens, such as a metadata server, was unreachable or failed.

    Nothing is known of the credentials then, and the same may succeed later.

    Args:
        error: the error of a client library.
    """
    if untrusted_certificate(error):  # it will not be trusted next time either
        return False
    of_auth = [each for each in _causes(error) if type(each).__module__.startswith("google.auth")]
    return any(getattr(each, "retryable", False) or type(each).__name__ == "TransportError" for each in of_auth)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it was raised from, or carries: each library does this differently."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [*each.args, each.__cause__, each.__context__, getattr(each, "reason", None)]
        waiting += [getattr(each, "cause", None), getattr(each, "certificate_error", None)]
