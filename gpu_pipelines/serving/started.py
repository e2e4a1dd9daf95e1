"""The prediction server as a process of this machine, for as long as it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from gpu_pipelines.distributed.processes import end_process
from gpu_pipelines.errors import UserError
from gpu_pipelines.serving.listener import listen
from gpu_pipelines.serving.settings import PREFIX, Contract

#: The most seconds for fetching and loading a model, and for an answer.
_LOAD_SECONDS, _ANSWER_SECONDS = 900.0, 120.0
_STOP_SECONDS = 30.0
_LINES_OF_LOG = 15


class StartedServer:
    """A server that can predict.

    Args:
        address: with scheme and port.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def predict(self, instances: list[dict[str, Any]]) -> list[Any]:
        """Predictions over HTTP.

        Raises:
            UserError: the server refused or did not answer.
        """
        import requests

        try:
            answer = requests.post(
                f"{self.address}{Contract.predict_route}", json={"instances": instances}, timeout=_ANSWER_SECONDS
            )
            content = answer.json()
        except requests.RequestException as error:
            raise UserError(f"The prediction server did not answer: {error}.") from None
        if answer.status_code != 200:
            raise UserError(f"The prediction server answered {answer.status_code}: {content.get('error', '')}")
        predictions: list[Any] = content["predictions"]
        return predictions


@contextmanager
def started_server(place: str) -> Iterator[StartedServer]:
    """Starts the server on a model, waits until it can predict, and stops it at the end.

    Args:
        place: the exported model: a directory, or `gs://…`.

    Raises:
        UserError: it did not start; with its last output.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AIP_", PREFIX))}
    # The parent opens the socket, so that no other process can take the port meanwhile.
    with listen("127.0.0.1", 0) as listener, tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "gpu_pipelines.serving", place, "--fd", str(listener.fileno())],
            pass_fds=(listener.fileno(),),
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environment, f"{PREFIX}DRAIN_SECONDS": "0"},
        )
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            _wait(server, address, log)
            yield StartedServer(address)
        finally:
            end_process(server, _STOP_SECONDS)


def _wait(server: subprocess.Popen[bytes], address: str, log: BinaryIO) -> None:
    import requests

    end = time.monotonic() + _LOAD_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            log.seek(0)
            last = "\n".join(log.read().decode(errors="replace").splitlines()[-_LINES_OF_LOG:])
            raise UserError(f"The prediction server ended with status {server.returncode}:\n{last}")
        try:
            if requests.get(f"{address}{Contract.health_route}", timeout=5).status_code == 200:
                return
        except requests.RequestException:
            pass
        time.sleep(0.1)
    raise UserError(f"The prediction server has not loaded the model within {_LOAD_SECONDS:g} s.")
