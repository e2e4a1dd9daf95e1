"""The program of a search's step in its own pod: it creates an Experiment of Katib, follows it, and deletes it.

The name of the Experiment is made of the run and the folder of the study: a successor of this pod continues with it. It
is deleted when it has ended, when the budget is spent, and when this process has to end; running trials then save their
state.

`python3 -m gpu_pipelines.targets.kubeflow.in_cluster.experiment --train-job JSON --study PLACE --job FILE`
"""

from __future__ import annotations

import argparse
import hashlib
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.distributed.signals import Signalled, noted
from gpu_pipelines.errors import Interrupted, NotFoundError, UserError
from gpu_pipelines.step_environment import RUN
from gpu_pipelines.targets.kubeflow.cluster_api import connected, has_api, service_errors
from gpu_pipelines.targets.kubeflow.in_cluster.cluster_jobs import ClusterObjects, Misses, Starts, answered
from gpu_pipelines.targets.kubeflow.in_cluster.experiment_manifest import command_of_trial, experiment_of
from gpu_pipelines.targets.kubeflow.in_cluster.train_job import interval
from gpu_pipelines.targets.kubeflow.in_cluster.train_job_manifest import RUN_LABEL, STEP_LABEL
from gpu_pipelines.targets.kubeflow.in_cluster.trainer import TrainJobs
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import SPEC_ARGUMENT, JobRequest, TrainJobSpec
from gpu_pipelines.tuning.service.documents import StudyDocuments
from gpu_pipelines.tuning.service.records import RUNNING, Price, Records
from gpu_pipelines.tuning.service.study import ServiceStudy

#: Group and version of Katib's API.
KATIB_API = ("kubeflow.org", "v1beta1")
#: Counts of trials, by the fields of an Experiment's status.
_COUNTS = {
    "trialsRunning": "running",
    "trialsSucceeded": "done",
    "trialsEarlyStopped": "ended early",
    "trialsFailed": "failed",
    "trialMetricsUnavailable": "without a loss",
}


class Experiments(ClusterObjects):
    """Experiments; arguments as for `ClusterObjects`. The pod of a Suggestion with its name chooses values."""

    kind, api, pod_label = "Experiment", KATIB_API, "katib.kubeflow.org/suggestion"

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        #: Kind of its trials.
        self.trials = TrainJobs(client)

    def create(self, job: JobRequest, study: ServiceStudy) -> bool:
        """Creates an Experiment, owned by the object that owns this pod; False if its name is taken.

        Raises:
            UserError: the cluster refuses it, or lacks what it needs.
        """
        with service_errors(
            f"Creating the Experiment {job.name}",
            f"Look whether Katib may create TrainJobs, Kubeflow Trainer has the runtime {job.spec.runtime}, and the "
            "step's service account may create Experiments: docs/kubeflow.md.",
        ):
            kind = self._client.get_runtime(job.spec.runtime).kind.value
            return self._create(experiment_of(replace(job, owner=self.owner()), study, kind))

    def status(self, name: str) -> dict[str, Any]:
        """Katib's status of an Experiment.

        Raises:
            UserError: it is gone, or the cluster cannot be reached.
        """
        return dict(self._get(name).get("status") or {})

    def is_ending(self, name: str) -> bool:
        """Whether an Experiment is being deleted, or is gone.

        Raises:
            UserError: the cluster cannot be reached.
        """
        try:
            return "deletionTimestamp" in self._get(name)["metadata"]
        except NotFoundError:
            return True


def run(spec: TrainJobSpec, place: str, experiments: Experiments, stopped: Signalled) -> str:
    """Carries out a study, or continues with the Experiment that an earlier pod created.

    Args:
        spec: specification of a trial's TrainJob.
        place: folder of the study.
        experiments: the cluster's Experiments.
        stopped: whether this process was interrupted.

    Returns:
        The name of the Experiment.

    Raises:
        UserError: it failed, and no trial has a loss.
        Interrupted: this process was interrupted.
    """
    documents = StudyDocuments(place)
    study = ServiceStudy.load(documents)
    run_name = os.environ.get(RUN, "")
    name = f"study-{hashlib.sha256(f'{run_name} {place}'.encode()).hexdigest()[:10]}"
    labels = {STEP_LABEL: name, **({RUN_LABEL: run_name} if run_name else {})}
    job = JobRequest(name, spec, command_of_trial(study, place), labels)
    create, look = partial(experiments.create, job, study), partial(experiments.is_ending, name)
    while not (is_new := answered(create, interval(), stopped, _say)) and answered(look, interval(), stopped, _say):
        # An interrupted pod of this step has deleted it, and its trials are saving their state.
        print(f"Experiment {name}: is being deleted; waiting for its end", flush=True)
        if stopped.wait(interval()):
            raise Interrupted("the step was interrupted")
    told = f"{study.request.trials} trials, {study.request.parallel} at a time" if is_new else "exists, and continues"
    print(f"Experiment {name}: {told}", flush=True)
    try:
        failure = _followed(experiments, name, spec, study, Records(documents), stopped)
    finally:
        try:
            answered(partial(experiments.delete, name), interval(), stopped, _say)
        except (UserError, Interrupted) as error:
            # It must not replace the result of the search, or the error that is being raised.
            print(f"warning: {error}", flush=True)
    if failure and not any(each.loss is not None for each in Records(documents).all()):
        raise failure
    if failure:
        print(f"warning: {failure.problem} The results of its trials count.", flush=True)
    return name


def _followed(
    experiments: Experiments,
    name: str,
    spec: TrainJobSpec,
    study: ServiceStudy,
    records: Records,
    stopped: Signalled,
) -> UserError | None:
    """Waits for the end of an Experiment or of the budget, and reports why pods do not start; returns why it failed."""
    starts: dict[str, Starts] = {}
    chooser = Starts(experiments, 1, _say, tell_of_nodes=True)
    last, misses = "", Misses(_say)
    price = Price(study.budget, study.dollars_per_hour, study.request.parallel)
    while True:
        try:
            status = experiments.status(name)
            known = records.all()
            # The record of a trial that Katib has stopped stays at RUNNING.
            alive = {*status.get("runningTrialList", []), *status.get("pendingTrialList", [])}
            is_spent = price.is_spent(known) and not any(
                each.outcome == RUNNING and each.trial in alive for each in known
            )
            misses.forget()
        except UserError as error:
            misses.add(error)
            status, alive, is_spent = {}, set(), False
        counts = ", ".join(f"{status[field]} {said}" for field, said in _COUNTS.items() if status.get(field))
        if counts and counts != last:
            print(f"Experiment {name}: {counts}", flush=True)
            last = counts
        true = {each["type"]: each for each in status.get("conditions", []) if each.get("status") == "True"}
        if "Failed" in true:
            said = true["Failed"].get("message") or "no reason is given"
            return UserError(f"The Experiment {name} has failed: {said}", "Look at the logs of its trials.")
        if "Succeeded" in true:
            return None
        if is_spent:
            print(f"Experiment {name}: the budget of {price.budget:g} dollars is spent", flush=True)
            return None
        try:
            chooser.look(name)
            for trial in sorted(alive):
                if trial not in starts:
                    starts[trial] = Starts(experiments.trials, spec.nodes, _say, tell_of_nodes=True)
                starts[trial].look(trial)
        except UserError as error:
            return error
        if stopped.wait(interval()):
            raise Interrupted("the step was interrupted, and its Experiment is deleted")


def _say(line: str) -> None:
    print(line, flush=True)


def experiments_here() -> Experiments:
    """The Experiments of the cluster.

    Raises:
        UserError: the cluster has no Katib, or cannot be reached.
    """
    client = connected()
    if not has_api(client, *KATIB_API):
        raise UserError(
            "The cluster has no Katib.",
            "Install it (docs/kubeflow.md), or compile without --katib: then one pod searches.",
        )
    return Experiments(client)


def main() -> None:
    """Reads the command line and carries out the study."""
    parser = argparse.ArgumentParser(prog="kubeflow_experiment")
    parser.add_argument(SPEC_ARGUMENT, required=True)
    parser.add_argument("--study", required=True)
    parser.add_argument("--job", required=True)
    given = parser.parse_args()
    with own_process(), noted() as stopped:
        experiments = answered(experiments_here, interval(), stopped, _say)
        name = run(TrainJobSpec.loads(given.train_job), given.study, experiments, stopped)
        Path(given.job).parent.mkdir(parents=True, exist_ok=True)
        Path(given.job).write_text(name, encoding="utf-8")


if __name__ == "__main__":
    main()
