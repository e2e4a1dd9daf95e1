"""The pages of models and of schedules."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup

from gpu_pipelines.console.comparison import drawn
from gpu_pipelines.console.context import Console
from gpu_pipelines.console.models import EmulatorModels, Model, ModelRow, Version, require_fit
from gpu_pipelines.console.request_state import console_of, form_of
from gpu_pipelines.console.schedules import schedules_of, turn
from gpu_pipelines.errors import UserError

router = APIRouter()
#: Most versions side by side.
_BESIDE = 4
_MOST_CHARTS = 6


@router.get("/models")
def list_of_models(request: Request) -> HTMLResponse:
    """All models of all registries."""
    console = console_of(request)
    rows: list[ModelRow] = console.local_models.rows()
    problem = "" if console.link.client or not console.link.is_wanted else console.link.problem
    if console.link.client:
        try:
            rows += EmulatorModels(console.link.client).rows()
        except UserError as error:
            problem = str(error)
    return HTMLResponse(console.page("models.html", models=rows, problem=problem))


@router.get("/models/{place}/{name}")
def model_page(
    request: Request,
    place: str,
    name: str,
    v: Annotated[list[int], Query()] = [],  # noqa: B006 (FastAPI copies it)
) -> HTMLResponse:
    """A model with its versions, some of them side by side."""
    return _model(console_of(request), place, name, v, "")


@router.post("/models/{place}/{name}/promote", response_model=None)
def promote(request: Request, place: str, name: str) -> HTMLResponse | RedirectResponse:
    """Makes a version the champion."""
    console, form = console_of(request), form_of(request)
    models = console.models(place)
    try:
        number = int(form.text("version")) if form.text("version").isdecimal() else 0
        require_fit(models.model(name), number, form.text("seen"), form.text("anyway") == "yes")
        models.promote(name, number)
    except UserError as error:
        return _model(console, place, name, [], str(error))
    return RedirectResponse(f"/models/{place}/{quote(name)}", 303)


@router.get("/schedules")
def list_of_schedules(request: Request) -> HTMLResponse:
    """The schedules of the emulator."""
    console = console_of(request)
    schedules, problem = [], console.link.problem
    if console.link.client:
        try:
            schedules, problem = schedules_of(console.link.client), ""
        except UserError as error:
            problem = str(error)
    return HTMLResponse(console.page("schedules.html", schedules=schedules, problem=problem))


@router.post("/schedules/{schedule}/{action}")
def turn_schedule(request: Request, schedule: str, action: str) -> RedirectResponse:
    """Pauses or resumes a schedule."""
    turn(console_of(request).link.require(), schedule, action)
    return RedirectResponse("/schedules", 303)


def _model(console: Console, place: str, name: str, numbers: list[int], problem: str) -> HTMLResponse:
    model = console.models(place).model(name)
    beside = _beside(model, numbers)
    metrics = list(dict.fromkeys(metric for version in beside for metric in version.metrics))
    page = console.page(
        "model.html", model=model, beside=beside, metrics=metrics, charts=_charts(beside, metrics), problem=problem
    )
    return HTMLResponse(page, 422 if problem else 200)


def _beside(model: Model, numbers: list[int]) -> list[Version]:
    """The versions to show side by side: those asked for, else the newest and the champion."""
    if wanted := [version for version in model.versions if version.number in numbers]:
        return wanted[:_BESIDE]
    champion = [version for version in model.versions if version.is_champion]
    newest = [version for version in model.versions if not version.is_champion][: _BESIDE - len(champion)]
    return sorted([*champion, *newest], key=lambda version: -version.number)


def _charts(beside: list[Version], metrics: list[str]) -> list[Markup]:
    """The figures with known intervals, each drawn for all versions."""
    from gpu_pipelines.reports.charts import Range, interval_chart

    charts: list[Markup] = []
    for metric in metrics:
        held = [(version, version.metrics[metric]) for version in beside if metric in version.metrics]
        if len(held) > 1 and any(each.low is not None for _, each in held) and len(charts) < _MOST_CHARTS:
            names = [f"version {version.number}" for version, _ in held]
            ranges = [Range(each.value, each.low, each.high) for _, each in held]
            charts.append(drawn(interval_chart(metric, names, {metric: ranges})))
    return charts
