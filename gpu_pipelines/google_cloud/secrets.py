"""Values of Secret Manager, read where they are used, so that no file and no log holds them."""

from __future__ import annotations

import base64
import binascii

from gpu_pipelines.errors import UnavailableError, UserError
from gpu_pipelines.google_cloud.connection import credentials
from gpu_pipelines.google_cloud.rest import Rest, UnreachableError, endpoint
from gpu_pipelines.network_errors import error_of_status

_SERVICE = "secretmanager"


def secret_value(name: str) -> str:
    """The value of a secret, without white space at its ends.

    Args:
        name: `projects/PROJECT/secrets/SECRET/versions/VERSION`; a version may be `latest`.

    Raises:
        UserError: it cannot be read, or is not text.
    """
    try:
        answer = Rest(credentials(endpoint(_SERVICE))).get(_SERVICE, f"/v1/{name}:access")
    except UnreachableError as error:
        raise UnavailableError(f"The secret {name} cannot be read: {error}.") from error
    if not answer.ok:
        account = "Give the account of this step the role Secret Manager Secret Accessor, or another secret."
        raise error_of_status(answer.status, f"The secret {name} cannot be read: {answer.message}", account)
    try:
        return base64.b64decode(answer.content["payload"]["data"]).decode("utf-8").strip()
    except (KeyError, TypeError, binascii.Error, UnicodeDecodeError):
        raise UserError(f"The secret {name} is not text.", "Give a version that holds the key as text.") from None
