"""The pages of pipelines: the list, the form of the inputs, a run that is starting."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from gpu_pipelines.console.context import Console
from gpu_pipelines.console.cost import DEFAULT
from gpu_pipelines.console.emulator_runs import EmulatorRuns
from gpu_pipelines.console.forms import checked, fields_of, given_in, values_of_run
from gpu_pipelines.console.pipelines import Pipeline
from gpu_pipelines.console.request_state import console_of, form_of
from gpu_pipelines.console.shown import EMULATOR, LOCAL
from gpu_pipelines.console.starting import start_there
from gpu_pipelines.errors import UserError

router = APIRouter()


@router.get("/pipelines")
def list_of_pipelines(request: Request) -> HTMLResponse:
    """The pipelines to start, and a place to drop a file."""
    return _list(console_of(request), "", 200)


@router.post("/pipelines", response_model=None)
def drop_file(request: Request) -> RedirectResponse | HTMLResponse:
    """Keeps a dropped file, and leads to its form."""
    console, file = console_of(request), form_of(request).files.get("file")
    if file is None or not file.content:
        return _list(console, "No file was sent. Choose the YAML or JSON that KFP's compiler has written.", 422)
    try:
        kept = console.pipelines.add(file.content, file.name)
    except UserError as error:
        return _list(console, str(error), 422)
    return RedirectResponse(f"/pipelines/{quote(kept.key)}", 303)


@router.get("/pipelines/{key:path}")
def form_of_pipeline(request: Request, key: str, like: str = "") -> HTMLResponse:
    """The form of a pipeline's inputs, with the values of the run `like`, if one is named."""
    console = console_of(request)
    place, _, run_id = like.partition("/")
    pipeline = console.pipelines.pipeline(key)
    values = values_of_run(pipeline, console.runs(place).run(run_id).parameters) if like else {}
    return _page(console, pipeline, values, {})


@router.post("/pipelines/{key:path}", response_model=None)
def start(request: Request, key: str) -> RedirectResponse | HTMLResponse:
    """Starts a run with the values of the form."""
    console, form = console_of(request), form_of(request)
    pipeline = console.pipelines.pipeline(key)
    given = given_in(pipeline, form.fields)
    try:
        values = checked(pipeline, given)
        if form.text("where") == EMULATOR:
            runs, accelerator = EmulatorRuns(console.link.require()), form.text("accelerator") or DEFAULT
            job = start_there(runs, pipeline, values, given, accelerator)
            return RedirectResponse(f"/runs/{EMULATOR}/{quote(job)}", 303)
        reuse, containers = bool(form.text("reuse")), form.text("containers") != "no"
        started = console.starter.start_here(pipeline, given, reuse=reuse, containers=containers)
    except UserError as error:
        return _page(console, pipeline, given, form.fields, str(error))
    return RedirectResponse(f"/starting/{started.key}", 303)


@router.get("/starting/{key}", response_model=None)
def starting(request: Request, key: str) -> HTMLResponse | RedirectResponse:
    """A run that was started, until it has a page of its own."""
    console = console_of(request)
    values = _starting(console, key)
    return (
        RedirectResponse(values["go"], 303) if values["go"] else HTMLResponse(console.page("starting.html", **values))
    )


@router.get("/starting/{key}/live")
def starting_now(request: Request, key: str) -> HTMLResponse:
    """The changing part of the same page."""
    console = console_of(request)
    return HTMLResponse(console.page("starting_live.html", **_starting(console, key)))


def _list(console: Console, problem: str, status: int) -> HTMLResponse:
    try:
        listed, unreachable = console.pipelines.listed(), ""
    except UserError as error:
        from gpu_pipelines.console.pipelines import Pipelines

        listed, unreachable = Pipelines(console.pipelines.folder, None).listed(), str(error)
    page = console.page("pipelines.html", pipelines=listed, problem=problem or unreachable)
    return HTMLResponse(page, status)


def _page(
    console: Console, pipeline: Pipeline, values: dict[str, str], sent: dict[str, Any], problem: str = ""
) -> HTMLResponse:
    page = console.page(
        "pipeline.html",
        pipeline=pipeline,
        fields=fields_of(pipeline.parameters, values),
        advanced=fields_of(pipeline.advanced, values),
        changed=[name for name in pipeline.advanced if name in values],
        problem=problem,
        where=sent.get("where") or (EMULATOR if pipeline.file and console.link.client else LOCAL),
        accelerator=sent.get("accelerator") or DEFAULT,
        reuse=bool(sent.get("reuse")),
        containers=sent.get("containers", "yes"),
    )
    return HTMLResponse(page, 422 if problem else 200)


def _starting(console: Console, key: str) -> dict[str, Any]:
    start = console.starter.start(key)
    # Read before the run is looked for: a run that ends in between has left its folder.
    ended = start.process.poll()
    run_id = console.starter.run_of(start)
    go = f"/runs/{LOCAL}/{quote(run_id)}" if run_id else ""
    return {"start": start, "go": go, "ended": ended, "said": start.said}
