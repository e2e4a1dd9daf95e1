"""The server as Vertex AI starts it: by its module, with the contract's variables in the environment."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests
from forked import Forked

from gpu_pipelines.serving.listener import listen

HEALTH, PREDICT = "/v1/endpoints/1/deployedModels/2", "/v1/endpoints/1/deployedModels/2:predict"


@dataclass
class Server:
    """A server that was started."""

    process: Forked
    url: str
    health_route: str = HEALTH

    def predict(self, instances: Any, **parameters: Any) -> requests.Response:
        """Sends instances; `parameters` too if there are any."""
        return self.post({"instances": instances, **({"parameters": parameters} if parameters else {})})

    def post(self, content: Any) -> requests.Response:
        """Sends JSON."""
        return requests.post(self.url + PREDICT, json=content, timeout=60)

    def health(self) -> requests.Response:
        # While PyTorch is imported nothing else in the process runs for a moment, on a busy machine for a long one.
        return requests.get(self.url + self.health_route, timeout=60)

    def memory(self) -> int:
        """Bytes of memory that the process holds."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def end(self, sign: int = signal.SIGTERM) -> int:
        """Tells it to end; gives its exit status."""
        self.process.send_signal(sign)
        return self.process.wait(30)


@contextmanager
def started(
    model: Path | str | None, ready: bool = True, files: int = 0, log: Path | None = None, **environment: str
) -> Iterator[Server]:
    """Starts a server.

    Args:
        model: what it serves; None to leave that to the environment.
        ready: whether to wait until it can predict.
        files: so many may it have open; 0 for as many as this process.
        log: where it writes; a pipe if not given.
        environment: limits, without their prefix; names with AIP_ and others as they are.
    """
    variables = {
        name if name.startswith("AIP_") or "STORAGE" in name else f"GPU_PIPELINES_SERVING_{name}": value
        for name, value in environment.items()
    }
    contract = {"AIP_HEALTH_ROUTE": HEALTH, "AIP_PREDICT_ROUTE": PREDICT}
    # As many threads as it takes, not as many as there are cores: several tests run at the same time.
    alone = {"OMP_NUM_THREADS": "1", "GPU_PIPELINES_SERVING_DRAIN_SECONDS": "0"}
    environment = {**os.environ, **alone, **contract, **variables}
    with listen("127.0.0.1", 0) as listener:
        given: list[str | socket.socket] = [*([str(model)] if model else []), "--fd", listener]
        process = Forked("gpu_pipelines.serving.__main__", given, environment, log=log, merged=True, files=files)
        server = Server(process, f"http://127.0.0.1:{listener.getsockname()[1]}", environment["AIP_HEALTH_ROUTE"])
    try:
        if ready:
            wait_until_ready(server)
        yield server
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_until_ready(server: Server) -> None:
    until = time.monotonic() + 240
    while time.monotonic() < until:
        assert server.process.poll() is None, server.process.communicate()[0]
        try:
            if server.health().status_code == 200:
                return
        except requests.ConnectionError:
            pass
        time.sleep(0.05)
    raise AssertionError("the server is not ready after 240 s")
