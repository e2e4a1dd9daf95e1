"""Restricts requests to the console's own user and its own pages.

Any page that a browser has open can send requests to this machine's loopback, under any name that resolves to it. So
the host name is checked, pages need a cookie that is exchanged for the token in the address, and a request that
changes something has to carry a secret that only the console's pages have.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpu_pipelines.console.form_body import FormBody

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
#: Makes the page that says why a request was refused, from a status and a text.
Refusal = Callable[[int, str], bytes]

#: Name of the field with the secret that only the console's pages have.
CSRF = "csrf"
#: Most bytes of a dropped file and the form around it. A compiled pipeline has a few hundred kilobytes.
MOST_BYTES = 4 * 2**20
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_READING = ("GET", "HEAD")
STATIC = "/static/"
#: Pages run only the console's own script, and connect to no other place.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-src 'self'; frame-ancestors 'self'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_OPEN_ADDRESS = (
    "Open the address that gpu-pipelines console has printed: it has the token without which nothing is shown."
)

#: Follows the token: leads to the address without it.
_LEADS_ON = (
    b'<!doctype html><html lang="en"><meta http-equiv="refresh" content="0;url=/"><link rel="icon" href="data:,">'
    b'<title>Console</title><p><a href="/">Console</a></p></html>'
)


def _word() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Secrets:
    """The secrets of a console's user.

    Attributes:
        token: the secret in the printed address.
        session: the secret in the cookie that is exchanged for the token.
        csrf: the secret in the forms of the pages.
    """

    token: str = field(default_factory=_word)
    session: str = field(default_factory=_word)
    csrf: str = field(default_factory=_word)


class Guard:
    """Passes requests of the console's own user on to an ASGI application.

    The form of such a request is in `request.state.form`.

    Args:
        app: the application.
        held: the secrets of its user.
        port: the console's port, which tells its cookie from those of other consoles.
        refusal: makes the page of a refusal.
    """

    def __init__(self, app: Any, held: Secrets, port: int, refusal: Refusal) -> None:
        self._app, self._held, self._refusal = app, held, refusal
        self._cookie = f"gpu-pipelines-console-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not _is_loopback(headers.get("host", "")):
            text = "This console answers only at localhost; the request was sent to another name."
            await self._refuse(send, 421, text)
        elif scope["path"].startswith(STATIC):
            await self._app(scope, receive, _with_headers(send))
        elif (token := _parameter(scope, "token")) and scope["method"] == "GET":
            await self._exchange(token, send)
        elif not self._has_session(headers.get("cookie", "")):
            await self._refuse(send, 403, _OPEN_ADDRESS)
        elif scope["method"] in _READING:
            await self._app(scope, receive, _with_headers(send))
        else:
            await self._change(scope, headers, receive, send)

    async def _change(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        """Passes on a request that may change something, if it comes from a page of the console."""
        origin = headers.get("origin", "")
        if origin and urlsplit(origin).netloc != headers.get("host"):
            await self._refuse(send, 403, "The request did not come from a page of this console.")
            return
        body = await _read(receive)
        if body is None:
            text = f"The file is larger than {MOST_BYTES // 2**20} MiB, which no compiled pipeline is."
            await self._refuse(send, 413, text)
            return
        form = FormBody.of(headers.get("content-type", ""), body)
        if not _are_equal(form.text(CSRF), self._held.csrf):
            text = "The request did not come from a page of this console as it runs now. Load the page again."
            await self._refuse(send, 403, text)
            return
        scope.setdefault("state", {})["form"] = form
        await self._app(scope, receive, _with_headers(send))

    async def _exchange(self, token: str, send: Send) -> None:
        """Exchanges the token for the cookie, and leads to the address without the token."""
        if not _are_equal(token, self._held.token):
            await self._refuse(
                send, 403, f"The token in this address is not that of the console that runs now. {_OPEN_ADDRESS}"
            )
            return
        # No redirect: a browser that came here from another site would not send the cookie with it.
        cookie = f"{self._cookie}={self._held.session}; Path=/; HttpOnly; SameSite=Strict"
        await _answer(_with_headers(send), 200, _LEADS_ON, [(b"set-cookie", cookie.encode())])

    def _has_session(self, cookies: str) -> bool:
        pairs = (each.strip().partition("=") for each in cookies.split(";"))
        return any(name == self._cookie and _are_equal(value, self._held.session) for name, _, value in pairs)

    async def _refuse(self, send: Send, status: int, text: str) -> None:
        await _answer(_with_headers(send), status, self._refusal(status, text))


async def _read(receive: Receive) -> bytes | None:
    """The body of a request; None if it is too long."""
    parts, length = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        length += len(message.get("body", b""))
        if length > MOST_BYTES:
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, status: int, page: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    kind = (b"content-type", b"text/html; charset=utf-8")
    await send({"type": "http.response.start", "status": status, "headers": [kind, *(headers or [])]})
    await send({"type": "http.response.body", "body": page})


def _with_headers(send: Send) -> Send:
    """Adds these headers to every answer, unless it has them itself."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            held = {name.lower() for name, _ in message.get("headers", [])}
            more = [(name.encode(), text.encode()) for name, text in _HEADERS.items() if name.encode() not in held]
            message["headers"] = [*message.get("headers", []), *more]
        await send(message)

    return sending


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this machine's loopback. The port may be that of a tunnel."""
    try:
        return urlsplit(f"//{host}").hostname in _LOOPBACK
    except ValueError:
        return False


def _parameter(scope: Scope, name: str) -> str:
    return parse_qs(scope.get("query_string", b"").decode("latin-1")).get(name, [""])[-1]


def _are_equal(given: str, held: str) -> bool:
    return hmac.compare_digest(given.encode(), held.encode())
