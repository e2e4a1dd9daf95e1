"""What a step on several nodes runs in its own pod: it creates a TrainJob, follows it, and hands on its outputs.

`python3 -m gpu_pipelines.targets.kubeflow.train_job --train-job JSON -- COMMAND…`, with the command of the step.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace

from gpu_pipelines.errors import Interrupted, UserError, user_errors_end_the_step
from gpu_pipelines.targets.environment import RUN
from gpu_pipelines.targets.kubeflow.exchange import Exchange, executor_input_of, with_executor_input
from gpu_pipelines.targets.kubeflow.train_job_spec import TrainJobSpec
from gpu_pipelines.targets.kubeflow.trainer import LogFollower, TrainJobs, wait

#: Seconds between two looks at a TrainJob, for tests.
INTERVAL = "GPU_PIPELINES_TRAIN_JOB_INTERVAL"
_INTERVAL = 10.0
_NODE = "gpu_pipelines.targets.kubeflow.node"
#: The longest name from which Kubernetes can still make those of the pods, NAME-node-0-0-abcde, within 63 letters.
_NAME_LENGTH = 40


def run_step(spec: TrainJobSpec, command: Sequence[str], jobs: TrainJobs, stopped: threading.Event) -> None:
    """Runs a step as a TrainJob; created again where the nodes were taken away and the step can go on.

    Args:
        spec: what the TrainJob is made of.
        command: the step.
        jobs: where it is created.
        stopped: set when this process is told to stop.

    Raises:
        UserError: the step failed; with its own message where it has one.
        Interrupted: it was told to stop, or its nodes were taken away too often.
    """
    document = executor_input_of(command)
    run = os.environ.get(RUN) or secrets.token_hex(8)
    exchange = Exchange(f"{spec.storage}/train-jobs/{run}/{spec.step}-{secrets.token_hex(3)}")
    try:
        sent = with_executor_input(command, exchange.send_inputs(document))
        on_node = ["python3", "-m", _NODE, "--exchange", exchange.place, "--", *sent]
        _run_until_complete(_with_run(spec, run), on_node, jobs, stopped)
        exchange.collect_outputs(document)
    finally:
        exchange.delete()


def _with_run(spec: TrainJobSpec, run: str) -> TrainJobSpec:
    return replace(spec, environment={**spec.environment, RUN: run})


def _run_until_complete(spec: TrainJobSpec, command: Sequence[str], jobs: TrainJobs, stopped: threading.Event) -> None:
    every = float(os.environ.get(INTERVAL) or _INTERVAL)
    for restart in range(spec.restarts + 1):
        name = f"{spec.step[: _NAME_LENGTH - 7]}-{secrets.token_hex(3)}"
        try:
            jobs.create(name, spec, command)
            print(f"TrainJob {name}: {spec.nodes} nodes", flush=True)
            lines = LogFollower(jobs, name, _say)
            state = wait(jobs, name, every, stopped, _say)
            lines.stop()
            if state == "Complete":
                return
            failure = jobs.failure(name, spec.nodes)
        finally:
            _delete(jobs, name)
        if not failure.resumable:
            raise UserError(failure.message)
        if restart < spec.restarts:
            print(f"{failure.message}; starting again, {restart + 1} of at most {spec.restarts} times", flush=True)
    raise Interrupted(f"{failure.message}, {spec.restarts + 1} times")


def _delete(jobs: TrainJobs, name: str) -> None:
    try:
        jobs.delete(name)
    except UserError as error:
        # It must not take the place of the error that is on its way.
        print(f"warning: {error}", file=sys.stderr, flush=True)


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """Reads the command line and runs the step."""
    parser = argparse.ArgumentParser(prog="kubeflow_train_job")
    parser.add_argument("--train-job", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.set())
    with user_errors_end_the_step():
        run_step(TrainJobSpec.loads(given.train_job), given.command[1:], TrainJobs(), stopped)


if __name__ == "__main__":
    main()
