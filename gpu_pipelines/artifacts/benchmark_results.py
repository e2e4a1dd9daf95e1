"""`benchmarks.json`: the results of a model for each document of the benchmarks that it was evaluated on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import read_as, write_document

BENCHMARKS = "benchmarks.json"


@dataclass(frozen=True)
class MetricResult:
    """A metric of a task.

    Attributes:
        value: as lm-eval gives it; None if it is not a finite number.
        more_is_better: its direction.
        aggregation: how `value` follows from the documents: `mean`, `perplexity`, `weighted_perplexity` or
            `bits_per_byte` of lm-eval; empty for any other, for which no interval is known.
        of_documents: for each document the value to aggregate: a number, a pair of a number and its weight, or None if
            the document has no such metric; empty without an aggregation.
    """

    value: float | None
    more_is_better: bool
    aggregation: str = ""
    of_documents: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class TaskResult:
    """The results of a model on a task.

    Attributes:
        version: of the task, as it says itself.
        fingerprint: of the task, of the options and of lm-eval: results with different ones are not compared.
        documents: number of documents.
        documents_sha256: of all documents, prompts and targets, in their order.
        metrics: by name; the metric of another filter than the task's first one is METRIC.FILTER.
    """

    version: str
    fingerprint: str
    documents: int
    documents_sha256: str
    metrics: dict[str, MetricResult]

    def is_comparable(self, other: TaskResult | None) -> bool:
        """Whether another result is of the same version of the task and of the same documents."""
        mine = (self.version, self.fingerprint, self.documents_sha256)
        return other is not None and mine == (other.version, other.fingerprint, other.documents_sha256)


@dataclass(frozen=True)
class GroupMetric:
    """A metric of a group, the mean over its tasks.

    Attributes:
        value: as lm-eval gives it.
        more_is_better: its direction.
        by_size: whether tasks are weighted by their documents; else all tasks weigh the same.
    """

    value: float | None
    more_is_better: bool
    by_size: bool


@dataclass(frozen=True)
class GroupResult:
    """The results of a model on a group of tasks: the names of the tasks, and the metrics that the group has itself."""

    tasks: list[str]
    metrics: dict[str, GroupMetric]


@dataclass(frozen=True)
class BenchmarkResult:
    """The results of a model on a benchmark, by names of lm-eval.

    Attributes:
        lm_eval: version of the package.
        main: the requested tasks and groups; the others are parts of them.
        tasks: results of each task.
        groups: results of each group that has metrics of its own.
    """

    lm_eval: str
    main: list[str]
    tasks: dict[str, TaskResult]
    groups: dict[str, GroupResult]

    def is_comparable(self, other: BenchmarkResult | None) -> bool:
        """Whether another result is of the same tasks, each with the same version and documents."""
        if other is None or other.tasks.keys() != self.tasks.keys():
            return False
        return all(result.is_comparable(other.tasks[name]) for name, result in self.tasks.items())

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> BenchmarkResult:
        """From the JSON of a result; raises KeyError or TypeError if it is not one."""
        tasks = {
            name: TaskResult(**{**each, "metrics": {key: MetricResult(**m) for key, m in each["metrics"].items()}})
            for name, each in content["tasks"].items()
        }
        groups = {
            name: GroupResult(each["tasks"], {key: GroupMetric(**m) for key, m in each["metrics"].items()})
            for name, each in content["groups"].items()
        }
        return cls(content["lm_eval"], content["main"], tasks, groups)


def metric_name(task: str, metric: str) -> str:
    """The name of a benchmark's metric in gates and figures: `gsm8k.exact_match`.

    Every character in the task's name that is neither a letter nor a digit becomes an underscore.
    """
    return f"{plain(task)}.{metric}"


def plain(name: str) -> str:
    """A name of lm-eval in letters, digits and underscores alone."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def first_metrics(benchmarks: Mapping[str, Any]) -> list[str]:
    """The first metric of each requested task and group.

    Args:
        benchmarks: the entry of `evaluation.json`.
    """
    main = {plain(name) for name in benchmarks["main"]}
    found: dict[str, str] = {}
    for name in benchmarks["checkpoints"][0]["metrics"]:
        task = name.partition(".")[0]
        if task in main:
            found.setdefault(task, name)
    return list(found.values())


def as_float(value: float | None) -> float:
    """A value of JSON, in which None stands for a number that is not finite."""
    return math.nan if value is None else value


def write_results(directory: Path, results: Mapping[str, BenchmarkResult]) -> None:
    """Writes the results of a model, by benchmark, beside it."""
    content = {"results": {name: asdict(result) for name, result in results.items()}}
    write_document(directory / BENCHMARKS, content)


def read_results(directory: Path) -> dict[str, BenchmarkResult]:
    """The results of an exported model, by benchmark; empty if it was evaluated without any.

    Raises:
        UserError: the file is damaged.
    """
    path = directory / BENCHMARKS
    if not path.is_file():
        return {}
    return read_as(
        path,
        "evaluated model",
        lambda content: {name: BenchmarkResult.from_json(each) for name, each in content["results"].items()},
    )
