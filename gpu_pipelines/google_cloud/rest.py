"""Requests to Google's REST interfaces that give up soon: for reading a project, not for changing it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gpu_pipelines.network_errors import TRUST_REMEDY, untrusted_certificate

#: gcloud's own variables that replace the endpoint of a service.
ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_{}"
#: Seconds for connecting to a service, and for its answer.
CONNECT_SECONDS, ANSWER_SECONDS = 3.0, 10.0


class UnreachableError(Exception):
    """A service that cannot be reached, such as without a network."""


@dataclass(frozen=True)
class Answer:
    """A service's answer.

    Attributes:
        status: HTTP status.
        content: the JSON object that came with it; empty if none did.
    """

    status: int
    content: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """Google's error message."""
        error = self.content.get("error")
        text = error.get("message", "") if isinstance(error, Mapping) else error or ""
        return " ".join(str(text).split())[:300] or f"HTTP status {self.status}"


class Rest:
    """Sends requests with a project's credentials.

    Args:
        credentials: of google.auth; with None, requests go only to unencrypted endpoints, which are for tests.
    """

    def __init__(self, credentials: Any) -> None:
        import google.auth.credentials
        from google.auth.transport.requests import AuthorizedSession

        self._anonymous = AuthorizedSession(google.auth.credentials.AnonymousCredentials())
        self._session = self._anonymous
        if credentials is not None:
            self._session = AuthorizedSession(credentials, refresh_timeout=ANSWER_SECONDS, max_refresh_attempts=1)

    def get(self, service: str, path: str, parameters: Mapping[str, Any] | None = None) -> Answer:
        """A GET; `path` begins after the host.

        Raises:
            UnreachableError: there is no answer.
        """
        return self._send("GET", service, path, parameters, None)

    def post(self, service: str, path: str, body: Mapping[str, Any]) -> Answer:
        """A POST of a JSON object.

        Raises:
            UnreachableError: there is no answer.
        """
        return self._send("POST", service, path, None, body)

    def _send(
        self, method: str, service: str, path: str, parameters: Mapping[str, Any] | None, body: Any | None
    ) -> Answer:
        import google.auth.exceptions
        import requests

        where = endpoint(service)
        # Credentials are never sent where everybody could read them.
        session = self._anonymous if urlsplit(where).scheme == "http" else self._session
        try:
            response = session.request(
                method, where + path, params=parameters, json=body, timeout=(CONNECT_SECONDS, ANSWER_SECONDS)
            )
            content = response.json() if response.content else {}
        except (requests.RequestException, google.auth.exceptions.TransportError) as error:
            if reason := untrusted_certificate(error):
                told = f"the certificate of {urlsplit(where).netloc} is not trusted ({reason}). {TRUST_REMEDY}"
                raise UnreachableError(told) from error
            raise UnreachableError(f"{urlsplit(where).netloc} cannot be reached") from error
        except google.auth.exceptions.GoogleAuthError as error:
            return Answer(401, {"error": {"message": str(error.args[0] if error.args else error)}})
        except ValueError:
            content = {}
        return Answer(response.status_code, content if isinstance(content, dict) else {})


def endpoint(service: str) -> str:
    """The endpoint of a service, such as https://storage.googleapis.com, without a final slash."""
    override = os.environ.get(ENDPOINT_VARIABLE.format(service.upper()), "").rstrip("/")
    # gcloud's endpoints of Cloud Storage and BigQuery include the paths of their JSON interfaces.
    return override.removesuffix("/storage/v1").removesuffix("/bigquery/v2") or f"https://{service}.googleapis.com"
