"""Scores the text that models wrote: with metrics, functions of the user's own, and a judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.generation.judge import Judge, Question
from gpu_pipelines.evaluation.generation.port import Pair, Written
from gpu_pipelines.evaluation.generation.request import JSON_SCHEMA, JUDGE, TRANSFORMERS, TextRequest, name_of
from gpu_pipelines.evaluation.generation.rows import sampled, units_of
from gpu_pipelines.evaluation.generation.scores import Answer, ScoresWithText, figures_of
from gpu_pipelines.evaluation.generation.text_metrics import TEXT_METRICS, json_matches
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.evaluation.user_function import UserFunction, load_function
from gpu_pipelines.tasks.tasks import task_named

Metric = Callable[[str, str], float]


class TextScoring:
    """Scores written text; made once, in the process that reports.

    Args:
        request: what is asked; checked.
        dataset: whose prompts are answered.
        judges_val: whether the judge also judges `val`, which costs as much again for each checkpoint.

    Raises:
        UserError: the dataset has no references, or a function, the schema or the judge's key is missing.
    """

    def __init__(self, request: TextRequest, dataset: Dataset, judges_val: bool = False) -> None:
        self.request = request
        self._judges_val = judges_val
        self._task = task_named(dataset.manifest.task).load_text_task(dataset)
        self._functions = {name_of(given): load_function(given, "function") for given in request.functions}
        self._metrics: dict[str, Metric] = {
            name: TEXT_METRICS[name] for name in request.generate if name in TEXT_METRICS
        }
        if JSON_SCHEMA in request.generate:
            self._metrics[JSON_SCHEMA] = json_matches(request.schema())
        self._judge = Judge(request.judge) if JUDGE in request.generate else None
        self._pairs: dict[str, tuple[list[Pair], int]] = {}

    def pairs(self, split: str) -> list[Pair]:
        """The prompts of a split to answer, in its order."""
        return self._chosen(split)[0]

    def prompts_in(self, split: str) -> int:
        """Number of prompts of a split, answered or not."""
        return self._chosen(split)[1]

    def units(self, split: str) -> list[np.ndarray]:
        """Numbers of the prompts that are answered together."""
        return units_of(self.pairs(split))

    def scores(self, written: np.ndarray, split: str, others: Scores, by: str = TRANSFORMERS) -> ScoresWithText:
        """The scores of a model.

        Args:
            written: what it wrote, `Written` by `Written`, unit after unit.
            split: whose prompts it answered.
            others: its scores without text.
            by: what wrote.
        """
        order = np.concatenate(self.units(split))
        by_pair: dict[int, Written] = dict(zip(order.tolist(), written, strict=True))
        answers = [self._answer(pair, by_pair[number]) for number, pair in enumerate(self.pairs(split))]
        names = [name_of(given) for given in self.request.generate]
        if split == "val" and not self._judges_val:
            names = [name for name in names if name != JUDGE]
        if self._judge is not None and JUDGE in names:
            judged = self._judge.judged([Question(a.prompt, a.text, a.reference) for a in answers])
            answers = [replace(answer, judgement=each) for answer, each in zip(answers, judged, strict=True)]
        columns = {name: self._column(name, answers) for name in names}
        _say_failures(answers)
        found = ScoresWithText(others, figures_of(answers, columns), answers, by)
        shown = "  ".join(f"{name} {value:.4f}" for name, value in found.texts.metrics().items())
        print(f"{len(answers):,} answers on {split}  {shown}", flush=True)
        return found

    def _answer(self, pair: Pair, written: Written) -> Answer:
        return Answer(
            number=pair.number,
            row=pair.row,
            source=pair.source,
            prompt=self._task.text(pair.prompt.tolist(), whole=True),
            reference=self._task.text(pair.reference.tolist()),
            text=self._task.text(written.tokens),
            tokens=len(written.tokens),
            ended=written.ended,
        )

    def _column(self, name: str, answers: Sequence[Answer]) -> list[float]:
        if name == JUDGE:
            scores = [answer.judgement.score if answer.judgement else None for answer in answers]
            return [math.nan if score is None else score for score in scores]
        if name in self._metrics:
            return [self._metrics[name](answer.text, answer.reference) for answer in answers]
        return [_called(self._functions[name], answer) for answer in answers]

    def _chosen(self, split: str) -> tuple[list[Pair], int]:
        if split not in self._pairs:
            pairs = self._task.pairs(split)
            if not pairs:
                raise UserError(f"The split {split} has no prompt with a reference.", "Leave generate out.")
            self._pairs[split] = sampled(pairs, self.request.generate_rows), len(pairs)
        return self._pairs[split]


def _called(function: UserFunction, answer: Answer) -> float:
    """What a user's function gives for an answer."""
    returned = function.call(f"the answer to {answer.source}", answer.prompt, answer.text, answer.reference)
    try:
        value = float(returned)
    except (TypeError, ValueError):
        value = math.nan
    if isinstance(returned, str) or not math.isfinite(value):
        raise UserError(
            f"{function.name} returned {str(returned)[:100]!r} for the answer to {answer.source}.",
            "Let it return a number, true or false for prompt, answer and reference.",
        )
    return value


def _say_failures(answers: Sequence[Answer]) -> None:
    failures = [a.judgement.failure for a in answers if a.judgement is not None and a.judgement.score is None]
    if failures:
        print(
            f"warning: the judge gave no score for {len(failures):,} of {len(answers):,} answers, which are left out. "
            f"The first one: {failures[0]}",
            flush=True,
        )
