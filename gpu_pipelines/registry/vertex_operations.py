"""Long-running operations of Vertex AI's services."""

from __future__ import annotations

import time
from typing import Any

from gpu_pipelines.google_cloud.connection import tried_again


def wait_for(client: Any, operation: Any, poll_seconds: float, most_seconds: float) -> None:
    """Waits for an operation.

    It is polled as the service's own clients poll theirs, but those insist on https for it, whatever the endpoint.

    Args:
        client: the client of the operation's service.
        operation: the service's answer.
        poll_seconds: seconds between two checks.
        most_seconds: the longest wait.

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
