"""Gates: conditions on test metrics that a model must meet to be promoted, such as `accuracy>=0.95`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_pipelines.errors import nearest
from gpu_pipelines.numbers import number_of
from gpu_pipelines.recipes.tasks import TASKS

_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_GATE = re.compile(r"\s*(?P<metric>[A-Za-z_][\w.]*)\s*(?P<sign>>=|<=|>|<)\s*(?P<threshold>[^\s<>=]\S*)\s*", re.ASCII)


@dataclass(frozen=True)
class Gate:
    """One condition: `metric` compared by `sign` with `threshold`."""

    metric: str
    sign: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{repr(self.threshold).removesuffix('.0')}"

    def check(self, metrics: Mapping[str, float]) -> GateResult:
        value = metrics[self.metric]
        passed = bool(_OPERATORS[self.sign](value, self.threshold))
        wanted = repr(self.threshold).removesuffix(".0")
        why = f"{self.metric} is {shown_beside(value, self.threshold)}, wanted {self.sign} {wanted}"
        return GateResult(gate=str(self), value=value, threshold=self.threshold, passed=passed, why=why)


@dataclass(frozen=True)
class GateResult:
    """How a gate came out: the value it saw, and why that passes or not."""

    gate: str
    value: float | None
    threshold: float | None
    passed: bool
    why: str


def shown_beside(value: float, other: float) -> str:
    """A value with four decimals, or as many as it takes not to look equal to, or beyond, what it is compared with."""
    for digits in (4, 6, 8):
        text = f"{value:.{digits}f}"
        if (float(text) > other) == (value > other) and (float(text) < other) == (value < other):
            return text
    return repr(value)


def parse_gate(text: str, task: str) -> Gate:
    """Parses `METRIC>=NUMBER` (or `<=`, `>`, `<`).

    Raises:
        ValueError: with a message that says what is wrong and what would do.
    """
    match = _GATE.fullmatch(text)
    if not match:
        raise ValueError(f"The gate {text[:60]!r} is not of the form METRIC>=NUMBER, such as accuracy>=0.95.")
    try:
        threshold = number_of(match["threshold"])
    except ValueError:
        raise ValueError(f"The gate {text[:60]!r} compares with {match['threshold'][:40]!r}, not a number.") from None
    metrics = TASKS[task].metrics
    if match["metric"] not in metrics:
        raise ValueError(f"There is no metric {match['metric']!r} to gate on. {nearest(match['metric'], metrics)}")
    gate = Gate(match["metric"], match["sign"], threshold)
    lowest, largest = 0.0, metrics[gate.metric].largest
    if not any(_OPERATORS[gate.sign](end, gate.threshold) for end in (lowest, largest)):
        reach = f"{lowest:g} to {largest:g}" if largest < math.inf else f"{lowest:g} upwards"
        raise ValueError(f"Nothing can pass the gate {text[:60]!r}: {gate.metric} goes from {reach}.")
    return gate
