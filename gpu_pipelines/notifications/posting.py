"""Posts JSON to a secret address."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from gpu_pipelines.network_errors import untrusted_certificate
from gpu_pipelines.notifications.channel import NotSentError, TryAgainError
from gpu_pipelines.notifications.message import one_line

LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: Statuses after which the same request may succeed later.
_PASSING = (408, 425, 429)
#: Most characters of a service's answer that are repeated.
_MOST_CHARACTERS = 80


def post(url: str, body: Any, seconds: float) -> None:
    """Posts JSON with TLS; without it only to this machine, for tests.

    Args:
        url: the address, which appears in no error message.
        body: the content.
        seconds: the most time to connect, and to answer.

    Raises:
        TryAgainError: it did not get through this time.
        NotSentError: it never will.
    """
    import requests

    where = urlsplit(url)
    try:
        host = where.hostname or ""
    except ValueError:
        host = ""
    no_address = NotSentError("the secret is not an address such as https://HOST/…")
    if where.scheme not in ("http", "https") or not host:
        raise no_address
    if where.scheme == "http" and host not in LOOPBACK:
        raise NotSentError(f"the address of {host} begins with http://, but a message has to be encrypted")
    try:
        # A redirect could lead the message to a place that nobody chose.
        answer = requests.post(url, json=body, timeout=seconds, allow_redirects=False)
    except requests.exceptions.SSLError as error:
        raise no_tls(host, error) from None
    except requests.exceptions.InvalidURL:  # such as a port above 65535
        raise no_address from None
    except requests.RequestException as error:
        # The text of the error has the address in it.
        raise TryAgainError(f"{host} cannot be reached ({type(error).__name__})") from None
    if 200 <= answer.status_code < 300:
        return
    told = f"{host} answered with status {answer.status_code}{_said(answer.text, url)}"
    if answer.status_code in _PASSING or answer.status_code >= 500:
        after = answer.headers.get("Retry-After", "")
        raise TryAgainError(told, float(after) if after.isdecimal() else 0.0)
    raise NotSentError(told)


def no_tls(host: str, error: Exception) -> NotSentError:
    """The error for a failure of TLS."""
    if reason := untrusted_certificate(error):
        return NotSentError(f"the certificate of {host} is not trusted ({reason})")
    return NotSentError(f"{host} does not speak TLS there")


def _said(text: str, url: str) -> str:
    """A service's answer, unless the secret may be in it."""
    shown = one_line(text)[:_MOST_CHARACTERS]
    where = urlsplit(url)
    # The secret of Google Chat is in the query. All of the answer is searched: the end of a secret may be cut off.
    values = [pair.partition("=")[2] or pair for pair in where.query.split("&")]
    parts = [part for part in [*where.path.split("/"), *values] if len(part) > 3]
    return f": {shown}" if shown and not any(part in text or unquote(part) in text for part in parts) else ""
