"""The servers of models, which answer the predictions of endpoints and of batch prediction jobs.

The image is ignored, like that of a job: the command of a model's container runs as a process of this machine, with
Vertex AI's environment variables, and has to listen at `AIP_HTTP_PORT`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import requests

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.jobs.replicas import Replicas, Say, container_variables
from gpu_pipelines.emulator.json_server import free_port

#: The default routes of a container: reference of `ModelContainerSpec`.
_HEALTH, _PREDICT = "/v1/endpoints/0/deployedModels/0", "/v1/endpoints/0/deployedModels/0:predict"
#: The default time for a server to become ready, and the time to end after SIGTERM, seconds.
_DEPLOYMENT_S, _GRACE_S = 1800.0, 5.0
_LOOK_S = 0.05
_VARIABLE = re.compile(r"\$\((\w+)\)")


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    url: str
    readers: list[threading.Thread]


class ModelServers:
    """The running servers.

    Args:
        replicas: the settings of the emulator's processes.

    Attributes:
        stand_in: address of a server that replaces the containers of all models; its route for predictions is
            `/predict`.
        stand_ins: addresses of others, by the image that they replace.
        runs: whether to start containers; otherwise there are only stand-ins.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.stand_in = ""
        self.stand_ins: dict[str, str] = {}
        self.runs = False
        self._replicas = replicas
        self._held: dict[str, _Server] = {}
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._closed = threading.Event()

    def check(self, container: Any) -> None:
        """Checks that a server for a `ModelContainerSpec` exists or can be started.

        Raises:
            ApiError: it cannot.
        """
        if self._stand_in(container):
            return
        if not self.runs:
            raise ApiError(400, "The emulator runs no containers of models.", "FAILED_PRECONDITION")
        if not container.command:
            text = f"The container of the model has no command, and images are not run here ({container.image_uri})."
            raise ApiError(400, text, "UNIMPLEMENTED")

    def predict_url(self, key: str, model: Any, account: str, say: Say) -> str:
        """The address for predictions; starts the server if it is not running yet.

        Args:
            key: the key of the server, to stop it.
            model: has `container_spec` and `artifact_uri`.
            account: service account of the server; empty for the service's own.
            say: gets its output.

        Raises:
            ApiError: there is none, or it does not become ready.
        """
        container = model.container_spec
        if address := self._stand_in(container):
            return f"{address}/predict"
        self.check(container)
        with self._lock:
            own = self._locks.setdefault(key, threading.Lock())
        with own:
            server = self._held.get(key)
            if server is None or server.process.poll() is not None:
                server = self._held[key] = self._start(model, account, say)
                try:
                    self._await(server, container)
                except ApiError:
                    self.stop(key)
                    raise
            return server.url + (container.predict_route or _PREDICT)

    def stop(self, key: str) -> None:
        """Ends a server; nothing happens if there is none."""
        server = self._held.pop(key, None)
        if server is None:
            return
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                server.process.wait(_GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
        for reader in server.readers:
            reader.join(_GRACE_S)

    def close(self) -> None:
        """Ends all of them, and starts no more."""
        self._closed.set()
        for key in list(self._held):
            self.stop(key)

    def _stand_in(self, container: Any) -> str:
        return self.stand_ins.get(container.image_uri, self.stand_in)

    def _start(self, model: Any, account: str, say: Say) -> _Server:
        container, port = model.container_spec, free_port()
        variables = self._variables(model, account, port)
        words = [_VARIABLE.sub(lambda found: variables.get(found[1], found[0]), word) for word in
                 (*container.command, *container.args)]  # fmt: skip
        try:
            process, readers = self._replicas.start_process(words, variables, say)
        except OSError as error:
            raise _not_ready(f"it could not be started: {error}") from error
        return _Server(process, f"http://127.0.0.1:{port}", readers)

    def _variables(self, model: Any, account: str, port: int) -> dict[str, str]:
        container = model.container_spec
        told = {
            "AIP_MODE": "PREDICTION",
            "AIP_HTTP_PORT": str(port),
            "AIP_HEALTH_ROUTE": container.health_route or _HEALTH,
            "AIP_PREDICT_ROUTE": container.predict_route or _PREDICT,
            "AIP_STORAGE_URI": model.artifact_uri,
            "OMP_NUM_THREADS": "1",
        }
        own: Mapping[str, str] = self._replicas.identity(account) if account else {}
        named = {variable.name: variable.value for variable in container.env}
        return {**container_variables(), **told, **self._replicas.environment, **own, **named}

    def _await(self, server: _Server, container: Any) -> None:
        """Waits until a server reports that it is healthy."""
        asked = container.deployment_timeout.total_seconds() if "deployment_timeout" in container else 0.0
        end = time.monotonic() + (asked or _DEPLOYMENT_S)
        while time.monotonic() < end and not self._closed.is_set():
            if (code := server.process.poll()) is not None:
                raise _not_ready(f"it exited with the status {code}")
            with suppress(requests.RequestException):
                if requests.get(server.url + (container.health_route or _HEALTH), timeout=5).status_code == 200:
                    return
            time.sleep(_LOOK_S)
        raise _not_ready("it did not answer its health route with 200 in time")


def _not_ready(why: str) -> ApiError:
    text = f"Model server never became ready: {why}. Please validate that your container configuration is valid."
    return ApiError(400, text, "FAILED_PRECONDITION")
