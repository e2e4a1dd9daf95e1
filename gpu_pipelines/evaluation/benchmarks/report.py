"""The report's section about benchmarks: the best checkpoint beside the champion, and the other checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from gpu_pipelines.artifacts.benchmark_results import first_metrics, plain
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.champion.report_parts import charts_beside, is_known, ranges, verdicts
from gpu_pipelines.numbers import figure, signed
from gpu_pipelines.reports.charts import interval_chart
from gpu_pipelines.reports.page import render

#: A chart shows no more metrics.
MOST_IN_CHART = 12
#: Of a group of many tasks those are shown whose difference to the champion is largest, or the worst ones.
PARTS_SHOWN = 20


def benchmark_section(evaluation: Evaluation) -> Markup:
    """The section; empty if the evaluation ran no benchmarks."""
    told = evaluation.benchmarks
    if told is None:
        return Markup("")
    best = told["checkpoints"][0]
    champion = told["champion"] if told["champion"] and "not_compared" not in told["champion"] else None
    main = {plain(name) for name in told["main"]}
    parts = [name for name in best["metrics"] if name.partition(".")[0] not in main]
    shown = [name for name in best["metrics"] if name not in set(parts)]
    parts_shown = _most_telling(parts, best["metrics"], champion)
    return render(
        Path(__file__).with_name("report.html"),
        told=told,
        best=best,
        champion=champion,
        not_compared=told["champion"] if told["champion"] and champion is None else None,
        tables=[each for each in (("", shown), ("Parts of groups", parts_shown)) if each[1]],
        hidden_parts=len(parts) - len(parts_shown),
        first=first_metrics(told),
        verdicts=verdicts(champion, told["more_is_better"].__getitem__),
        documents={plain(name): task["documents"] for name, task in told["tasks"].items()},
        options=_options(told["options"]),
        charts=_charts(told, shown, champion),
        figure=figure,
        signed=signed,
    )


def _most_telling(parts: list[str], metrics: dict[str, Any], champion: dict[str, Any] | None) -> list[str]:
    def rank(name: str) -> float:
        difference = champion["differences"][name]["value"] if champion else None
        value = metrics[name]["value"]
        return (value or 0.0) if difference is None else -abs(difference)

    return parts if len(parts) <= PARTS_SHOWN else sorted(parts, key=rank)[:PARTS_SHOWN]


def _options(options: dict[str, Any]) -> list[str]:
    """What was told otherwise than a task says itself, for people."""
    found = []
    if options["limit"]:
        found.append(f"the first {options['limit']:,} documents of each task")
    if options["fewshot"] >= 0:
        found.append(f"{options['fewshot']} examples before each document")
    if options["chat_template"]:
        found.append("prompts in the chat template")
    return found


def _charts(told: dict[str, Any], shown: list[str], champion: dict[str, Any] | None) -> list[Markup]:
    """The metrics that are shares: this model beside the champion, and the differences; else each checkpoint."""
    best = told["checkpoints"][0]["metrics"]
    shares = [name for name in shown if is_known(best[name]) and 0 <= best[name]["value"] <= 1][:MOST_IN_CHART]
    if not shares:
        return []
    if champion is not None:
        return charts_beside("benchmarks", shares, best, champion)
    groups = {"this model": ranges(best, shares)}
    groups |= {other["name"]: ranges(other["metrics"], shares) for other in told["checkpoints"][1:3]}
    return [interval_chart("Benchmarks, 95% intervals", shares, groups)]
