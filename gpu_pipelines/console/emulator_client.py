"""The console's client for an emulator, over the same REST as any other client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from gpu_pipelines.errors import NotFoundError, UserError

_SECONDS = 20.0
_PAGE = 100
_SCHEMES = ("http", "https")
#: Most bytes that are read of one object.
_MOST_OF_AN_OBJECT = 32 * 2**20


class EmulatorClient:
    """A running emulator.

    Args:
        address: its address, such as http://127.0.0.1:8990.

    Raises:
        UserError: it is not an address, or no emulator answers there.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        if urlsplit(self.address).scheme not in _SCHEMES:
            raise UserError(
                f"{address!r} is not the address of an emulator.", "Give one such as http://127.0.0.1:8990."
            )
        # Without the proxy that the emulator's own variables name.
        self._opener = build_opener(ProxyHandler({}))
        self.about: dict[str, Any] = self.ask("GET", "emulator")
        if not isinstance(self.about, dict) or not {"project", "region", "bucket", "repository"} <= set(self.about):
            raise self._no_emulator()
        self.parent = f"projects/{self.about['project']}/locations/{self.about['region']}"

    def ask(self, verb: str, path: str, body: Any = None, **query: Any) -> Any:
        """The answer to a request, as JSON.

        Args:
            verb: GET, POST and so on.
            path: the path without its first slash.
            body: the content, sent as JSON.
            query: the query parameters.

        Raises:
            UserError: the emulator refuses it, or does not answer.
        """
        text = self._content(verb, path, json.dumps(body).encode() if body is not None else None, query)
        try:
            return json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise self._no_emulator() from error

    def _no_emulator(self) -> UserError:
        remedy = "Give the address that gpu-pipelines emulator start has printed."
        return UserError(f"What answers at {self.address} is not an emulator.", remedy)

    def every(self, path: str, field: str, most: int = 0, mask: str = "") -> Iterator[dict[str, Any]]:
        """The resources of a list, page after page.

        Args:
            path: the path of the list, without its first slash.
            field: the field of the answer with the resources.
            most: the most resources; 0 for all.
            mask: names of the fields to return, separated by commas; empty for all.
        """
        token, count, wanted = "", 0, {"readMask": mask} if mask else {}
        while True:
            answer = self.ask("GET", path, pageSize=_PAGE, **wanted, **({"pageToken": token} if token else {}))
            for each in answer.get(field, []):
                yield each
                count += 1
                if count == most:
                    return
            token = answer.get("nextPageToken", "")
            if not token:
                return

    def object(self, uri: str) -> bytes:
        """An object of Cloud Storage.

        Raises:
            UserError: there is no such object.
        """
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        path = f"storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"
        return self._content("GET", path, None, {"alt": "media"})[:_MOST_OF_AN_OBJECT]

    def content(self, path: str) -> bytes:
        """The bytes of the answer to a request.

        Raises:
            UserError: the emulator refuses it.
        """
        return self._content("GET", path, None, {})

    def objects(self, uri: str) -> list[str]:
        """Names of the objects below a folder of Cloud Storage, as gs://…."""
        bucket, _, prefix = uri.removeprefix("gs://").partition("/")
        found = self.ask("GET", f"storage/v1/b/{quote(bucket, safe='')}/o", prefix=prefix)
        return [f"gs://{bucket}/{each['name']}" for each in found.get("items", [])]

    def _content(self, verb: str, path: str, body: bytes | None, query: Mapping[str, Any]) -> bytes:
        address = f"{self.address}/{path}" + (f"?{urlencode(query)}" if query else "")
        request = Request(address, body, {"Content-Type": "application/json"}, method=verb)  # noqa: S310 (http alone)
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                content: bytes = answer.read()
        except HTTPError as error:
            raise _refusal(error) from error
        except (URLError, OSError, ValueError) as error:
            raise UserError(
                f"No emulator answers at {self.address}: {getattr(error, 'reason', error)}.",
                "Start one with gpu-pipelines emulator start, and give its address with --emulator.",
            ) from error
        return content


def _refusal(error: HTTPError) -> UserError:
    try:
        told = json.loads(error.read())["error"]["message"]
    except (ValueError, KeyError, TypeError, OSError):
        told = error.reason
    return (NotFoundError if error.code == 404 else UserError)(f"The emulator refused the request: {told}")
