"""The console and the form of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_pipelines.console.context import Console
from gpu_pipelines.console.form_body import FormBody

if TYPE_CHECKING:
    from fastapi import Request


def console_of(request: Request) -> Console:
    """The console of a request."""
    found: Console = request.app.state.console
    return found


def form_of(request: Request) -> FormBody:
    """The submitted form, which the guard has read."""
    found: FormBody = request.state.form
    return found
