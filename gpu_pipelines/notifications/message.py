"""The message about the end of a run, for all channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gpu_pipelines.numbers import figure

#: Outcomes without any news.
UNEVENTFUL = ("nothing new", "too soon", "no drift")
#: Outcomes that need attention.
BAD = ("failed", "refused", "cancelled", "interrupted", "died")
#: Most characters of a text from elsewhere, and most metrics and gates.
_MOST_CHARACTERS, _MOST_LISTED = 500, 6


@dataclass(frozen=True)
class Metric:
    """A metric on the test rows.

    Attributes:
        name: the name of the metric.
        value: the estimate; None if it is not a finite number.
        low, high: its interval; None if there is none.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" ({figure(self.low)} to {figure(self.high)})"
        return f"{self.name} {figure(self.value)}{interval}"


@dataclass(frozen=True)
class Message:
    """The end of a run.

    Attributes:
        outcome: promoted, not promoted, unchanged, nothing new, too soon, no drift, finished, or what happened instead.
        pipeline: the name of the pipeline.
        run: the name of the run.
        reason: why, in a sentence or two; empty if the outcome says it.
        model: the version in the registry, as NAME@VERSION; empty if there is none.
        metrics: metrics on the test rows, the most important first.
        gates: the gates that were not passed, each with why.
        cost: the cost in words; empty if it is not known.
        link: an address or path with more.
        ended: the end, in UTC.
    """

    outcome: str
    pipeline: str
    run: str = ""
    reason: str = ""
    model: str = ""
    metrics: Sequence[Metric] = ()
    gates: Sequence[str] = ()
    cost: str = ""
    link: str = ""
    ended: str = ""

    @property
    def is_eventful(self) -> bool:
        """Whether the run has any news."""
        return self.outcome not in UNEVENTFUL

    @property
    def is_bad(self) -> bool:
        """Whether the run needs attention."""
        return self.outcome in BAD

    @property
    def page(self) -> str:
        """The link, if a browser elsewhere can follow it; else empty."""
        parts = urlsplit(self.link)
        return self.link if parts.scheme in ("http", "https") and parts.hostname else ""

    @property
    def title(self) -> str:
        """The message in one line."""
        about = f": {self.model}" if self.model else ""
        return one_line(f"{self.pipeline} {self.outcome}{about}")

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The facts of the message, each with its name; no value has a line break."""
        told = [
            ("Outcome", self.outcome),
            ("Reason", self.reason),
            ("Model", self.model),
            ("Test metrics", listed(map(str, self.metrics))),
            ("Gates not passed", listed(self.gates)),
            ("Cost", self.cost),
            ("Run", self.run),
            ("Ended", self.ended),
            ("More", self.link),
        ]
        return [(name, one_line(value)) for name, value in told if value]

    @property
    def text(self) -> str:
        """The message in plain text, line by line."""
        return "\n".join([self.title, "", *(f"{name}: {value}" for name, value in self.facts)])

    def to_json(self) -> dict[str, Any]:
        """The message as a JSON object, with `text` for clients that show it as it is."""
        return {
            "text": self.text,
            "outcome": self.outcome,
            "pipeline": self.pipeline,
            "run": self.run,
            "reason": self.reason,
            "model": self.model,
            "metrics": {m.name: {"value": m.value, "low": m.low, "high": m.high} for m in self.metrics},
            "gates_not_passed": list(self.gates),
            "cost": self.cost,
            "link": self.link,
            "ended": self.ended,
        }


def metrics_from(told: Mapping[str, Mapping[str, Any]], first: str = "") -> tuple[Metric, ...]:
    """The metrics of an evaluation, from `value`, `low` and `high` by name.

    Args:
        told: the metrics of `evaluation.json`.
        first: the most important one.
    """
    names = sorted(told, key=lambda name: name != first)[:_MOST_LISTED]
    return tuple(Metric(name, *(told[name].get(key) for key in ("value", "low", "high"))) for name in names)


def one_line(text: str) -> str:
    """A text from elsewhere on one line, cut if it is too long."""
    shown = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[: _MOST_CHARACTERS - 1]}…"


def listed(texts: Any) -> str:
    """Some texts in a line."""
    every = list(texts)
    more = f"; and {len(every) - _MOST_LISTED} more" if len(every) > _MOST_LISTED else ""
    return "; ".join(every[:_MOST_LISTED]) + more
