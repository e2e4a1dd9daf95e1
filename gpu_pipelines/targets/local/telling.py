"""Sends messages about the end of a run on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_pipelines.errors import UserError, first_line
from gpu_pipelines.notifications.message import Message, metrics_from
from gpu_pipelines.notifications.sending import tell
from gpu_pipelines.targets.steps import last_lines

if TYPE_CHECKING:
    from gpu_pipelines.notifications.recipients import Recipients
    from gpu_pipelines.targets.runs.record import RunRecord
    from gpu_pipelines.targets.steps import StepRecord


def message_of(record: RunRecord, link: str = "", price: float = 0.0) -> Message:
    """The message about a run.

    Args:
        record: record of the run.
        link: page with more; left out, the run's report.
        price: price of the machine, US dollars an hour; 0 for this machine.
    """
    hours = record.seconds / 3600
    evaluation = record.evaluation
    failed = record.ended_by
    return Message(
        outcome=record.outcome,
        pipeline=record.pipeline,
        run=record.run_id,
        reason=f"{failed.name}: {failed.message or last_line(record.directory, failed)}" if failed else record.why,
        model=record.registered,
        metrics=metrics_from(evaluation.test["metrics"], evaluation.select_by) if evaluation else (),
        gates=evaluation.gates_not_passed if evaluation else (),
        cost=f"about ${price * hours:,.2f}, {hours:.2f} h at ${price:,.2f} an hour" if price else "",
        link=link or str(record.report.absolute()),
        ended=_now(),
    )


def last_line(directory: Path, failed: StepRecord) -> str:
    """The last line of a step that left no error of its own.

    Args:
        directory: directory of the run.
        failed: the step.
    """
    return next((line.strip() for line in last_lines(directory / str(failed.log), 1)), "it left no error")


def tell_of(record: RunRecord, recipients: Recipients | None, link: str = "", price: float = 0.0) -> None:
    """Sends the message about a run's end; see `gpu_pipelines.notifications.sending.tell`."""
    if recipients is not None:
        message = message_of(record, link, price)
        tell(message, recipients.notify, recipients.mail, about_nothing_new=recipients.about_nothing_new)


@contextmanager
def told_of_errors(
    pipeline: str, recipients: Recipients | None, outcome: str = "failed"
) -> Iterator[Callable[[RunRecord], None]]:
    """Sends a message about the run that ends inside the context, or about the error that ends it.

    Args:
        pipeline: its name.
        recipients: who gets it; None for nobody.
        outcome: state of the run after an error.

    Returns:
        A function to call with the record of the run, if there is one.
    """
    try:
        yield lambda record: tell_of(record, recipients)
    except BaseException as error:
        if recipients is not None:
            reason = error.problem if isinstance(error, UserError) else first_line(error)
            came = "interrupted" if isinstance(error, KeyboardInterrupt) else outcome
            tell(Message(came, pipeline, reason=reason, ended=_now()), recipients.notify, recipients.mail)
        raise


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
