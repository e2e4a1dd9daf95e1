"""Posts of JSON to an address that is a secret."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from gpu_pipelines.network_errors import untrusted_certificate
from gpu_pipelines.notifications.channel import NotSentError, TryAgainError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: Statuses after which the same may succeed later.
_PASSING = (408, 425, 429)
#: Of what a service says to a post, so much is repeated.
_MOST_CHARACTERS = 80


def post(url: str, body: Any, seconds: float) -> None:
    """Posts JSON with TLS; without it only to this machine, as tests do.

    Args:
        url: where to. It is in no message of an error.
        body: what.
        seconds: how long it may take to connect, and to answer.

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
    if where.scheme not in ("http", "https") or not host:
        raise NotSentError("the secret is not an address such as https://HOST/…")
    if where.scheme == "http" and host not in LOOPBACK:
        raise NotSentError(f"the address of {host} begins with http://, and a message has to be encrypted")
    try:
        # Followed, a post would go where nobody has said.
        answer = requests.post(url, json=body, timeout=seconds, allow_redirects=False)
    except requests.exceptions.SSLError as error:
        raise no_tls(host, error) from None
    except requests.RequestException as error:
        # What requests says has the address in it.
        raise TryAgainError(f"{host} cannot be reached ({type(error).__name__})") from None
    if answer.ok and not answer.is_redirect:
        return
    told = f"{host} answered with status {answer.status_code}{_said(answer.text, url)}"
    if answer.status_code in _PASSING or answer.status_code >= 500:
        after = answer.headers.get("Retry-After", "")
        raise TryAgainError(told, float(after) if after.isdigit() else 0.0)
    raise NotSentError(told)


def no_tls(host: str, error: Exception) -> NotSentError:
    """What a failure of TLS means."""
    if reason := untrusted_certificate(error):
        return NotSentError(f"the certificate of {host} is not trusted ({reason})")
    return NotSentError(f"{host} does not speak TLS there")


def _said(text: str, url: str) -> str:
    """What a service says, unless the secret may be in it."""
    shown = " ".join(text.split())[:_MOST_CHARACTERS]
    parts = [part for part in urlsplit(url).path.split("/") if len(part) > 3]
    return f": {shown}" if shown and not any(part in shown for part in [url, *parts]) else ""
