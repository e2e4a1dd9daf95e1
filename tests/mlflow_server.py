"""A real server of MLflow."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forked import Forked
from mlflow import cli, server
from processes import kill_tree

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
    log = folder / f"server-{port}.log"
    process = Forked(__name__, arguments, environment, log=log)
    try:
        _await_answer(process, log, f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        kill_tree(process.pid)
        process.wait()


def main() -> None:
    """The command `mlflow server`; what answers is this process, not another that imports everything once more."""
    server._exec_cmd = _answer
    cli.cli(["server", *sys.argv[1:]])


def _answer(command: Sequence[str], extra_env: Mapping[str, str], **others: Any) -> None:
    import uvicorn

    os.environ.update(extra_env)
    uvicorn.main(command[command.index("uvicorn") + 1 :])


def _await_answer(process: Forked, log: Path, url: str) -> None:
    import requests

    deadline = time.monotonic() + 90
    while True:
        try:
            if requests.get(url, timeout=5).ok:
                return
        except requests.RequestException:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
