"""The program of a step that is a TrainJob, in its own pod: it creates and follows the job, and returns its outputs.

Data nodes are a RayJob of KubeRay if the cluster has no Kubeflow Trainer. The name of the job is made of the run, the
step and its inputs, and a number that counts its starts. A successor of this pod finds the job by its name and
continues with it. While this process runs it says so in the folder that it shares with the nodes; nodes that hear
nothing for five minutes save their state and end, whatever happened to this pod.

`python3 -m gpu_pipelines.targets.kubeflow.in_cluster.train_job --train-job JSON -- COMMAND…`, with the command of the
step.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.distributed.signals import Signalled, noted
from gpu_pipelines.errors import Interrupted, UserError
from gpu_pipelines.step_environment import RUN
from gpu_pipelines.targets.kubeflow.cluster_api import connected, has_api
from gpu_pipelines.targets.kubeflow.in_cluster.cluster_jobs import Jobs, LogFollower, Starts, answered, wait
from gpu_pipelines.targets.kubeflow.in_cluster.exchange import Exchange, executor_input_of, with_executor_input
from gpu_pipelines.targets.kubeflow.in_cluster.node_choices import run_on_choices
from gpu_pipelines.targets.kubeflow.in_cluster.ray_jobs import RAY_API, RayJobs
from gpu_pipelines.targets.kubeflow.in_cluster.sign_of_life import SignOfLife
from gpu_pipelines.targets.kubeflow.in_cluster.train_job_manifest import RUN_LABEL, STEP_LABEL
from gpu_pipelines.targets.kubeflow.in_cluster.trainer import TRAINER_API, TrainJobs
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import SPEC_ARGUMENT, JobRequest, TrainJobSpec

#: Seconds between two checks of a TrainJob, and seconds without a sign of this process after which its nodes end, for
#: tests.
INTERVAL, SILENCE = "GPU_PIPELINES_TRAIN_JOB_INTERVAL", "GPU_PIPELINES_TRAIN_JOB_SILENCE"
_INTERVAL, _SILENCE = 10.0, 300.0
_NODE = "gpu_pipelines.targets.kubeflow.in_cluster.node"
#: The longest name of a step for which Kubernetes can still name pods, STEP-0123456789-00-node-0-0-abcde, within 63
#: letters.
_STEP_LENGTH = 32
#: Number of names to try while jobs with earlier names are being deleted.
_MOST_NAMES = 100


class Attempts:
    """The TrainJobs of one step of a run; one exists at a time.

    Args:
        spec: their specification.
        run: the run.
        document: the step's executor input, which distinguishes the iterations of a loop.
        jobs: the cluster's jobs.
    """

    def __init__(self, spec: TrainJobSpec, run: str, document: dict[str, Any], jobs: Jobs) -> None:
        # A TrainJob's name begins with a letter.
        step = spec.step if spec.step[:1].isalpha() else f"step-{spec.step}"
        self.name = f"{step[:_STEP_LENGTH]}-{_digest(run, spec.step, document)}"
        self.spec, self._jobs = spec, jobs
        self._labels = {RUN_LABEL: run, STEP_LABEL: self.name}
        self._number = 0

    def existing(self) -> str | None:
        """The TrainJob that an earlier pod of this step created, if it exists."""
        names = [name for name in self._jobs.find(self._labels) if name.rpartition("-")[2].isdecimal()]
        if not names:
            return None
        newest = max(names, key=lambda name: int(name.rpartition("-")[2]))
        self._number = int(newest.rpartition("-")[2])
        return newest

    def create(self, command: Sequence[str]) -> str:
        """Creates the next one; if one with its name is still being deleted, with the name after that.

        If it is called again after an error, it does not create a second one.
        """
        owner = self._jobs.owner()
        for number in range(self._number + 1, self._number + 1 + _MOST_NAMES):
            name = f"{self.name}-{number}"
            created = self._jobs.create(JobRequest(name, self.spec, command, self._labels, owner))
            # It may be this step's, if the answer to its creation was lost.
            if created or name in self._jobs.find(self._labels):
                self._number = number
                return name
        raise UserError(f"There are {_MOST_NAMES} {self._jobs.kind}s {self.name}-….", "Delete those that nobody needs.")


def _digest(run: str, step: str, document: dict[str, Any]) -> str:
    """A digest of a step's inputs and outputs, which a successor of its pod has as well, and no other step."""
    same = _same_for_all_pods(document)
    return hashlib.sha256(json.dumps([run, step, same], sort_keys=True).encode()).hexdigest()[:10]


def _same_for_all_pods(document: dict[str, Any]) -> dict[str, Any]:
    """The executor input without the parts that differ between pods of the step."""
    same = copy.deepcopy(document)
    # KFP's launcher puts the number of the pod into it (`qualifyExecutorLogsURI`).
    same.get("outputs", {}).get("artifacts", {}).pop("executor-logs", None)
    return same


def run_step(spec: TrainJobSpec, command: Sequence[str], jobs: Jobs, stopped: Signalled) -> None:
    """Runs a step as a TrainJob; creates it again if the nodes were taken away and the step can continue.

    Args:
        spec: specification of the TrainJob.
        command: the step.
        jobs: the cluster's jobs.
        stopped: whether this process was interrupted.

    Raises:
        UserError: the step failed; with its own message if it has one.
        Interrupted: it was interrupted, or its nodes were taken away too often.
    """
    document = executor_input_of(command)
    run = os.environ.get(RUN) or secrets.token_hex(8)
    of_run = replace(spec, environment={**spec.environment, RUN: run})
    attempts = Attempts(of_run, run, document, jobs)
    exchange = Exchange(f"{spec.storage}/train-jobs/{run}/{attempts.name}")
    silence = float(os.environ.get(SILENCE) or _SILENCE)
    existing = answered(attempts.existing, interval(), stopped, _say)

    def once(of_choice: TrainJobSpec, look: Callable[[str], None]) -> None:
        """Runs the step on a choice; continues with a TrainJob of the choice that another pod created."""
        nonlocal existing
        attempts.spec, before, existing = of_choice, existing, None
        starts = Starts(jobs, spec.nodes, _say)

        def look_at_both(name: str) -> None:
            look(name)
            starts.look(name)

        _run_until_complete(of_choice, attempts, before, on_node, jobs, exchange, stopped, look_at_both)

    try:
        with SignOfLife(exchange, silence):
            # The TrainJob of another pod is being followed.
            sent = exchange.sent(document) if existing else exchange.send_inputs(document)
            on_node = ["python3", "-m", _NODE, "--exchange", exchange.place, "--silence", f"{silence:g}", "--"]
            on_node += with_executor_input(command, sent)
            if spec.choices:
                # Data nodes, which may be RayJobs, have no choices.
                assert isinstance(jobs, TrainJobs)
                run_on_choices(of_run, run, _same_for_all_pods(document), jobs, stopped, once)
            else:
                starts = Starts(jobs, spec.nodes, _say, tell_of_nodes=True, is_elastic=spec.is_elastic)
                _run_until_complete(spec, attempts, existing, on_node, jobs, exchange, stopped, starts.look)
            exchange.collect_outputs(document)
    finally:
        exchange.delete()


def _run_until_complete(
    spec: TrainJobSpec,
    attempts: Attempts,
    existing: str | None,
    command: Sequence[str],
    jobs: Jobs,
    exchange: Exchange,
    stopped: Signalled,
    look: Callable[[str], None],
) -> None:
    every = interval()
    for restart in range(spec.restarts + 1):
        if not existing:
            exchange.forget_errors(spec.nodes)
        name = existing or answered(partial(attempts.create, command), every, stopped, _say)
        told = "exists already, and continues" if existing else f"{spec.nodes} node{'s' if spec.nodes > 1 else ''}"
        existing = None
        try:
            print(f"{jobs.kind} {name}: {told}", flush=True)
            lines = LogFollower(jobs, name, _say)
            end = partial(_end, exchange.end_of_rank_0 if spec.is_elastic else str, look, name)
            state = wait(jobs, name, every, stopped, _say, end)
            lines.stop()
            if state == "Complete":
                return
            look_back = partial(jobs.failure, name, exchange.errors(spec.nodes), spec.nodes)
            failure = answered(look_back, every, stopped, _say)
        finally:
            _delete(jobs, name)
        if not failure.resumable:
            raise failure.error
        if restart < spec.restarts:
            print(f"{failure.error}; starting again, {restart + 1} of at most {spec.restarts} times", flush=True)
    raise Interrupted(f"{failure.error}, {spec.restarts + 1} times")


def _end(end: Callable[[], str], look: Callable[[str], None], name: str) -> str:
    """The end of a job, if it is known, after a check of it."""
    look(name)
    return end()


def _delete(jobs: Jobs, name: str) -> None:
    try:
        jobs.delete(name)
    except UserError as error:
        # It must not replace the error that is being raised.
        print(f"warning: {error}", file=sys.stderr, flush=True)


def interval() -> float:
    """Seconds between two checks of a job."""
    return float(os.environ.get(INTERVAL) or _INTERVAL)


def _say(line: str) -> None:
    print(line, flush=True)


def jobs_for(spec: TrainJobSpec) -> Jobs:
    """TrainJobs; for data nodes RayJobs of KubeRay, if the cluster has only these.

    Raises:
        UserError: the cluster has neither, or cannot be reached.
    """
    client = connected()
    if not spec.is_elastic or has_api(client, *TRAINER_API):
        return TrainJobs(client)
    if has_api(client, *RAY_API):
        return RayJobs(client)
    raise UserError(
        "The cluster has neither Kubeflow Trainer nor KubeRay, one of which data nodes need.",
        "Install one of them (docs/kubeflow.md), or leave out --data-nodes and --data-strategy.",
    )


def main() -> None:
    """Reads the command line and runs the step."""
    parser = argparse.ArgumentParser(prog="kubeflow_train_job")
    parser.add_argument(SPEC_ARGUMENT, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    with own_process(), noted() as stopped:
        spec = TrainJobSpec.loads(given.train_job)
        jobs = answered(partial(jobs_for, spec), interval(), stopped, _say)
        run_step(spec, given.command[1:], jobs, stopped)


if __name__ == "__main__":
    main()
