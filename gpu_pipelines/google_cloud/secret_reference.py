"""The place of a secret, as a file may name it: in Secret Manager, or in an environment variable."""

from __future__ import annotations

import os
import re

from gpu_pipelines.errors import UserError

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SECRET = re.compile(r"projects/[^/\s]+/secrets/[\w-]+/versions/[\w-]+", re.ASCII)
#: The form of a reference, for messages.
FORM = "projects/PROJECT/secrets/SECRET/versions/VERSION, or the name of a variable of the environment"


def is_variable(reference: str) -> bool:
    """Whether it names an environment variable."""
    return _VARIABLE.fullmatch(reference) is not None


def is_secret(reference: str) -> bool:
    """Whether it names a version of a secret in Secret Manager."""
    return _SECRET.fullmatch(reference) is not None


def value_of(reference: str) -> str:
    """The secret that a reference names, without white space at its ends.

    Raises:
        UserError: it is not there, or cannot be read. The message never contains the value.
    """
    if is_secret(reference):
        from gpu_pipelines.google_cloud.secrets import secret_value

        return secret_value(reference)
    if not is_variable(reference):
        # The value is not repeated: it may be the secret itself.
        raise UserError("A value that should name a secret does not.", f"Give {FORM}.")
    if not (value := os.environ.get(reference, "").strip()):
        raise UserError(f"The environment has no variable {reference}.", "Set it to the secret.")
    return value
