"""Gates: conditions on test metrics that a model must meet to be promoted, such as `accuracy>=0.95`."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_pipelines.recipes.tasks import TASKS, nearest

_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_GATE = re.compile(r"\s*(?P<metric>[A-Za-z_][\w.]*)\s*(?P<sign>>=|<=|>|<)\s*(?P<threshold>\S+)\s*")


@dataclass(frozen=True)
class Gate:
    """One condition: `metric` compared by `sign` with `threshold`."""

    metric: str
    sign: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.threshold:g}"

    def check(self, metrics: Mapping[str, float]) -> GateResult:
        value = metrics[self.metric]
        passed = bool(_OPERATORS[self.sign](value, self.threshold))
        why = f"{self.metric} is {value:.4f}, wanted {self.sign} {self.threshold:g}"
        return GateResult(gate=str(self), value=value, threshold=self.threshold, passed=passed, why=why)


@dataclass(frozen=True)
class GateResult:
    """How a gate came out: the value it saw, and why that passes or not."""

    gate: str
    value: float | None
    threshold: float | None
    passed: bool
    why: str


def parse_gate(text: str, task: str) -> Gate:
    """Parses `METRIC>=NUMBER` (or `<=`, `>`, `<`).

    Raises:
        ValueError: with a message that says what is wrong and what would do.
    """
    match = _GATE.fullmatch(text)
    if not match:
        raise ValueError(f"The gate {text[:60]!r} is not of the form METRIC>=NUMBER, such as accuracy>=0.95.")
    try:
        threshold = float(match["threshold"])
    except ValueError:
        raise ValueError(f"The gate {text[:60]!r} compares with {match['threshold']!r}, not a number.") from None
    if threshold != threshold:
        raise ValueError(f"The gate {text[:60]!r} compares with NaN, which nothing can pass.")
    metrics = TASKS[task].metrics
    if match["metric"] not in metrics:
        raise ValueError(f"There is no metric {match['metric']!r} to gate on. {nearest(match['metric'], metrics)}")
    return Gate(match["metric"], match["sign"], threshold)
