"""Scores of written text, beside the scores that a model has without writing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.generation.judge import Judgement
from gpu_pipelines.evaluation.scores import Scores, SummedScores
from gpu_pipelines.evaluation.statistics.bootstrap import Resampled
from gpu_pipelines.evaluation.statistics.moved import ShiftCheck

#: Of a metric that fewer of the rows have, as where a judge was away, nobody knows whether the others are like them.
FEWEST_KNOWN = 0.95


@dataclass(frozen=True)
class Answer:
    """What was written for a row.

    Attributes:
        number: its row in the scores of the split.
        row: of the split.
        source: where it is from.
        prompt: as the model reads it, special tokens with it.
        reference: what follows the prompt in the row.
        text: what the model wrote.
        tokens: number of tokens that it wrote.
        ended: whether the model ended the text itself, and not the limit.
        judgement: of the judge, if there is one.
    """

    number: int
    row: int
    source: str
    prompt: str
    reference: str
    text: str
    tokens: int
    ended: bool
    judgement: Judgement | None = None


@dataclass(frozen=True)
class TextScores(SummedScores):
    """Means over rows of figures of their text.

    Attributes:
        sums: float64 (rows, metrics): the figures, NaN if unknown.
        names: of the metrics.
    """

    names: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> np.ndarray:
        known = ~np.isnan(self.sums)
        return np.concatenate([np.where(known, self.sums, 0.0), known], axis=1)

    def of_totals(self, totals: np.ndarray) -> Resampled:
        """The mean of each metric over the rows that have it; NaN if these are fewer than 95% of all."""
        count, known = len(self.names), self.columns[:, len(self.names) :].sum(axis=0)
        found = {}
        for place, name in enumerate(self.names):
            with np.errstate(divide="ignore", invalid="ignore"):
                mean = totals[:, place] / totals[:, count + place]
            found[name] = mean if known[place] >= FEWEST_KNOWN * self.rows else np.full(len(totals), np.nan)
        return found

    def values_of(self, metric: str) -> np.ndarray:
        """A metric of each row, (rows,)."""
        return np.asarray(self.sums[:, self.names.index(metric)])


@dataclass(frozen=True)
class ScoresWithText(Scores):
    """Scores of all rows, with those of the text that was written for some of them.

    Attributes:
        others: of all rows, without text.
        texts: of the rows that text was written for.
        answers: the text itself, in the same order.
        written_by: what wrote it.
    """

    others: Scores
    texts: TextScores
    answers: Sequence[Answer]
    written_by: str = ""

    @property
    def rows(self) -> int:
        return self.others.rows

    @cached_property
    def resampled(self) -> Resampled | None:
        others = self.others.resampled
        return None if others is None else {**others, **self.texts.resampled}

    def metrics(self) -> dict[str, float]:
        return {**self.others.metrics(), **self.texts.metrics()}

    def subset(self, rows: np.ndarray) -> ScoresWithText:
        """The scores of some of the rows, with the text of those that have one."""
        kept = np.flatnonzero(np.isin([answer.number for answer in self.answers], rows))
        texts = self.texts.subset(kept)
        return replace(
            self, others=self.others.subset(rows), texts=texts, answers=[self.answers[place] for place in kept.tolist()]
        )

    def details(self) -> dict[str, Any]:
        return self.others.details()

    def figures(self) -> dict[str, float]:
        return self.others.figures()

    @property
    def right(self) -> np.ndarray | None:
        return self.others.right

    def why_unknown(self, metric: str) -> str:
        if metric not in self.texts.names or (known := self.rows_of(metric)) >= FEWEST_KNOWN * self.texts.rows:
            return ""
        return f"only {known:,} of {self.texts.rows:,} rows have {metric}, fewer than {FEWEST_KNOWN:.0%}"

    def rows_of(self, metric: str) -> int:
        if metric not in self.texts.names:
            return self.others.rows_of(metric)
        return int((~np.isnan(self.texts.values_of(metric))).sum())

    def right_by(self, metric: str) -> np.ndarray | None:
        """Which rows have 1, for a metric that is 0 or 1 in each row."""
        if metric not in self.texts.names:
            return self.others.right_by(metric)
        values = self.texts.values_of(metric)
        return values == 1 if np.isin(values, (0, 1)).all() else None

    def paired_with(self, other: Scores) -> tuple[Scores, Scores]:
        """Both scores with only the figures that both have for a row."""
        if not isinstance(other, ScoresWithText):
            return self, other
        lacking = np.isnan(self.texts.sums) | np.isnan(other.texts.sums)
        ours, theirs = (
            replace(each, texts=replace(each.texts, sums=np.where(lacking, np.nan, each.texts.sums)))
            for each in (self, other)
        )
        return ours, theirs

    def moved(self, recorded: Evaluation, labels: Sequence[str], kept: Sequence[str]) -> list[ShiftCheck]:
        return self.others.moved(recorded, labels, kept)


def figures_of(answers: Sequence[Answer], columns: Mapping[str, Sequence[float]]) -> TextScores:
    """The scores of answers from the figures of each metric, in the order of the answers."""
    sums = np.array(list(columns.values()), dtype=np.float64).reshape(len(columns), len(answers)).T
    return TextScores(sums, tuple(columns))
