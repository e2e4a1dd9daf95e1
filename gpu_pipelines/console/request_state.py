"""What a request brings with it: the console, and the form that was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_pipelines.console.context import Console
from gpu_pipelines.console.form_body import FormBody

if TYPE_CHECKING:
    from fastapi import Request


def console_of(request: Request) -> Console:
    """The console that is asked."""
    found: Console = request.app.state.console
    return found


def form_of(request: Request) -> FormBody:
    """The form that was sent; the guard has read it."""
    found: FormBody = request.state.form
    return found
