"""Long-running operations of Vertex AI's services."""

from __future__ import annotations

import time
from typing import Any

from gpu_pipelines.google_cloud.connection import tried_again


def wait_for(client: Any, operation: Any, poll_seconds: float, most_seconds: float) -> None:
    """Waits for an operation.

    It is asked for as the service's own clients do it for an operation of theirs, except that those insist on https
    for it, whatever the endpoint.

    Args:
        client: of the service that the operation is of.
        operation: as the service answered it.
        poll_seconds: between two looks.
        most_seconds: how long to wait.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: it has failed, or not ended in time.
    """
    from google.api_core import exceptions

    end = time.monotonic() + most_seconds
    while not operation.done:
        if time.monotonic() > end:
            raise exceptions.DeadlineExceeded(f"{operation.name} has not ended in {most_seconds:g} s.")
        time.sleep(poll_seconds)
        operation = client.get_operation({"name": operation.name}, retry=tried_again())
    if operation.HasField("error"):
        raise exceptions.from_grpc_status(operation.error.code, operation.error.message)
