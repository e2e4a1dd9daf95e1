"""Clients of BigQuery, the project that pays, and what to tell a user whom BigQuery refuses."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import QuotaExceededError, UnavailableError, UserError, named
from gpu_pipelines.google_cloud.connection import may_pass
from gpu_pipelines.network_errors import no_credentials
from gpu_pipelines.project_settings import VARIABLES

if TYPE_CHECKING:
    from google.cloud.bigquery import Client
    from google.cloud.bigquery_storage_v1 import BigQueryReadClient

# A job of Vertex AI has its project's number here, while its credentials name a project of Google's own:
# google/cloud/aiplatform/initializer.py.
_PROJECT_VARIABLES = (*VARIABLES["project"], "CLOUD_ML_PROJECT_ID")
_QUOTA = re.compile(r"quota exceeded|exceeded\b.*\bquota", re.IGNORECASE)


class BigQuery:
    """Clients, made on demand, with the credentials of the environment.

    Args:
        project: billed for queries and reading; empty takes that of the environment or of the credentials.
    """

    def __init__(self, project: str = "") -> None:
        self._asked = project

    @cached_property
    def project(self) -> str:
        """The project that is billed.

        Raises:
            UserError: none is known.
        """
        named = self._asked or next((os.environ[name] for name in _PROJECT_VARIABLES if os.environ.get(name)), "")
        found = named or self._default[1]
        if not found:
            raise UserError(
                "BigQuery needs a project that pays for reading, and none is set.",
                "Give -p billing_project=…, or set GOOGLE_CLOUD_PROJECT.",
            )
        return str(found)

    @cached_property
    def jobs(self) -> Client:
        """Queries, and what is known of tables."""
        from google.cloud.bigquery import Client

        return Client(project=self.project, credentials=self._default[0])

    @cached_property
    def reading(self) -> BigQueryReadClient:
        """The Storage Read API."""
        try:
            from google.cloud.bigquery_storage_v1 import BigQueryReadClient
        except ImportError:
            raise UserError(
                "Reading from BigQuery needs the package google-cloud-bigquery-storage.",
                "Install it: pip install google-cloud-bigquery-storage.",
            ) from None
        return BigQueryReadClient(credentials=self._default[0])

    @cached_property
    def _default(self) -> tuple[Any, str | None]:
        import google.auth
        from google.auth.exceptions import GoogleAuthError

        try:
            found: tuple[Any, str | None] = google.auth.default(
                scopes=["https://www.googleapis.com/auth/cloud-platform"]
            )
        except GoogleAuthError as error:
            raise no_credentials(error) from None
        return found


@contextmanager
def as_bigquery_errors(what: str, wrong: tuple[str, str], needs: str, done: str = "read") -> Iterator[None]:
    """Turns what Google's clients raise into a `UserError`.

    Args:
        what: what is read, such as "The table bq://…".
        wrong: problem and remedy where the request itself is refused; BigQuery's words follow the problem.
        needs: the roles that it takes.
        done: what is done with it, such as "read".

    Raises:
        UserError: in place of every error of the API, the credentials or the network.
    """
    from google.api_core import exceptions as api
    from google.auth.exceptions import GoogleAuthError
    from requests import RequestException

    try:
        yield
    except api.NotFound as error:
        raise UserError(f"{what} does not exist: {first_line(error)}", "Check its name, and its location.") from None
    except (api.Forbidden, api.Unauthorized) as error:
        # A quota that is used up is forbidden, too.
        if _QUOTA.search(str(error)):
            remedy = "Wait until it is renewed, raise it, or let another project pay: -p billing_project=…."
            raise QuotaExceededError(f"{what} could not be {done}: {first_line(error)}", remedy) from None
        raise UserError(f"{what} may not be {done}: {first_line(error)}", f"It takes {needs}.") from None
    except api.BadRequest as error:
        raise UserError(f"{wrong[0]}: {first_line(error)}", wrong[1]) from None
    except (api.GoogleAPIError, GoogleAuthError, RequestException) as error:
        # What a service could not answer a step tries again by itself; what a user has to mend it does not.
        kind = UnavailableError if may_pass(error) else UserError
        told = f"{what} could not be {done}: {named(error)}"
        raise kind(told, "Run the step again.") from None


def first_line(error: Exception) -> str:
    """What an error says, in one line of bounded length."""
    # The clients for REST put the request in front: "400 POST https://…: what is wrong".
    said = str(getattr(error, "message", "") or error)
    if said.startswith(("GET https://", "POST https://")):
        said = said.partition(": ")[2]
    return (said.splitlines() or [type(error).__name__])[0][:500]
