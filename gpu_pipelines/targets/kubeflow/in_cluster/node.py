"""The program of each node of a TrainJob: the step itself, with outputs that only rank 0 returns.

`python3 -m gpu_pipelines.targets.kubeflow.in_cluster.node --exchange PLACE --silence SECONDS -- COMMAND…`
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.signals import handled
from gpu_pipelines.errors import ERROR_FILE, INTERRUPTED, left_error
from gpu_pipelines.targets.kubeflow.in_cluster.exchange import (
    EXECUTOR_OUTPUT,
    Exchange,
    executor_input_of,
    for_node,
    outputs_in,
    with_executor_input,
)
from gpu_pipelines.targets.kubeflow.in_cluster.sign_of_life import Listener

#: Seconds for a step that nobody waits for to save its state.
_SECONDS_TO_SAVE = 60.0
_ORPHAN = "nobody waits for this TrainJob any more: the pod of its step is gone"


def run(exchange: Exchange, command: Sequence[str], silence: float) -> int:
    """Runs the step on this node, and sends its outputs if it has any, which only rank 0 has.

    Args:
        exchange: the folder shared with the step.
        command: the step.
        silence: seconds without a sign of the step's own pod after which this node ends.

    Returns:
        The step's exit status; `INTERRUPTED` if nobody waits for it.
    """
    listener = Listener(exchange, silence)
    if listener.is_orphan:
        print(_ORPHAN, flush=True)
        return INTERRUPTED
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-node-") as folder:
        scratch = Path(folder)
        document = for_node(executor_input_of(command), scratch)
        left = scratch / "error.json"
        status = _status_of(with_executor_input(command, document), listener, left)
        if status and (error := left_error(left)):
            exchange.send_error(Cluster.from_environment(os.environ).node_rank, error)
        if status == 0 and (outputs_in(scratch) / EXECUTOR_OUTPUT).is_file():
            exchange.send_outputs(outputs_in(scratch))
        return status


def _status_of(command: list[str], listener: Listener, error: Path) -> int:
    """The exit status of a command; it is interrupted when this process is, or when nobody waits for it.

    Args:
        command: the step.
        listener: waits for the signs of the step's pod.
        error: the file in which the step leaves its error.
    """
    process = subprocess.Popen(command, env={**os.environ, ERROR_FILE: str(error)})
    over = threading.Event()

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    def end_orphan() -> None:
        if listener.wait(over):
            print(
                "nobody waits for this TrainJob any more: its step is gone, so it saves its state and ends", flush=True
            )
            process.terminate()
            if not over.wait(_SECONDS_TO_SAVE):
                process.kill()

    with handled(pass_on):
        threading.Thread(target=end_orphan, daemon=True, name="listener").start()
        status = process.wait()
    over.set()
    return status if status >= 0 else 128 - status


def main() -> None:
    """Reads the command line, and ends with the step's exit status."""
    parser = argparse.ArgumentParser(prog="kubeflow_node")
    parser.add_argument("--exchange", required=True)
    parser.add_argument("--silence", type=float, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    with own_process():
        sys.exit(run(Exchange(given.exchange), given.command[1:], given.silence))


if __name__ == "__main__":
    main()
