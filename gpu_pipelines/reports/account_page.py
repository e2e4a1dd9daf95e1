"""The page of a remote run: its state, its steps, and the cost of its machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_pipelines.accelerators.spent import Line, dollars
from gpu_pipelines.errors import UserError
from gpu_pipelines.reports.durations import format_seconds
from gpu_pipelines.reports.page import render, write_page
from gpu_pipelines.targets.runs.account import RunAccount

_KINDS = {"succeeded": "good", "failed": "bad", "cancelled": "warn", "expired": "bad"}


def write_account_page(account: RunAccount, path: Path) -> None:
    """Writes the page of a run.

    Args:
        account: the run.
        path: the HTML file.

    Raises:
        UserError: it cannot be written.
    """
    spent = account.spent
    sections = render(
        Path(__file__).with_name("account_page.html"),
        a=account,
        kind=_KINDS.get(account.state, ""),
        steps=[
            {"name": step.name, "state": step.state, "kind": _KINDS.get(step.state, ""), "took": _took(step.seconds)}
            for step in account.steps
        ],
        tiles=_tiles(account),
        told=_told(account),
        machines=[_row(line, spent.usd) for line in spent.lines],
        planned=[
            {"step": step, "per_hour": dollars(each.usd_per_hour), "hours": each.hours, "at_most": _money(each.at_most)}
            for step, each in spent.planned.items()
        ],
        skus=[
            {"name": name, "amount": f"{amount:,.2f}"}
            for name, amount in (spent.billed.by_sku if spent.billed else {}).items()
        ],
    )
    try:
        write_page(path, account.run, sections, f"Run on {account.target}")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.", "Give another --report.") from error


def _tiles(account: RunAccount) -> list[tuple[str, str]]:
    """The most important figures, each with its name."""
    spent = account.spent
    if not spent.lines:
        return []
    least = "at least " if spent.without_price else ""
    found = [(f"{least}{dollars(spent.usd)}", "machine hours × list prices"), (_hours(spent.hours), "machine hours")]
    if spent.at_most is not None:
        found.append((dollars(spent.at_most), "planned at most"))
    if spent.billed and spent.billed.until:
        found.append((f"{spent.billed.amount:,.2f} {spent.billed.currency}", "billed after credits"))
    return found


def _told(account: RunAccount) -> list[str]:
    """The basis of the figures."""
    spent = account.spent
    if not spent.lines:
        return account.told
    prices = [f"List prices of {spent.as_of}{', unverified' if spent.unverified else ''}."] if spent.as_of else []
    unknown = f"Without {', '.join(spent.without_price)}: no price is known of their machines."
    return [*prices, *([unknown] if spent.without_price else []), *account.told[1:]]


def _row(line: Line, total: float) -> dict[str, Any]:
    time = line.time
    return {
        "step": time.step,
        "machines": time.title,
        "bought": f"{time.strategy}, {time.region}",
        "ran": format_seconds(time.seconds),
        "hours": _hours(time.hours),
        "per_hour": "" if line.usd_per_hour is None or time.free else dollars(line.usd_per_hour),
        "usd": "unknown" if line.usd is None else dollars(line.usd),
        "share": round(100 * (line.usd or 0.0) / total, 2) if total else 0.0,
        "why": line.why,
    }


def _hours(hours: float) -> str:
    return f"{hours:,.2f}" if hours >= 0.1 else f"{hours:.4f}"


def _took(seconds: float) -> str:
    return format_seconds(seconds) if seconds else ""


def _money(usd: float | None) -> str:
    return "no limit" if usd is None else dollars(usd)
