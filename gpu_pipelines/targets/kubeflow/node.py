"""What each node of a TrainJob runs: the step itself, with outputs that the chief alone hands back.

`python3 -m gpu_pipelines.targets.kubeflow.node --exchange PLACE -- COMMAND…`
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from gpu_pipelines.errors import user_errors_end_the_step
from gpu_pipelines.targets.kubeflow.exchange import (
    EXECUTOR_OUTPUT,
    Exchange,
    executor_input_of,
    for_node,
    outputs_in,
    with_executor_input,
)


def run(exchange: Exchange, command: Sequence[str]) -> int:
    """Runs the step on this node, and sends its outputs if it has any, which is so on the chief alone.

    Args:
        exchange: the folder that is shared with the step.
        command: the step.

    Returns:
        The step's exit status.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-node-") as folder:
        scratch = Path(folder)
        document = for_node(executor_input_of(command), scratch)
        status = _status_of(with_executor_input(command, document))
        if status == 0 and (outputs_in(scratch) / EXECUTOR_OUTPUT).is_file():
            exchange.send_outputs(outputs_in(scratch))
        return status


def _status_of(command: list[str]) -> int:
    """The exit status of a command that is told to stop when this process is."""
    process = subprocess.Popen(command)

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    status = process.wait()
    return status if status >= 0 else 128 - status


def main() -> None:
    """Reads the command line, and ends with the step's exit status."""
    parser = argparse.ArgumentParser(prog="kubeflow_node")
    parser.add_argument("--exchange", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    with user_errors_end_the_step():
        sys.exit(run(Exchange(given.exchange), given.command[1:]))


if __name__ == "__main__":
    main()
