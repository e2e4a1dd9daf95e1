"""Scores of a model on a benchmark: values from lm-eval, intervals and comparisons from its documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.benchmark_results import BenchmarkResult, GroupMetric, MetricResult, as_float, metric_name
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.evaluation.statistics.bootstrap import Interval, Resampled, interval, resample, without_interval

#: What lm-eval makes of the mean of the documents, by the name of its aggregation.
_OF_MEAN: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda mean: mean,
    "perplexity": lambda mean: np.exp(-mean),
    "weighted_perplexity": lambda mean: np.exp(-mean),
    "bits_per_byte": lambda mean: -mean / math.log(2),
}


class BenchmarkScores(Scores):
    """What tasks and groups have in common.

    Attributes:
        name: of the task or the group.
        results: of each metric, by its name within the task or group.
    """

    row_name = "documents"
    name: str
    results: Mapping[str, Any]

    @property
    def directions(self) -> Mapping[str, bool]:
        """Whether more is better, for each metric."""
        return {metric_name(self.name, name): each.more_is_better for name, each in self.results.items()}

    def metrics(self) -> dict[str, float]:
        return {metric_name(self.name, name): as_float(each.value) for name, each in self.results.items()}

    def subset(self, rows: np.ndarray) -> BenchmarkScores:
        raise NotImplementedError("benchmarks have no slices")

    def intervals(self) -> dict[str, Interval]:
        known = self.resampled
        return {
            name: interval(value, known[name], self.rows) if name in known else without_interval(value)
            for name, value in self.metrics().items()
        }

    @property
    def resampled(self) -> Resampled:
        """Each metric with a known interval, over 1,000 resamples of the documents."""
        raise NotImplementedError


@dataclass(frozen=True)
class DocumentScores(BenchmarkScores):
    """The scores of a task. Resampling draws documents; ratios of sums, such as a perplexity, are of the drawn ones.

    Attributes:
        documents: number of documents.
        seed: of the drawing; tasks of a group draw independently.
    """

    name: str
    documents: int
    results: Mapping[str, MetricResult]
    seed: int = 0

    @property
    def rows(self) -> int:
        return self.documents

    @cached_property
    def resampled(self) -> Resampled:
        known = {name: each for name, each in self.results.items() if each.aggregation in _OF_MEAN}
        if not known:
            return {}
        columns = np.concatenate([_columns(each) for each in known.values()], axis=1)

        def metrics(weights: np.ndarray) -> Resampled:
            totals = weights.astype(np.float64) @ columns
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                means = totals[:, 0::2] / totals[:, 1::2]
                return {
                    metric_name(self.name, name): _OF_MEAN[each.aggregation](means[:, number])
                    for number, (name, each) in enumerate(known.items())
                }

        return resample(metrics, self.documents, self.seed)

    def right_by(self, metric: str) -> np.ndarray | None:
        for name, each in self.results.items():
            if metric_name(self.name, name) == metric and each.aggregation == "mean":
                values = each.of_documents
                return np.array(values) == 1 if set(values) <= {0, 1} else None
        return None


@dataclass(frozen=True)
class GroupScores(BenchmarkScores):
    """The scores of a group: means over its tasks, each with documents of its own.

    Attributes:
        tasks: their scores.
    """

    name: str
    tasks: tuple[DocumentScores, ...]
    results: Mapping[str, GroupMetric]

    @property
    def rows(self) -> int:
        return sum(task.rows for task in self.tasks)

    @cached_property
    def resampled(self) -> Resampled:
        found: Resampled = {}
        for name, each in self.results.items():
            parts = [(task, task.resampled.get(metric_name(task.name, name))) for task in self._with(name)]
            values = [value for _, value in parts if value is not None]
            if values and len(values) == len(parts):
                sizes = [task.rows if each.by_size else 1 for task, _ in parts]
                found[metric_name(self.name, name)] = np.average(np.stack(values), axis=0, weights=sizes)
        return found

    def right_by(self, metric: str) -> np.ndarray | None:
        for name, each in self.results.items():
            if metric_name(self.name, name) == metric and each.by_size:
                parts = [task.right_by(metric_name(task.name, name)) for task in self._with(name)]
                known = [part for part in parts if part is not None]
                return np.concatenate(known) if known and len(known) == len(parts) else None
        return None

    def _with(self, metric: str) -> list[DocumentScores]:
        """The tasks that have a metric; of the others lm-eval takes none into the mean."""
        return [task for task in self.tasks if metric in task.results]


def scores_of(result: BenchmarkResult) -> dict[str, BenchmarkScores]:
    """The scores of the tasks and groups of a benchmark, by name; requested ones come first."""
    found: dict[str, BenchmarkScores] = {}
    for name, group in result.groups.items():
        parts = [(task, result.tasks[task]) for task in group.tasks]
        tasks = (DocumentScores(task, each.documents, each.metrics, seed) for seed, (task, each) in enumerate(parts))
        found[name] = GroupScores(name, tuple(tasks), group.metrics)
    for name, task in result.tasks.items():
        found[name] = DocumentScores(name, task.documents, task.metrics)
    return {name: found[name] for name in dict.fromkeys([*result.main, *found])}


def _columns(result: MetricResult) -> np.ndarray:
    """What is added up over the documents, and its weight, float64 (documents, 2)."""
    if result.aggregation in ("mean", "perplexity"):
        values = np.array([math.nan if each is None else each for each in result.of_documents], dtype=np.float64)
        known = ~np.isnan(values)
        return np.stack([np.where(known, values, 0.0), known], axis=1)
    return np.array([(0.0, 0.0) if each is None else each for each in result.of_documents], dtype=np.float64)
