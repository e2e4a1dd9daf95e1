"""A step that tries one kind of node after the other: each choice is a TrainJob, which is gone before the next.

GKE reports in an event of a pod that it cannot create a node for it: `FailedScaleUp` (Compute Engine has no machine, or
the project no quota) or `NotTriggerScaleUp` (no node pool can grow for it). A pod without a node and without such an
event waits for a quarter of an hour: the cluster may have no autoscaler.
https://cloud.google.com/kubernetes-engine/docs/troubleshooting/cluster-autoscaler-scale-up
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.cost import dollars_per_hour
from gpu_pipelines.accelerators.fallback import named
from gpu_pipelines.distributed.signals import Signalled
from gpu_pipelines.errors import Interrupted, NoMachinesError, QuotaExceededError, UnavailableError, UserError
from gpu_pipelines.step_environment import TRIES
from gpu_pipelines.targets.fallback.tries import (
    FAILED,
    FOLDER,
    INTERRUPTED,
    NO_CAPACITY,
    NO_QUOTA,
    SENT,
    SUCCEEDED,
    TOO_DEAR,
    Choice,
    Tries,
    Try,
    tries_at,
)
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import TrainJobSpec
from gpu_pipelines.targets.kubeflow.pod_starts import patience

if TYPE_CHECKING:
    from gpu_pipelines.targets.kubeflow.in_cluster.trainer import TrainJobs

#: Seconds for a TrainJob and its pods to be gone; the pods get SIGTERM and half a minute.
_LONGEST_END = 600.0
_QUOTA = re.compile(r"quota", re.IGNORECASE)


def choice_of(plan: AcceleratorPlan, spec: TrainJobSpec) -> Choice:
    """A plan in the form for the step's pod; `spec` is the TrainJob on it."""
    machines = {name: asdict(spec)[name] for name in ("needs", "environment", "runtime", "restarts", "hours")}
    return Choice(named(plan), plan.region or "", dollars_per_hour(plan), plan.hours, machines)


def on_choice(spec: TrainJobSpec, choice: Choice, tried: str) -> TrainJobSpec:
    """The TrainJob of a step on a choice.

    Args:
        spec: the TrainJob of the first choice.
        choice: the nodes.
        tried: the earlier tries, for its report.
    """
    of_first = spec.choices[0]["machines"]["environment"]
    kept = {name: value for name, value in spec.environment.items() if of_first.get(name) != value}
    content = {**spec.content(), **choice.machines}
    content["environment"] = {**kept, **choice.machines["environment"], TRIES: tried}
    return TrainJobSpec.of(content)


def run_on_choices(
    spec: TrainJobSpec,
    run: str,
    document: Mapping[str, Any],
    jobs: TrainJobs,
    stopped: Signalled,
    run_once: Callable[[TrainJobSpec, Callable[[str], None]], None],
) -> None:
    """Runs a step on the first choice that has nodes, and on the next if they are taken away.

    Args:
        spec: specification of the TrainJob, with its choices.
        run: the run.
        document: the step's executor input, without the parts that differ between its pods.
        jobs: the cluster's TrainJobs.
        stopped: whether this process was interrupted.
        run_once: runs a TrainJob until it is complete, and deletes it; calls its argument, with the TrainJob's name, at
            each check.

    Raises:
        NoMachinesError: there are no nodes for any of them, or the money is spent.
        UserError: the step failed.
        Interrupted: it was interrupted.
    """
    choices = Choice.each_of(spec.choices)
    tries = tries_at(f"{spec.storage}/{FOLDER}/{run}", spec.step, document, choices, spec.max_price)
    while True:
        made = tries.current or tries.begin()
        if made is None:
            continue
        print(f"{made.told}: choice {made.choice + 1} of {len(choices)}", flush=True)
        watched = _Watched(tries, made, jobs, stopped)
        try:
            run_once(on_choice(spec, choices[made.choice], tries.for_report()), watched.look)
        except (NoMachinesError, QuotaExceededError) as error:
            watched.require_gone()
            state = TOO_DEAR if watched.is_spent else NO_QUOTA if isinstance(error, QuotaExceededError) else NO_CAPACITY
            watched.end(state, error.problem)
            if watched.is_spent:
                tries.refuse(tries.too_dear().problem)
                raise
        except Interrupted as error:
            if stopped:
                watched.end(INTERRUPTED, error.message)
                raise
            # Its nodes were taken away again and again.
            watched.require_gone()
            watched.end(NO_CAPACITY, error.message)
        except UserError as error:
            watched.end(FAILED, error.problem)
            raise
        else:
            watched.end(SUCCEEDED, "")
            return


class _Watched:
    """The TrainJob of a try, checked while it runs."""

    def __init__(self, tries: Tries, made: Try, jobs: TrainJobs, stopped: Signalled) -> None:
        self._tries, self._made, self._jobs, self._stopped = tries, made, jobs, stopped
        self._waits_since: float | None = None
        self.is_spent = False

    def look(self, name: str) -> None:
        """Records that it runs, and reports if there is no node for it, or no money.

        Raises:
            NoMachinesError: there is no node or no money.
            QuotaExceededError: the project has no quota for one.
        """
        if self._tries.made[-1].job != name:
            self._tries.change(state=SENT, job=name)
        if self._tries.made[-1].began is None and self._jobs.is_running(name):
            self._tries.change(began=time.time())
        if self._tries.is_spent:
            self.is_spent = True
            raise NoMachinesError(f"{self._made.told} costs more than --max-price leaves.")
        pods, said = self._jobs.without_node(name)
        if not pods:
            self._waits_since = None
            return
        if said:
            raise (QuotaExceededError if _QUOTA.search(said) else NoMachinesError)(said)
        self._waits_since = self._waits_since or time.monotonic()
        if time.monotonic() - self._waits_since > patience():
            raise NoMachinesError(f"no node was found for {', '.join(pods)} in {patience():.0f} s")

    def end(self, state: str, reason: str) -> None:
        """Records how it ended."""
        self._tries.change(state=state, reason=reason, ended=time.time())

    def require_gone(self) -> None:
        """Waits until it is gone with its pods, so that two never cost at once.

        Raises:
            UserError: it is still there.
        """
        name, until = self._tries.made[-1].job, time.monotonic() + _LONGEST_END
        while name and not self._is_gone(name):
            if time.monotonic() > until:
                raise UserError(f"The TrainJob {name} is still there.", f"Delete it: kubectl delete trainjob {name}.")
            self._stopped.wait(1.0)

    def _is_gone(self, name: str) -> bool:
        try:
            return self._jobs.is_gone(name)
        except UnavailableError:
            return False


def with_choices(spec: TrainJobSpec, choices: list[Choice], max_price: float | None) -> TrainJobSpec:
    """The TrainJob of a step with its choices."""
    return replace(spec, choices=tuple(asdict(each) for each in choices), max_price=max_price)
