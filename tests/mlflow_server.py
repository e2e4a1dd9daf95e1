"""A real server of MLflow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import Started, kill_tree, start_python

from gpu_pipelines.emulator.json_server import free_port


@contextmanager
def mlflow_server(folder: Path, port: int = 0, *, takes_files: bool = False) -> Iterator[str]:
    """A real server of MLflow on a SQLite file; gives its address.

    Args:
        folder: of the file.
        port: where it listens; 0 for a free one.
        takes_files: whether files go through it; if not, clients write them to where it says.
    """
    port = port or free_port()
    arguments = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--host", "127.0.0.1", "--port", str(port)]
    place = "--artifacts-destination" if takes_files else "--default-artifact-root"
    arguments += [place, str(folder / "artifacts"), "--workers", "1"]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    started = start_python(["-m", "mlflow", "server", *arguments], folder / f"server-{port}.log", environment)
    try:
        _await_answer(started, f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        kill_tree(started.process.pid)
        started.process.wait()


def _await_answer(started: Started, url: str) -> None:
    import requests

    deadline = time.monotonic() + 90
    while True:
        try:
            if requests.get(url, timeout=5).ok:
                return
        except requests.RequestException:
            assert started.process.poll() is None, started.output
            assert time.monotonic() < deadline, started.output
            time.sleep(0.1)
