"""Gates: conditions on test metrics that a model must meet to be promoted, such as `accuracy>=0.95`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_pipelines.errors import nearest
from gpu_pipelines.numbers import finite_or_none, number_of
from gpu_pipelines.recipes.tasks import Metric

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
        """Looks at a metric; one that is NaN or infinite passes nothing."""
        value = metrics[self.metric]
        passed = math.isfinite(value) and bool(_OPERATORS[self.sign](value, self.threshold))
        wanted = repr(self.threshold).removesuffix(".0")
        why = f"{self.metric} is {shown_beside(value, self.threshold)}, wanted {self.sign} {wanted}"
        return GateResult(str(self), finite_or_none(value), self.threshold, passed, why)


@dataclass(frozen=True)
class GateResult:
    """How a gate came out: the value it saw (None if it is not a finite number), and why that passes or not."""

    gate: str
    value: float | None
    threshold: float | None
    passed: bool
    why: str


def shown_beside(value: float, other: float) -> str:
    """A value with four decimals, or as many as it takes not to look equal to, or beyond, what it is compared with."""
    if not math.isfinite(value):
        return "not a finite number"
    for digits in (4, 6, 8):
        text = f"{value:.{digits}f}"
        if (float(text) > other) == (value > other) and (float(text) < other) == (value < other):
            return text
    return repr(value)


def parse_gate(text: str, metrics: Mapping[str, Metric] | None) -> Gate:
    """Parses `METRIC>=NUMBER` (or `<=`, `>`, `<`).

    Args:
        text: the gate.
        metrics: those there are; None where they are not known before a user's function is called.

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
    gate = Gate(match["metric"], match["sign"], threshold)
    if metrics is None:
        return gate
    if gate.metric not in metrics:
        raise ValueError(f"There is no metric {gate.metric!r} to gate on. {nearest(gate.metric, metrics)}")
    lowest, largest = 0.0, metrics[gate.metric].largest
    if not any(_OPERATORS[gate.sign](end, gate.threshold) for end in (lowest, largest)):
        reach = f"{lowest:g} to {largest:g}" if largest < math.inf else f"{lowest:g} upwards"
        raise ValueError(f"Nothing can pass the gate {text[:60]!r}: {gate.metric} goes from {reach}.")
    return gate
