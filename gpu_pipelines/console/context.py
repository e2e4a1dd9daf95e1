"""The context of a console's pages: its settings, the places of runs and models, its templates."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.parameter import shown_value
from gpu_pipelines.console.emulator_link import EmulatorLink
from gpu_pipelines.console.emulator_runs import EmulatorRuns
from gpu_pipelines.console.guard import Secrets
from gpu_pipelines.console.local_runs import LocalRuns
from gpu_pipelines.console.models import EmulatorModels, LocalModels
from gpu_pipelines.console.pipelines import Pipelines
from gpu_pipelines.console.shown import EMULATOR, LOCAL, PLACES
from gpu_pipelines.console.starting import Starter
from gpu_pipelines.errors import NotFoundError
from gpu_pipelines.numbers import figure, figure_or_count
from gpu_pipelines.reports.durations import format_seconds
from gpu_pipelines.reports.page import templates_in

#: In the folder of runs, where the console keeps files that were dropped on it.
_OWN = ".console"


@dataclass(frozen=True)
class ConsoleSettings:
    """The settings of a console.

    Attributes:
        runs: directory of the runs on this machine.
        registry: directory of the registry.
        port: the port that it listens at.
        link: the connection to an emulator.
    """

    runs: Path
    registry: Path
    port: int = 0
    link: EmulatorLink = field(default_factory=EmulatorLink)


class Console:
    """A console: what it shows, and how.

    Args:
        settings: the settings.

    Attributes:
        settings: the settings.
        held: the secrets of its user.
        local_runs, local_models: the runs and models on this machine.
        starter: starts runs on this machine.
    """

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings, self.held = settings, Secrets()
        self.local_runs = LocalRuns(settings.runs)
        self.local_models = LocalModels(settings.registry)
        self.starter = Starter(settings.runs / _OWN, settings.runs)
        self._templates = templates_in(Path(__file__).with_name("templates"))
        self._templates.filters.update(
            figure=figure,
            figure_or_count=figure_or_count,
            seconds=_took,
            moment=_moment,
            value=shown_value,
            usd=_usd,
            signed=_signed,
        )
        self._templates.globals.update(PLACES=PLACES, csrf=self.held.csrf)

    @property
    def link(self) -> EmulatorLink:
        """The connection to the emulator."""
        return self.settings.link

    @property
    def pipelines(self) -> Pipelines:
        """The pipelines that can be started now."""
        return Pipelines(self.settings.runs / _OWN, self.link.client)

    def runs(self, place: str) -> LocalRuns | EmulatorRuns:
        """The runs of a place.

        Raises:
            UserError: there is no such place, or no emulator.
        """
        return self.local_runs if _is_local(place, "runs") else EmulatorRuns(self.link.require())

    def models(self, place: str) -> LocalModels | EmulatorModels:
        """The models of a place.

        Raises:
            UserError: there is no such place, or no emulator.
        """
        return self.local_models if _is_local(place, "models") else EmulatorModels(self.link.require())

    def page(self, template: str, **values: Any) -> str:
        """A page, or a part of one; values that are not `Markup` are escaped."""
        return self._templates.get_template(template).render(link=self.link, settings=self.settings, **values)

    def refusal(self, status: int, text: str) -> bytes:
        """The page that says why a request was refused, for a client that may see nothing else."""
        return self._templates.get_template("refused.html").render(status=status, text=text).encode()


def _is_local(place: str, listed: str) -> bool:
    """Whether a place is this machine, and not the emulator.

    Raises:
        UserError: it is neither.
    """
    if place not in (LOCAL, EMULATOR):
        raise NotFoundError(f"There is no place {place[:40]!r}.", f"Look at the list of {listed}.")
    return place == LOCAL


def _took(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds)


def _moment(text: str) -> str:
    """A time in ISO 8601, in the form of tables: UTC, to the minute."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text[:16].replace("T", " ")
    return f"{found.astimezone(timezone.utc):%Y-%m-%d %H:%M}"


def _usd(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.005 or not value else "under 0.01"


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")
