"""The facts for a tracker from each artifact of a run: the one place where artifacts become parameters and figures.

A step sends what it has made, and also what it has read: the step before may be reused from an earlier run, or the
tracker may have been unreachable then.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_pipelines import __version__
from gpu_pipelines.accelerators import plan
from gpu_pipelines.accelerators.cost import estimate_cost
from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import ACCELERATOR

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Manifest
    from gpu_pipelines.artifacts.evaluation import Evaluation

#: Trackers show no longer values, and some refuse them.
_LONGEST = 500


@dataclass(frozen=True)
class Facts:
    """Known facts, without curves.

    Attributes:
        parameters: the parameters and properties of the run.
        figures: numbers without a step.
        entries: entries of curves, as in a `metrics.jsonl`.
    """

    parameters: dict[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)

    def __add__(self, other: Facts) -> Facts:
        """These facts with others, which take precedence."""
        return Facts(
            {**self.parameters, **other.parameters},
            {**self.figures, **other.figures},
            [*self.entries, *other.entries],
        )


def facts_of_dataset(manifest: Manifest) -> Facts:
    """The facts of a dataset: its source, its fingerprint, and its rows."""
    splits = {f"rows_{split}": manifest.rows(split) for split in manifest.splits}
    told = {
        "task": manifest.task,
        "source": manifest.source,
        "dataset_fingerprint": manifest.fingerprint,
        "source_fingerprint": manifest.source_fingerprint,
        "rows_rejected": sum(manifest.rejected.values()),
        "duplicates": manifest.duplicates,
        **splits,
    }
    return Facts(_texts(told))


def facts_of_training(configuration: Mapping[str, Any]) -> Facts:
    """The facts of a training: its parameters and its hardware.

    Args:
        configuration: the content of `training.json`.
    """
    devices = configuration.get("devices", {})
    told = {
        **configuration.get("settings", {}),
        "code_version": __version__,
        "device": devices.get("name", ""),
        "processes": devices.get("world_size", ""),
        "precision": configuration.get("precision", ""),
        "parallelism": configuration.get("parallelism", ""),
        "total_steps": configuration.get("total_steps", ""),
    }
    return Facts(_texts(told)) + facts_of_plan(os.environ.get(ACCELERATOR, ""))


def facts_of_study(parameters: Mapping[str, Any], figures: Mapping[str, float]) -> Facts:
    """The facts of a search for parameters.

    Args:
        parameters: the best ones.
        figures: the figures of the search.
    """
    told = facts_of_plan(os.environ.get(ACCELERATOR, ""))
    return Facts(_texts(parameters), {f"study_{name}": value for name, value in figures.items()}) + told


def facts_of_plan(spec: str) -> Facts:
    """The accelerator of a step and its list price in the cheapest place.

    Args:
        spec: the accelerator, such as l4:2; empty if none was chosen.
    """
    if not spec:
        return Facts()
    try:
        cost = estimate_cost(plan(spec))
    except UserError:  # of another version's catalog
        return Facts(_texts({"accelerator": spec}))
    price = cost.per_hour(cost.regions[0]) if cost and cost.regions else None
    return Facts(_texts({"accelerator": spec, "usd_per_hour": "" if price is None else round(price, 2)}))


def facts_of_evaluation(evaluation: Evaluation) -> Facts:
    """Scores on test with their intervals, those of each checkpoint on val, and the verdict."""
    figures: dict[str, float] = {}
    for name, metric in evaluation.test["metrics"].items():
        values = {"": metric["value"], "_low": metric.get("low"), "_high": metric.get("high")}
        figures |= {f"test_{name}{end}": value for end, value in values.items() if _is_finite(value)}
    figures |= benchmark_figures(evaluation, with_intervals=True)
    champion = evaluation.champion_version
    told = {
        "task": evaluation.task,
        "dataset_fingerprint": evaluation.dataset_fingerprint,
        "source_fingerprint": evaluation.source_fingerprint,
        "model_name": evaluation.model_name,
        "best_checkpoint": evaluation.best,
        "passed": evaluation.passed,
        "compared_with_version": "" if champion is None else champion,
    }
    trained = evaluation.trained_checkpoints
    if evaluation.trainings or len({scored["step"] for scored in trained}) < len(trained):
        return Facts(_texts(told), figures)  # checkpoints of several trainings, or without numbers, are no curve
    ran = {each["name"]: each["metrics"] for each in (evaluation.benchmarks or {}).get("checkpoints", [])}
    entries = []
    for scored in trained:
        values = {f"checkpoint_val_{name}": value for name, value in scored["val"].items()}
        on_benchmarks = ran.get(scored["name"], {})
        values |= {f"checkpoint_{_of_benchmark(name)}": metric["value"] for name, metric in on_benchmarks.items()}
        entries.append({"step": scored["step"], **values})
    return Facts(_texts(told), figures, entries)


def benchmark_figures(evaluation: Evaluation, with_intervals: bool = False) -> dict[str, float]:
    """The numbers of the best checkpoint on benchmarks, as `benchmark_TASK_METRIC`."""
    if evaluation.benchmarks is None:
        return {}
    found: dict[str, float] = {}
    for name, metric in evaluation.benchmarks["checkpoints"][0]["metrics"].items():
        ends = {"": metric["value"], **({"_low": metric["low"], "_high": metric["high"]} if with_intervals else {})}
        found |= {f"{_of_benchmark(name)}{end}": value for end, value in ends.items() if _is_finite(value)}
    return found


def _of_benchmark(metric: str) -> str:
    return f"benchmark_{metric.replace('.', '_')}"


def facts_of_version(version: Mapping[str, Any]) -> Facts:
    """The version in the registry.

    Args:
        version: metadata of the artifact `model` of `upload_model`.
    """
    told = {
        "registered_model": version["model_name"],
        "registered_version": version["version"],
        "registered_aliases": ",".join(version["aliases"]),
        "registered_place": version["resource_name"],
    }
    return Facts(_texts(told))


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as parameters of trackers; empty ones are left out."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return {name: text[:_LONGEST] for name, text in texts.items() if text not in ("", "null", "[]", "{}")}


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
