"""Shows a run while it goes on: a live line per step on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpu_pipelines.reports.durations import format_seconds
from gpu_pipelines.targets.steps import StepRecord

if TYPE_CHECKING:
    from rich.console import Console

_SIGNS = {
    "succeeded": "[green]✓[/]",
    "reused": "[cyan]↺[/]",
    "failed": "[red]✗[/]",
    "interrupted": "[yellow]■[/]",
    "cancelled": "[yellow]■[/]",
    "not triggered": "[dim]–[/]",
}
_WITHOUT_TIME = ("reused", "not triggered")


class PlainProgress:
    """Prints each line of each step as it comes, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def step_began(self, step: str) -> None:
        self._print(f"{step}: started")

    def step_said(self, step: str, line: str) -> None:
        self._print(f"{step}: {line}")

    def step_ended(self, step: StepRecord) -> None:
        took = "" if step.status in _WITHOUT_TIME else f" after {format_seconds(step.seconds)}"
        self._print(f"{step.name}: {step.status}{took}")

    def _print(self, text: str) -> None:
        from rich.control import strip_control_codes

        # Not with the console, which takes most of the time of a step that prints much. A reader that has closed the
        # pipe, as `head` and `less` do, does not end a run.
        with suppress(BrokenPipeError):
            print(strip_control_codes(text), file=self._console.file, flush=True)


class LiveProgress:
    """Shows finished steps, and running steps with their time and last line, redrawn in place."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._ended: list[StepRecord] = []
        self._began: dict[str, float] = {}
        self._last_line: dict[str, str] = {}
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=8)

    def __enter__(self) -> LiveProgress:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def step_began(self, step: str) -> None:
        self._began[step] = time.monotonic()

    def step_said(self, step: str, line: str) -> None:
        self._last_line[step] = line

    def step_ended(self, step: StepRecord) -> None:
        self._ended.append(step)
        self._began.pop(step.name, None)

    def _table(self) -> Any:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for _ in range(3):
            table.add_column(no_wrap=True)
        # rich may narrow only this column, so that names stay whole.
        table.add_column(style="dim")
        for step in self._ended:
            took = "" if step.status in _WITHOUT_TIME else format_seconds(step.seconds)
            said = step.status if step.status in _WITHOUT_TIME else self._last_line.get(step.name, "")
            table.add_row(_SIGNS[step.status], step.name, took, Text(said))
        for name, began in list(self._began.items()):
            took = format_seconds(time.monotonic() - began)
            says = Text(self._last_line.get(name, "starting"), no_wrap=True, overflow="ellipsis")
            table.add_row(Spinner("dots"), name, took, says)
        return table


def progress_on(console: Console) -> PlainProgress | LiveProgress:
    """The display that suits the console."""
    # Not rich's own answer: with FORCE_COLOR, which CI services and notebooks set, it takes every pipe for a terminal.
    return LiveProgress(console) if console.file.isatty() else PlainProgress(console)
