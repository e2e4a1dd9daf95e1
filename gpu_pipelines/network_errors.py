"""What errors of a network mean, whichever of Google's client libraries has wrapped them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

#: What to do about a certificate that this machine does not trust.
TRUST_REMEDY = (
    "Where a proxy of your network signs them, give the file of its authority to all clients: "
    "export REQUESTS_CA_BUNDLE=FILE SSL_CERT_FILE=FILE GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=FILE."
)
#: What to do where a service does not know who asks.
LOGIN_REMEDY = (
    "Sign in again: gcloud auth application-default login. GOOGLE_APPLICATION_CREDENTIALS, where it is set, names the "
    "credentials in their place."
)


def untrusted_certificate(error: BaseException) -> str:
    """Why a certificate was not trusted; empty where an error is another one.

    Args:
        error: as a client library raised it.
    """
    for each in _causes(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            return str(each.verify_message) or "certificate verify failed"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it was raised from, or carries: each library has a way of its own."""
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
