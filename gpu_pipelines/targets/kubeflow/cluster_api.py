"""The cluster through Kubeflow's SDK, and messages for a user who cannot reach it or is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from gpu_pipelines.errors import UnavailableError, UserError
from gpu_pipelines.network_errors import error_of_status


def connected() -> Any:
    """Kubeflow's client of the cluster that this process is in, or else of the current kubeconfig.

    Raises:
        UserError: the SDK is not installed, or there is no cluster to talk to.
    """
    with service_errors("Connecting to Kubernetes"):
        try:
            from kubeflow import trainer
        except ImportError as error:
            raise UserError(
                f"Kubeflow's SDK is not installed ({error.name} is missing).",
                "Run pip install 'gpu-pipelines[kubeflow]'; the image of the steps has it.",
            ) from None
        return trainer.TrainerClient()


def has_api(client: Any, group: str, version: str) -> bool:
    """Whether the cluster has an API; everybody may ask that.

    Raises:
        UserError: the cluster cannot be reached.
    """
    with service_errors(f"Asking for {group}/{version}"):
        try:
            client.backend.custom_api.get_api_resources(group, version)
        except api_error() as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
    return True


def api_error() -> Any:
    """The error class of Kubernetes's client."""
    from kubernetes.client import ApiException

    return ApiException


@contextmanager
def service_errors(what: str, remedy: str = "") -> Iterator[None]:
    """Turns errors of the SDK, which hides the API's answer behind its own error, into one line.

    Raises:
        UserError: in place of every error of the SDK, of the API, or of the network.
    """
    from urllib3.exceptions import HTTPError

    try:
        yield
    except UserError:
        raise
    except Exception as error:  # The SDK raises RuntimeError, TimeoutError, and errors of its clients.
        cause = error.__cause__ or error
        body = getattr(cause, "body", None)
        said = re.search(r'"message":\s*"((?:[^"\\]|\\.)*)"', str(body)) if body else None
        text = said[1] if said else (str(cause).splitlines() or [type(cause).__name__])[0]
        problem = f"{what} failed: {text[:500]}"
        if isinstance(error, OSError) or isinstance(cause, (HTTPError, OSError)):
            raise UnavailableError(problem, remedy) from error
        raise error_of_status(getattr(cause, "status", None), problem, remedy) from error
