"""Gates: conditions on test metrics that a model must meet to be promoted, such as `accuracy>=0.95`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.errors import nearest
from gpu_pipelines.evaluation.benchmark_request import bounds_of, is_metric_of_benchmark
from gpu_pipelines.numbers import finite_or_none, number_of, shown_beside
from gpu_pipelines.tasks.metric import ERROR, Metric

_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
#: Of a scoring function that may be a name with a dash, such as f1-score.
_METRIC = r"[A-Za-z_][\w.-]*"
_TOKEN = re.compile(rf"{_METRIC}|[<>=!]+|[^\s<>=!]+", re.ASCII)
BETTER = "better_than_champion"
_LATENCIES = ("latency_p50_ms", "latency_p95_ms")
#: Percent. Five of the 1,000 resamples lie beyond each end of its interval; at 99.9% there would be none.
_HIGHEST_CONFIDENCE = 99
#: A mean of 0.95 may be 0.9499999999999998, by the order in which its numbers were added up.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Gate:
    """One condition: `metric` compared by `sign` with `threshold`."""

    metric: str
    sign: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{_number(self.threshold)}"

    def check(self, metrics: Mapping[str, float], unknown: str = "") -> GateResult:
        """Looks at a metric; one that is NaN or infinite passes nothing.

        Args:
            metrics: by name.
            unknown: why the metric is not known; empty if it is.
        """
        value = metrics[self.metric]
        value = self.threshold if math.isclose(value, self.threshold, rel_tol=_ROUNDING) else value
        passed = math.isfinite(value) and bool(_OPERATORS[self.sign](value, self.threshold))
        why = f"{self.metric} is {shown_beside(value, self.threshold)}, wanted {self.sign} {_number(self.threshold)}"
        why = f"{unknown}, wanted {self.metric} {self.sign} {_number(self.threshold)}" if unknown else why
        return GateResult(str(self), finite_or_none(value), self.threshold, passed, why)


@dataclass(frozen=True)
class ChampionGate:
    """`better_than_champion in METRIC by MARGIN at CONFIDENCE`.

    Attributes:
        metric: the metric to compare; empty for the metric that chooses the best checkpoint.
        margin: how much better, at least; 0 for any better.
        confidence: 0.5 to 0.99: the interval of the difference that must lie beyond the margin; None where the
            difference itself must.
    """

    metric: str = ""
    margin: float = 0.0
    confidence: float | None = None

    def __str__(self) -> str:
        parts = [BETTER, f" in {self.metric}" if self.metric else "", f" by {_number(self.margin)}" * bool(self.margin)]
        return "".join(parts) + (f" at {self.confidence * 100:g}%" if self.confidence is not None else "")


@dataclass(frozen=True)
class GateResult:
    """The result of a gate.

    Attributes:
        gate: as it was written.
        value: the metric; None if it is not a finite number.
        threshold: the number that it was compared with.
        passed: whether it holds.
        why: a sentence with the numbers.
        low: lower end of the interval of `value`, if the gate used one.
        high: its upper end.
    """

    gate: str
    value: float | None
    threshold: float | None
    passed: bool
    why: str
    low: float | None = None
    high: float | None = None


def parse_gate(
    text: str,
    metrics: Mapping[str, Metric] | None,
    figures: Mapping[str, Metric] | None = None,
    with_benchmarks: bool = False,
) -> Gate | ChampionGate:
    """Parses `METRIC>=NUMBER` (or `<=`, `>`, `<`), or `better_than_champion [in METRIC] [by NUMBER] [at NUMBER%]`.

    The metric of the latter may stand before it as well: `METRIC better_than_champion …`.

    Args:
        text: the gate.
        metrics: the existing metrics; None if they are only known after a call of the user's function.
        figures: further figures to gate on, but not to select by.
        with_benchmarks: whether there are metrics of benchmarks; only lm-eval knows which.

    Raises:
        ValueError: its message says what is wrong and where, and what would be right.
    """
    return _Parser(text, metrics, figures or {}, with_benchmarks).gate()


class _Parser:
    """Reads one gate from left to right."""

    def __init__(
        self, text: str, metrics: Mapping[str, Metric] | None, figures: Mapping[str, Metric], with_benchmarks: bool
    ) -> None:
        self._text = text
        self._with_benchmarks = with_benchmarks
        self._metrics = metrics
        self._tokens = [(match.group(), match.start()) for match in _TOKEN.finditer(text)]
        self._next = 0
        self._more = {**figures, **dict.fromkeys(_LATENCIES, ERROR)}
        self._more |= {f"slices.{name}.{end}": m for name, m in (metrics or {}).items() for end in ("min", "max")}

    def gate(self) -> Gate | ChampionGate:
        name, at = self._take("a metric, such as accuracy>=0.95")
        gate: Gate | ChampionGate
        if name == BETTER:
            gate = self._champion()
        elif self._tokens[self._next : self._next + 1] and self._tokens[self._next][0] == BETTER:
            self._next += 1
            gate = self._champion(self._compared(name, at))
        else:
            gate = self._condition(name, at)
        if self._next < len(self._tokens):
            rest, at = self._tokens[self._next]
            hint = " Give several gates as a list, not in one." if rest.startswith(",") else ""
            raise self._wrong(at, f"nothing more is expected here.{hint}")
        return gate

    def _condition(self, name: str, at: int) -> Gate:
        if not re.fullmatch(_METRIC, name, re.ASCII):
            # accuracy>=0,95 on a command line is two gates.
            hint = " In a number write a point: a comma begins another gate." if name.isdecimal() else ""
            raise self._wrong(at, f"a gate begins with a metric, such as accuracy>=0.95.{hint}")
        metric = self._known(name, at)
        sign, at = self._take("one of >=, <=, > and <")
        if sign not in _OPERATORS:
            raise self._wrong(at, f"{sign[:20]!r} is not one of >=, <=, > and <.")
        threshold, at = self._number("a number, such as 0.95")
        gate = Gate(name, sign, threshold)
        smallest, largest = (metric.smallest, metric.largest) if metric else (-math.inf, math.inf)
        if not any(_OPERATORS[sign](end, threshold) for end in (smallest, largest)):
            reach = f"{smallest:g} to {largest:g}" if largest < math.inf else f"{smallest:g} upwards"
            raise self._wrong(at, f"nothing can pass this: {name} goes from {reach}.")
        return gate

    def _champion(self, metric: str = "") -> ChampionGate:
        given: dict[str, Any] = {"in": metric} if metric else {}
        while self._next < len(self._tokens):
            word, at = self._take("")
            if word not in ("in", "by", "at") or word in given:
                raise self._wrong(at, "in METRIC, by NUMBER or at NUMBER% is expected here, each once.")
            given[word] = getattr(self, f"_{word}")()
        return ChampionGate(given.get("in", ""), given.get("by", 0.0), given.get("at"))

    def _in(self) -> str:
        return self._compared(*self._take("a metric"))

    def _compared(self, name: str, at: int) -> str:
        if self._metrics is not None and name not in self._metrics and not self._is_of_benchmark(name):
            raise self._wrong(at, f"there is no metric {name[:40]!r}. {self._nearest(name, self._metrics)}")
        return name

    def _by(self) -> float:
        margin, at = self._number("how much better, such as 0.005")
        if margin < 0:
            raise self._wrong(at, "a model that is worse by so much would be better; give a number of at least 0.")
        return margin

    def _at(self) -> float:
        word, at = self._take("a confidence, such as 95%")
        percent = number_or_none(word[:-1]) if word.endswith("%") else None
        if percent is None or not 50 <= percent <= _HIGHEST_CONFIDENCE:
            raise self._wrong(
                at,
                f"{word[:20]!r} is not a confidence of 50% to {_HIGHEST_CONFIDENCE}%, such as 95%. 1,000 resamples "
                "tell no more.",
            )
        return round(percent / 100, 12)

    def _number(self, wanted: str) -> tuple[float, int]:
        word, at = self._take(wanted)
        number = number_or_none(word)
        if number is None:
            raise self._wrong(at, f"{word[:40]!r} is not a number, such as 0.95.")
        return number, at

    def _take(self, wanted: str) -> tuple[str, int]:
        if self._next == len(self._tokens):
            raise self._wrong(len(self._text.rstrip()), f"{wanted} is missing here.")
        self._next += 1
        return self._tokens[self._next - 1]

    def _known(self, name: str, at: int) -> Metric | None:
        if name in self._more:
            return self._more[name]
        if self._is_of_benchmark(name):
            return bounds_of(name)
        if self._metrics is None:
            return None
        if name not in self._metrics:
            close = self._nearest(name, self._metrics, (BETTER, *self._more))
            raise self._wrong(at, f"there is no metric {name[:40]!r} to gate on. {close}")
        return self._metrics[name]

    def _is_of_benchmark(self, name: str) -> bool:
        return self._with_benchmarks and is_metric_of_benchmark(name)

    def _nearest(self, name: str, valid: Iterable[str], also: Iterable[str] = ()) -> str:
        """What was probably meant; of a metric of a benchmark that nobody asked for, how to ask for it."""
        asked = f"Name the benchmark: benchmarks={name.partition('.')[0]}." if is_metric_of_benchmark(name) else None
        return nearest(name, valid, also, asked)

    def _wrong(self, at: int, what: str) -> ValueError:
        # A long gate is shown around the place; other white space than blanks would shift the mark.
        start = max(0, at - 50)
        shown = re.sub(r"\s", " ", self._text[start : start + 70])
        return ValueError(
            f"The gate {self._text[:60]!r} is wrong at character {at + 1}: {what}\n"
            f"      {shown}\n      {' ' * (at - start)}^"
        )


def number_or_none(word: str) -> float | None:
    """A word as a number, or None, also for one that is too large for a float."""
    try:
        return finite_or_none(number_of(word))
    except ValueError:
        return None


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")
