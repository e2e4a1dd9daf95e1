"""State and cost of a run, in the form common to all targets: for people, for programs, and for a tracker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpu_pipelines.accelerators.spent import Spent, dollars
from gpu_pipelines.errors import UserError, first_line, named
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.reports.durations import format_seconds
from gpu_pipelines.targets.messages import Outcome

if TYPE_CHECKING:
    from gpu_pipelines.terminal import Table
    from gpu_pipelines.tracking.tracker import TrackedRun


@dataclass(frozen=True)
class StepAccount:
    """A step: its name, its state, and the seconds that it has run."""

    name: str
    state: str
    seconds: float


@dataclass(frozen=True)
class RunAccount:
    """A run that is elsewhere.

    Attributes:
        run: its name.
        target: where it is.
        state: succeeded, failed, cancelled, running and the like.
        steps: the known ones, in order.
        spent: its cost.
        began: when it began; None if it has not.
        ended: when it ended; None while it is running.
        error: why it failed; empty if it did not.
        page: page with more about it; empty for none.
        tracking: the tracker that it is shown in; empty for none.
        tracked: its id in the tracker; None if that is not known.
    """

    run: str
    target: str
    state: str
    steps: Sequence[StepAccount]
    spent: Spent
    began: datetime | None = None
    ended: datetime | None = None
    error: str = ""
    page: str = ""
    tracking: str = ""
    tracked: TrackedRun | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing will change any more, except the bill."""
        return self.ended is not None

    def with_bill(self, key: str, value: str, settings: ProjectSettings) -> RunAccount:
        """The account with the bill for a label, if the settings name a table of billing export.

        If the bill cannot be read, the account says so.

        Args:
            key: key of the label of the run's resources.
            value: value of the label; empty if it is not known.
            settings: project and table.
        """
        if not (settings.billing_table and self.began and value):
            return self
        from gpu_pipelines.google_cloud.billing_export import billed_for

        table, project = settings.billing_table, str(settings.project)
        try:
            billed = billed_for(key, value, self.began, self.ended, table, project)
        except UserError as error:
            return replace(self, spent=replace(self.spent, note=str(error)))
        return replace(self, spent=replace(self.spent, billed=billed))

    @property
    def told(self) -> list[str]:
        """The cost, line by line."""
        spent = self.spent
        billed = [spent.billed.told] if spent.billed else []
        return [spent.told, *billed, *([spent.note] if spent.note and spent.lines else [])]

    def to_json(self) -> dict[str, Any]:
        """The account as a JSON object."""
        return {
            "run": self.run,
            "target": self.target,
            "state": self.state,
            "began": self.began.isoformat() if self.began else None,
            "ended": self.ended.isoformat() if self.ended else None,
            "steps": [vars(step) for step in self.steps],
            "error": self.error,
            "page": self.page,
            "cost": self.spent.to_json(),
        }

    def lines(self) -> list[str | Table]:
        """The run for people: its state, its steps, and its machines with their prices."""
        from gpu_pipelines.terminal import Column, Table

        took = f", {format_seconds((self.ended - self.began).total_seconds())}" if self.began and self.ended else ""
        since = f" from {self.began:%Y-%m-%dT%H:%M} UTC" if self.began else ""
        steps = Table("step", "status", Column.number("took"))
        for step in self.steps:
            steps.add_row(step.name, step.state, format_seconds(step.seconds) if step.seconds else "")
        found: list[str | Table] = [f"{self.run} on {self.target}: {self.state}{took}{since}"]
        found += [self.error] if self.error else []
        found += ["", steps] if self.steps else []
        found += ["", *self.told]
        if self.spent.lines:
            found += ["", self._machines()]
            found += [f"left out: {', '.join(self.spent.left_out)}"] if self.spent.left_out else []
        return [*found, *([f"console: {self.page}"] if self.page else [])]

    def _machines(self) -> Table:
        from gpu_pipelines.terminal import Column, Table

        table = Table(
            "step",
            Column("machines", spare=1),
            Column("bought", spare=2),
            Column.number("hours"),
            Column.number("an hour"),
            Column.number("cost"),
            Column.text("note"),
        )
        for line in self.spent.lines:
            per_hour = "" if line.usd_per_hour is None or line.time.free else dollars(line.usd_per_hour)
            usd = "?" if line.usd is None else dollars(line.usd)
            hours = f"{line.time.hours:.4f}" if line.time.hours < 0.1 else f"{line.time.hours:,.2f}"
            bought = f"{line.time.strategy}, {line.time.region}"
            table.add_row(line.time.step, line.time.title, bought, hours, per_hour, usd, line.why)
        return table


def with_cost(outcome: Outcome, account: Callable[[], RunAccount], warn: Callable[[str], None]) -> Outcome:
    """The outcome of a run with its cost, which its tracker gets as well.

    An unknown cost is a warning, not an error.

    Args:
        outcome: without it.
        account: returns the account.
        warn: called with each problem.
    """
    try:
        found = account()
    except UserError as error:
        warn(f"the cost of the run is not known: {first_line(error)}")
        return outcome
    tell_tracker(found, warn)
    document = {**outcome.document, "cost": found.spent.to_json()}
    # The result of a run comes last, the reason of a failure first.
    is_good = outcome.state == "succeeded"
    lines = [*found.told, *outcome.lines] if is_good else [*outcome.lines, *found.told]
    return replace(outcome, lines=lines, document=document)


def tell_tracker(account: RunAccount, warn: Callable[[str], None]) -> None:
    """Logs the cost of a run to its tracker; if that is not available, it warns.

    Args:
        account: account of a run that has ended.
        warn: called with each problem.
    """
    if not (account.tracking and account.tracked and account.has_ended and account.spent.lines):
        return
    from gpu_pipelines.tracking.trackers import NONE, tracker_for

    if account.tracking == NONE:
        return
    name = account.tracking.partition(":")[0]
    try:
        tracker = tracker_for(account.tracking)
        tracker.begin(account.tracked)
        tracker.log_figures(account.spent.figures())
        tracker.log_parameters({"prices_of": account.spent.as_of})
        tracker.end(account.state == "succeeded")
    except Exception as error:  # any client's
        warn(f"{name} did not get the cost of the run: {named(error)[:200]}")
