"""A run elsewhere as it is told: to its tracker, on a page, and where its cost is not known."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from command_line import command

from gpu_pipelines.accelerators.spent import Billed, MachineTime, Planned, Spent, spent_on
from gpu_pipelines.errors import UserError
from gpu_pipelines.reports.account_page import write_account_page
from gpu_pipelines.reports.run_report import write_run_report
from gpu_pipelines.targets.local.runs import NOTHING_TO_PAY
from gpu_pipelines.targets.messages import Outcome
from gpu_pipelines.targets.runs.account import RunAccount, StepAccount, tell_tracker, with_cost
from gpu_pipelines.targets.runs.record import RunRecord
from gpu_pipelines.tracking.tracker import TrackedRun

BEGAN = datetime(2026, 11, 20, 8, tzinfo=timezone.utc)
L4 = MachineTime("train-model", "1", "g2-standard-8", "l4", 1, 1, 7200.0, "spot", "us-central1")


@pytest.fixture
def account() -> RunAccount:
    spent = spent_on([L4, replace(L4, step="prepare <data>", machine="")], planned={"train-model": Planned(0.9, 24.0)})
    spent = replace(spent, billed=Billed(1.25, "EUR", "2026-11-20T10:00:00", "run=1", {"L4 & co": 1.25}))
    return RunAccount(
        run="run-1",
        target="vertex",
        state="succeeded",
        steps=[StepAccount("train-model", "succeeded", 7200.0)],
        spent=spent,
        began=BEGAN,
        ended=BEGAN + timedelta(hours=3),
    )


def test_a_tracker_that_is_away_or_a_cost_that_is_not_known_is_a_warning(account: RunAccount) -> None:
    warned: list[str] = []
    tell_tracker(replace(account, tracking="nobody", tracked=TrackedRun("a", "b")), warned.append)
    tell_tracker(replace(account, tracking="nobody", tracked=None), warned.append)
    tell_tracker(replace(account, tracking="nobody", tracked=TrackedRun("a", "b"), ended=None), warned.append)
    assert len(warned) == 1
    assert warned[0].startswith("nobody did not get the cost of the run: ")

    def fails() -> RunAccount:
        raise UserError("The service is away.", "Try again.")

    outcome = Outcome("succeeded", ["succeeded"], {"a": 1})
    assert with_cost(outcome, fails, warned.append) == outcome
    assert warned[1] == "the cost of the run is not known: The service is away."
    told = with_cost(outcome, lambda: account, warned.append)
    assert told.lines[-1] == "succeeded"
    assert str(told.lines[0]).startswith("cost: at least $")
    assert told.document["cost"]["billed"]["amount"] == 1.25


def test_the_page_has_figures_machines_plan_and_bill_and_is_no_program(account: RunAccount, tmp_path: Path) -> None:
    write_account_page(account, tmp_path / "cost.html")
    page = (tmp_path / "cost.html").read_text()
    for text in ("g2-standard-8 with l4:1", "$21.60", "1.25 EUR", "L4 &amp; co", "prepare &lt;data&gt;", "unknown"):
        assert text in page
    assert "<data>" not in page
    with pytest.raises(UserError, match="cannot be written"):
        write_account_page(account, tmp_path / "cost.html" / "below.html")


def test_nothing_has_run_yet() -> None:
    assert RunAccount("a", "vertex", "pending", [], Spent()).told == ["cost: no machine has run"]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("training: the source a.csv has changed", "Trained because the source a.csv has changed."),
        ("nothing new: the source a.csv is as it was", "Trained though the source a.csv is as it was."),
    ],
)
def test_the_report_says_why_a_model_was_trained(tmp_path: Path, reason: str, told: str) -> None:
    """A pipeline of one's own may train in either case."""
    given = {"parameters": {}, "accelerator": "", "dependencies": {}}
    record = RunRecord("a-run", "mine", BEGAN.isoformat(), **given, directory=tmp_path, status="succeeded")
    record.model, record.reason = {"model_name": "a", "version": 1.0}, reason
    write_run_report(record)
    assert told in record.report.read_text()


def test_a_run_here_costs_nothing_and_says_so(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "a-run"
    directory.mkdir(parents=True)
    given = {"parameters": {}, "accelerator": "", "dependencies": {}}
    record = RunRecord("a-run", "mine", BEGAN.isoformat(), **given, directory=directory, status="succeeded")
    record.cost = NOTHING_TO_PAY
    record.save()
    write_run_report(record)
    assert NOTHING_TO_PAY in (directory / "report.html").read_text()
    shown = command("runs", "show", "a-run", cwd=tmp_path)
    assert f"cost: {NOTHING_TO_PAY}" in shown.out, shown.err
    assert command("runs", "show", "a-run", "--report", "a.html", cwd=tmp_path).status == 2
    elsewhere = command("runs", "show", "a-run", "--billing-table", "project-1.d.t", cwd=tmp_path)
    assert "The target local has no --billing-table" in elsewhere.err
