"""Parts of a report that show a model beside the champion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from gpu_pipelines.reports.charts import Range, interval_chart

#: A metric with its interval, as `evaluation.json` holds it, by its name.
Metrics = Mapping[str, Mapping[str, Any]]


def charts_beside(where: str, names: Sequence[str], ours: Metrics, champion: Mapping[str, Any]) -> list[Markup]:
    """The metrics of both models that have a scale in common, and their differences, as far as intervals are known."""
    theirs, differences = champion["metrics"], champion["differences"]
    if not (shown := [name for name in names if is_known(ours[name]) and is_known(theirs.get(name))]):
        return []
    both = {"this model": ranges(ours, shown), f"champion (version {champion['version']})": ranges(theirs, shown)}
    charts = [interval_chart(f"Both models on {where}, 95% intervals", shown, both)]
    if known := [name for name in shown if is_known(differences[name])]:
        title = "This model less the champion, 95% intervals"
        charts.append(interval_chart(title, known, {"difference": ranges(differences, known)}, zero=True))
    return charts


def verdicts(champion: Mapping[str, Any] | None, more_is_better: Callable[[str], bool | None]) -> dict[str, str]:
    """For each metric whether its difference from the champion is good or bad, by an interval on one side of 0."""
    found = {}
    for name, difference in (champion or {}).get("differences", {}).items():
        low, high, direction = difference["low"], difference["high"], more_is_better(name)
        if direction is not None and low is not None and high is not None and (low > 0 or high < 0):
            found[name] = "good" if (low > 0) == direction else "bad"
    return found


def is_known(metric: Mapping[str, Any] | None) -> bool:
    """Whether a metric has a value and an interval."""
    return metric is not None and metric["value"] is not None and metric["low"] is not None


def ranges(metrics: Metrics, names: Sequence[str]) -> list[Range]:
    """Some metrics, to be drawn."""
    return [Range(metrics[name]["value"], metrics[name]["low"], metrics[name]["high"]) for name in names]
