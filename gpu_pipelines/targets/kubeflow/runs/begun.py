"""Runs on Kubeflow Pipelines that have begun: following them, ending them, trying again, and what they took."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from gpu_pipelines.accelerators.spent import spent_on
from gpu_pipelines.errors import UnavailableError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.kubeflow.connection import connect, service_errors
from gpu_pipelines.targets.kubeflow.runs.failure import reason_of, waits_of
from gpu_pipelines.targets.kubeflow.runs.machine_times import NO_PRICES, NOT_COUNTED, times_of_run
from gpu_pipelines.targets.kubeflow.runs.state import (
    ENDS,
    RunState,
    StepState,
    look,
    read_run,
    run_page,
    state_of,
    time_of,
)
from gpu_pipelines.targets.runs.account import RunAccount, StepAccount
from gpu_pipelines.targets.runs.earlier import require_resumable
from gpu_pipelines.targets.steps import Observer, StepRecord

_MISSES = 5
#: The label of the run's pods in GKE's bill, with the cluster's cost allocation switched on:
#: https://cloud.google.com/kubernetes-engine/docs/how-to/cost-allocations.
RUN_LABEL = "k8s-label/pipeline/runid"


def follow(run_id: str, settings: ProjectSettings, observer: Observer, every: float) -> RunState:
    """Waits for the end of a run and shows it.

    Args:
        run_id: its id.
        settings: address and namespace.
        observer: gets the beginning and end of steps, and messages about pods that do not start.
        every: seconds between two reads.

    Raises:
        UserError: there is no such run, or the service could not be reached several times in a row.
    """
    client: Any = None
    began, ended, misses, waits = set[str](), dict[str, StepState](), 0, dict[str, str]()
    while True:
        try:
            client = client or connect(settings)
            found, spec = read_run(client, run_id)
            run, misses = state_of(found, spec), 0
        except UnavailableError as error:
            misses += 1
            # If nothing has answered yet and nobody listens, the address is wrong or there is no port-forward.
            if misses >= _MISSES or (client is None and not error.status):
                raise
            time.sleep(every)
            continue
        for step in run.steps:
            if step.state not in ("waiting", "not triggered") and step.name not in began:
                began.add(step.name)
                observer.step_began(step.name)
            if step.state in ENDS and step.name not in ended:
                ended[step.name] = _with_reason(client, run_id, step)
                observer.step_ended(StepRecord(step.name, step.state, step.seconds, message=ended[step.name].error))
        before, waits = waits, waits_of(client, run_id) if _has_pod_that_waits(found) else {}
        for name, why in waits.items():
            if why != before.get(name):
                observer.step_said(name, f"its pod does not start: {why}")
        if run.ended:
            return replace(run, steps=tuple(ended.get(step.name, step) for step in run.steps))
        time.sleep(every)


def _has_pod_that_waits(run: Any) -> bool:
    details = (run.run_details.task_details or []) if run.run_details else []
    return any(detail.state == "PENDING" for detail in details)


def _with_reason(client: Any, run_id: str, step: StepState) -> StepState:
    return replace(step, error=reason_of(client, run_id, step.name)) if step.state == "failed" else step


def terminate(run_id: str, settings: ProjectSettings) -> None:
    """Ends a run and its running steps.

    Raises:
        UserError: there is no such run, or it has ended.
    """
    client = connect(settings)
    with service_errors(f"Cancelling the run {run_id}"):
        client.terminate_run(run_id)


def account(run_id: str, settings: ProjectSettings) -> RunAccount:
    """The state and the cost of a run.

    Args:
        run_id: its id.
        settings: address and namespace; the region of the cluster, and the table of billing export.

    Raises:
        UserError: there is no such run, or the service cannot be reached.
    """
    client = connect(settings)
    run, spec = read_run(client, run_id)
    state = state_of(run, spec)
    seconds = {step.name: step.seconds for step in state.steps if step.seconds}
    spent = spent_on(times_of_run(client, run_id, spec, seconds, settings.region or ""), NOT_COUNTED)
    if not settings.region:
        spent = replace(spent, note=NO_PRICES)
    failed = next((step for step in state.steps if step.state == "failed"), None)
    found = RunAccount(
        run=run_id,
        target="kubeflow",
        state=state.state,
        steps=[StepAccount(step.name, step.state, step.seconds) for step in state.steps],
        spent=spent,
        began=time_of(run.created_at),
        ended=(time_of(run.finished_at) or datetime.now(timezone.utc)) if state.ended else None,
        error=f"{failed.name} failed: {failed.error or state.error}" if failed else state.error,
        page=run_page(run_id, settings),
    )
    return found.with_bill(RUN_LABEL, run_id, settings)


def require_retriable(run_id: str, settings: ProjectSettings) -> None:
    """Checks that the service can start the failed steps of a run again.

    Raises:
        UserError: it is running, has succeeded, or cannot be read.
    """
    run = look(connect(settings), run_id)
    require_resumable(run_id, run.state, run.ended)


def retry(run_id: str, settings: ProjectSettings) -> None:
    """Starts the failed steps of a run again.

    Raises:
        UserError: the service refuses it, or cannot be reached.
    """
    client = connect(settings)
    lost = f"Check whether it continues: {run_page(run_id, settings)}."
    with service_errors(f"Beginning the failed steps of {run_id} again", lost):
        # kfp.Client has no method for it.
        client._run_api.run_service_retry_run(run_id)
