"""The pages of runs: the list, one run while it goes on, a comparison of two."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from gpu_pipelines.console.comparison import curve_charts, differing, figures, interval_charts
from gpu_pipelines.console.context import Console
from gpu_pipelines.console.cost import DEFAULT, Cost, cost_of_jobs, cost_with
from gpu_pipelines.console.emulator_runs import EmulatorRuns
from gpu_pipelines.console.request_state import console_of
from gpu_pipelines.console.shown import EMULATOR, LOCAL, Row, Run
from gpu_pipelines.errors import UserError
from gpu_pipelines.reports.dag import draw_dag
from gpu_pipelines.reports.durations import format_seconds

router = APIRouter()
#: Runs on a page.
ROWS = 1000
#: Pages written by tasks may be anybody's, so they run no scripts and connect to nothing.
_POLICY = (
    "sandbox allow-same-origin; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_LOGS = "logs/"


@router.get("/runs")
def list_of_runs(request: Request, q: str = "", status: str = "", place: str = "", page: int = 1) -> HTMLResponse:
    """All runs, or those that match the search."""
    return HTMLResponse(console_of(request).page("runs.html", **_listed(request, q, status, place, page)))


@router.get("/runs/rows")
def rows_of_runs(request: Request, q: str = "", status: str = "", place: str = "", page: int = 1) -> HTMLResponse:
    """Only the table of the same page."""
    return HTMLResponse(console_of(request).page("runs_rows.html", **_listed(request, q, status, place, page)))


@router.get("/runs/{place}/{run_id}")
def run_page(request: Request, place: str, run_id: str, task: str = "", accelerator: str = "") -> HTMLResponse:
    """A run."""
    console = console_of(request)
    run = console.runs(place).run(run_id)
    cost, wrong = None, ""
    try:
        cost = _cost(console, run, accelerator)
    except UserError as error:
        wrong = str(error)
    chosen = accelerator or DEFAULT
    page = console.page(
        "run.html",
        **_drawn(run),
        task=task,
        cost=cost,
        accelerator=chosen,
        wrong_accelerator=wrong,
        again=console.pipelines.key_of(run.row.pipeline),
        base=_base(run.row),
    )
    return HTMLResponse(page)


@router.get("/runs/{place}/{run_id}/live")
def run_now(request: Request, place: str, run_id: str) -> HTMLResponse:
    """The changing part of the page of a run."""
    console = console_of(request)
    run = console.runs(place).run(run_id)
    return HTMLResponse(console.page("run_live.html", **_drawn(run), base=_base(run.row)))


@router.get("/runs/{place}/{run_id}/left")
def left_of_run(request: Request, place: str, run_id: str) -> HTMLResponse:
    """The outputs of a run so far."""
    console = console_of(request)
    run = console.runs(place).run(run_id)
    return HTMLResponse(console.page("run_left.html", run=run, base=_base(run.row)))


@router.get("/runs/{place}/{run_id}/log")
def log_of_run(request: Request, place: str, run_id: str, task: str, start: int = 0) -> JSONResponse:
    """New lines of the log of a task."""
    part = console_of(request).runs(place).log(run_id, task, max(0, start))
    return JSONResponse({"text": part.text, "next": part.next, "whole": part.is_whole})


@router.get("/runs/{place}/{run_id}/report")
def report_of_run(request: Request, place: str, run_id: str, key: str) -> HTMLResponse:
    """A page that a run has written, below a link back to the run."""
    console = console_of(request)
    run = console.runs(place).run(run_id)
    page = next((each for each in run.pages if each.key == key), None)
    title = " ".join(part for part in (page.task, page.name) if part) if page else key
    return HTMLResponse(console.page("report.html", run=run, title=title, key=key, base=_base(run.row)))


@router.get("/runs/{place}/{run_id}/page/{key:path}")
def raw_page(request: Request, place: str, run_id: str, key: str) -> Response:
    """The HTML of a page that a run has written, or a log that its report links to."""
    runs = console_of(request).runs(place)
    if place == LOCAL and key.startswith(_LOGS):
        task = key.removeprefix(_LOGS).removesuffix(".log")
        steps = {
            (step.log or "").removeprefix(_LOGS).removesuffix(".log"): step.name for step in _steps(request, run_id)
        }
        return Response(runs.log(run_id, steps.get(task, task), 0).text, media_type="text/plain")
    return HTMLResponse(runs.page(run_id, key), headers={"content-security-policy": _POLICY})


@router.get("/runs/local/{run_id}/{other}/report.html")
def report_of_another(request: Request, run_id: str, other: str) -> RedirectResponse:
    """Redirects from a report of a run to that of the run whose results it reused."""
    record = console_of(request).local_runs.record(other)
    return RedirectResponse(f"/runs/{LOCAL}/{quote(record.run_id)}/page/report", 303)


@router.post("/runs/{place}/{run_id}/stop")
def stop_run(request: Request, place: str, run_id: str) -> RedirectResponse:
    """Asks a run to end."""
    console_of(request).runs(place).stop(run_id)
    return RedirectResponse(f"/runs/{place}/{quote(run_id)}", 303)


@router.get("/compare")
def compare(request: Request, run: Annotated[list[str], Query()] = []) -> HTMLResponse:  # noqa: B006 (FastAPI copies it)
    """Two runs side by side; with one run, a choice of the other."""
    console = console_of(request)
    if len(run) > 2:
        raise UserError(f"{len(run)} runs are ticked, but two are needed.", "Tick two runs.")
    chosen = [_of(console, each) for each in run]
    if len(chosen) < 2:
        rows = [row for row in _rows(console)[0] if row.status != "damaged" and _name(row) not in run]
        return HTMLResponse(console.page("compare_choose.html", rows=rows, chosen=chosen))
    first, second = chosen
    found = figures(*(console.runs(each.row.place).measured(each.row.id) for each in chosen))
    curves = [console.runs(each.row.place).curves(each.row.id) for each in chosen]
    page = console.page(
        "compare.html",
        runs=chosen,
        differing=differing(first, second),
        same=len(set(first.parameters) & set(second.parameters)),
        figures=found,
        intervals=interval_charts(found),
        curves=curve_charts(*curves),
        tasks=_durations(chosen),
    )
    return HTMLResponse(page)


def _steps(request: Request, run_id: str) -> Any:
    return console_of(request).local_runs.record(run_id).steps


def _rows(console: Console) -> tuple[list[Row], str]:
    """The runs of all places, the newest first, and why those of the emulator are missing."""
    rows, problem = console.local_runs.rows(), ""
    if console.link.client:
        try:
            rows = sorted([*rows, *EmulatorRuns(console.link.client).rows()], key=lambda row: row.started, reverse=True)
        except UserError as error:
            problem = str(error)
    elif console.link.is_wanted:
        problem = console.link.problem
    return rows, problem


def _listed(request: Request, q: str, status: str, place: str, page: int) -> dict[str, Any]:
    rows, problem = _rows(console_of(request))
    found = [
        row
        for row in rows
        if q.lower() in f"{row.pipeline} {row.id} {row.model}".lower()
        and status in ("", row.status)
        and place in ("", row.place)
    ]
    start = ROWS * (max(1, page) - 1)
    return {
        "rows": found[start : start + ROWS],
        "count": len(found),
        "every": len(rows),
        "statuses": sorted({row.status for row in rows}),
        "places": sorted({row.place for row in rows}),
        "going_on": any(row.is_going_on for row in rows),
        "problem": problem,
        "q": q,
        "status": status,
        "place": place,
        "page": max(1, page),
        "pages": -(-len(found) // ROWS),
        "query": request.url.query,
    }


def _drawn(run: Run) -> dict[str, Any]:
    """A run with the picture of its pipeline."""
    latest = {task.name.partition("-#")[0]: task for task in run.tasks}
    others = dict.fromkeys(run.dependencies, "waits" if run.row.is_going_on else "not run")
    notes = {name: _note(task.status, task.seconds) for name, task in latest.items()}
    statuses = {name: task.status for name, task in latest.items()}
    return {"run": run, "dag": draw_dag(run.dependencies, statuses, {**others, **notes})}


def _note(status: str, seconds: float | None) -> str:
    return f"{status}, {format_seconds(seconds)}" if seconds is not None else status


def _cost(console: Console, run: Run, accelerator: str) -> Cost | None:
    if run.row.place == EMULATOR:
        client = console.link.require()
        spec = EmulatorRuns(client).job(run.row.id).get("pipelineSpec") or {}
        return cost_of_jobs(spec, run.tasks, str(client.about["region"]))
    return cost_with(accelerator or DEFAULT, run.tasks)


def _base(row: Row) -> str:
    return f"/runs/{row.place}/{quote(row.id)}"


def _name(row: Row) -> str:
    return f"{row.place}/{row.id}"


def _of(console: Console, name: str) -> Run:
    """The run in an address, PLACE/ID."""
    place, _, run_id = name.partition("/")
    return console.runs(place).run(run_id)


def _durations(runs: list[Run]) -> list[tuple[str, list[Any]]]:
    """The tasks of runs, each with its duration, or its status, in each run."""
    names = dict.fromkeys(task.name for run in runs for task in run.tasks)
    took = [
        {task.name: format_seconds(task.seconds) if task.seconds is not None else task.status for task in run.tasks}
        for run in runs
    ]
    return [(name, [each.get(name) for each in took]) for name in names]
