"""The step `send_message`: the message at the end of a run, whatever its outcome."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from gpu_pipelines.accelerators.spent import dollars
from gpu_pipelines.notifications.message import Message, metrics_from
from gpu_pipelines.notifications.notes import EVALUATED, LOOKED, TRAINED, UPLOADED, left
from gpu_pipelines.notifications.sending import tell
from gpu_pipelines.notifications.settings import MessageSettings

_RUN_OF_VERTEX = re.compile(r"projects/([^/]+)/locations/([^/]+)/pipelineJobs/([^/]+)")
_ENDS = {"FAIL": "failed", "ERROR": "failed", "CANCEL": "cancelled"}


def run(settings: MessageSettings, *, status: Any, pipeline: str = "") -> None:
    """Runs the step. It succeeds even if no message gets through: a message changes nothing in a run.

    Args:
        settings: the parameters that the component declares.
        status: `kfp.dsl.PipelineTaskFinalStatus` of the run's tasks.
        pipeline: the name of the pipeline.
    """
    try:
        for problem in settings.problems():
            print(f"warning: {problem}", flush=True)
        message = message_of(settings, status, left(settings.outcome_uri), pipeline)
        print(message.text, flush=True)
        if not (message.is_eventful or settings.notify_nothing_new):
            print("no message was sent: there is nothing new", flush=True)
        tell(message, settings.notify, settings.mail, about_nothing_new=settings.notify_nothing_new)
    except Exception as error:
        # Without its text, which may contain anything.
        print(f"warning: no message was sent: {type(error).__name__}", flush=True)


def message_of(
    settings: MessageSettings, status: Any, notes: Mapping[str, Mapping[str, Any]], pipeline: str
) -> Message:
    """The message about a run.

    Args:
        settings: name and page of the run, and the price of its machines.
        status: its end, as KFP gives it to an exit handler.
        notes: the notes of its steps, by step.
        pipeline: the name of the pipeline.
    """
    state, name = str(getattr(status, "state", "")).upper(), settings.run_name
    resource = _RUN_OF_VERTEX.fullmatch(str(getattr(status, "pipeline_job_resource_name", "") or name))
    outcome = next((word for part, word in _ENDS.items() if part in state), "")
    reason = str(getattr(status, "error_message", "") or "") if outcome else ""
    uploaded, evaluated, looked = (notes.get(step, {}) for step in (UPLOADED, EVALUATED, LOOKED))
    if not outcome:
        outcome, reasons = (
            str(uploaded.get("outcome", "")),
            [str(note.get("reason", "")) for note in (looked, uploaded)],
        )
        reason = "; ".join(filter(None, reasons))
        if not outcome:
            outcome = reason.partition(":")[0] if looked and not looked.get("retrain") else "finished"
    metrics = metrics_from(evaluated.get("metrics", {}), str(evaluated.get("select_by", "")))
    return Message(
        outcome=outcome,
        pipeline=pipeline,
        run=resource[3] if resource else name.rpartition("/")[2],
        reason=reason,
        model=str(uploaded.get("model", "")),
        metrics=metrics,
        gates=[str(gate) for gate in evaluated.get("gates_not_passed", [])],
        cost=_cost(settings, notes, has_failed=outcome in _ENDS.values()),
        link=_page(resource) if resource else settings.run_page,
        ended=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _page(resource: re.Match[str]) -> str:
    project, location, job = resource.groups()
    # As in targets/vertex/console.py.
    return f"https://console.cloud.google.com/vertex-ai/locations/{location}/pipelines/runs/{job}?project={project}"


def _cost(settings: MessageSettings, notes: Mapping[str, Mapping[str, Any]], *, has_failed: bool) -> str:
    """The cost of the training's machines at list prices, as far as it is known."""
    price = settings.dollars_per_hour
    if LOOKED in notes and not notes[LOOKED].get("retrain"):
        return "no machine for a training was used"
    if not price:
        return ""
    if seconds := notes.get(TRAINED, {}).get("seconds"):
        return f"about {dollars(price * seconds / 3600)}, {seconds / 3600:.2f} h of training at ${price:,.2f} an hour"
    hours = _hours_since(settings.began)
    if hours is None or not has_failed:
        return f"not known; the training's machines cost about ${price:,.2f} an hour"
    return (
        f"at most about {dollars(price * hours)}: {hours:.2f} h since the run began, ${price:,.2f} an hour of training"
    )


def _hours_since(began: str) -> float | None:
    try:
        moment = datetime.fromisoformat(began.replace("Z", "+00:00"))
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return max((datetime.now(timezone.utc) - moment).total_seconds(), 0.0) / 3600
