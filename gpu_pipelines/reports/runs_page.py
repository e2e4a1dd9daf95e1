"""`index.html` in the directory of runs on this machine: all runs, each with a link to its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_pipelines.reports.durations import format_seconds
from gpu_pipelines.reports.page import render, write_page
from gpu_pipelines.reports.run_report import KINDS
from gpu_pipelines.targets.runs.record import RunRecord

INDEX = "index.html"


def write_runs_page(runs: Path, records: Sequence[RunRecord]) -> None:
    """Writes the page.

    Args:
        runs: directory of runs.
        records: the runs, in the order to show.
    """
    sections = render(Path(__file__).with_name("runs_page.html"), rows=[_row(record) for record in records])
    count = f"{len(records)} run{'' if len(records) == 1 else 's'} on this machine, the newest first"
    # A browser that reads it meanwhile gets a complete page.
    scratch = runs / f".{INDEX}"
    write_page(scratch, "Runs", sections, count)
    scratch.replace(runs / INDEX)


def _row(record: RunRecord) -> dict[str, Any]:
    return {
        "id": record.run_id,
        "report": f"{record.run_id}/{record.report.name}" if record.report.is_file() else "",
        "status": record.status,
        "kind": KINDS.get(record.status, ""),
        "pipeline": record.pipeline,
        "started": record.started[:16].replace("T", " "),
        "took": "" if record.status == "running" else format_seconds(record.seconds),
        "model": record.registered,
        "metric": record.key_figure,
    }
