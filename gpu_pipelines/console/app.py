"""The console as an ASGI application: its pages behind the guard, and errors as pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from gpu_pipelines.console import pipeline_pages, registry_pages, run_pages
from gpu_pipelines.console.context import Console, ConsoleSettings
from gpu_pipelines.console.guard import STATIC, Guard
from gpu_pipelines.errors import NotFoundError, UserError

_HERE = Path(__file__).parent


def console_app(settings: ConsoleSettings) -> tuple[Guard, Console]:
    """The application, and the console with its user's token."""
    console = Console(settings)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.console = console
    app.mount(STATIC.rstrip("/"), StaticFiles(directory=_HERE / "static"))
    for pages in (run_pages, pipeline_pages, registry_pages):
        app.include_router(pages.router)

    @app.get("/")
    def first() -> RedirectResponse:
        return RedirectResponse("/runs", 303)

    def user_error(request: Request, error: Any) -> HTMLResponse:
        status = 404 if isinstance(error, NotFoundError) else 422
        return _error_page(console, status, error.problem, error.remedy)

    def http_error(request: Request, error: Any) -> HTMLResponse:
        return _error_page(console, error.status_code, "There is no such page.", "")

    def wrong_address(request: Request, error: Any) -> HTMLResponse:
        return _error_page(console, 422, "This address has an invalid value.", "Follow a link of a page.")

    def system_error(request: Request, error: Any) -> HTMLResponse:
        told = f"{error.filename or 'A file'} cannot be used: {error.strerror or error}."
        return _error_page(console, 500, told, "Look at its permissions and at the space of the disk.")

    app.add_exception_handler(UserError, user_error)
    app.add_exception_handler(RequestValidationError, wrong_address)
    app.add_exception_handler(OSError, system_error)
    app.add_exception_handler(HTTPException, http_error)
    return Guard(app, console.held, settings.port, console.refusal), console


def _error_page(console: Console, status: int, problem: str, remedy: str) -> HTMLResponse:
    return HTMLResponse(console.page("error.html", problem=problem, remedy=remedy), status)
