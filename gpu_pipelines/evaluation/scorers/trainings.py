"""Scores the checkpoints of several trainings, each by its own configuration and recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.evaluation.generation.text_scoring import TextScoring
from gpu_pipelines.evaluation.models.candidates import Candidate, WorkOnModels
from gpu_pipelines.evaluation.scorers.recipe import RecipeScorer
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.registry import RegisteredVersion


class TrainingsScorer:
    """Hands each candidate to the scorer of its training, one of which has its models in memory; see `Scorer`.

    Args:
        dataset: of all trainings.
        directories: by the names of the trainings.
        average_last: how many of the last checkpoints of each training are averaged into one more candidate.
        processes: number of GPUs or CPU processes; None for all that the step was placed on.
        texts: what scores written text; None where none is written.
        texts_on_val: whether text is written for `val` as well, with each candidate.

    Raises:
        UserError: a training has no good checkpoint, or is one of other data.
    """

    def __init__(
        self,
        dataset: Dataset,
        directories: Mapping[str, Path],
        average_last: int = 0,
        processes: int | None = None,
        texts: TextScoring | None = None,
        texts_on_val: bool = False,
    ) -> None:
        self._scorers: dict[str, RecipeScorer] = {}
        try:
            for name, directory in directories.items():
                self._scorers[name] = RecipeScorer(
                    dataset, directory, average_last, processes, name, texts, texts_on_val
                )
                self._scorers[name].release()
        except BaseException:
            self.close()
            raise
        self.candidates = [candidate for scorer in self._scorers.values() for candidate in scorer.candidates]
        # Of the best one, as soon as that is known.
        self._current = next(iter(self._scorers.values()))

    def configuration_of(self, candidate: Candidate) -> dict[str, Any]:
        return self._of(candidate).configuration_of(candidate)

    def on_val(self, done: Callable[[int, Scores], None]) -> None:
        before = 0
        for scorer in self._scorers.values():
            scorer.on_val(lambda number, scores, before=before: done(before + number, scores))  # type: ignore[misc]
            scorer.release()
            before += len(scorer.candidates)

    def on_test(self, candidate: Candidate) -> Scores:
        self._current = self._of(candidate)
        return self._current.on_test(candidate)

    def champion_on_test(self, champion: RegisteredVersion) -> Scores:
        return self._current.champion_on_test(champion)

    def each(self, models: Sequence[Candidate | RegisteredVersion], work: WorkOnModels) -> None:
        """Does work with models, those of one training after those of another; the champion's with the best one's."""
        owners = [self._of(each) if isinstance(each, Candidate) else self._current for each in models]
        for scorer in dict.fromkeys(owners):
            mine = [number for number, owner in enumerate(owners) if owner is scorer]
            scorer.each([models[number] for number in mine], work.with_models(mine))
            if scorer is not self._current:
                scorer.release()

    def identity_of(self, candidate: Candidate) -> str:
        return self._of(candidate).identity_of(candidate)

    def latency(self, candidate: Candidate) -> dict[str, Any]:
        return self._of(candidate).latency(candidate)

    def worst(self, scores: Scores) -> list[dict[str, Any]]:
        return self._current.worst(scores)

    def slice_values(self, column: str) -> list[str]:
        return self._current.slice_values(column)

    def export(self, candidate: Candidate, directory: Path) -> None:
        self._of(candidate).export(candidate, directory)

    def close(self) -> None:
        for scorer in self._scorers.values():
            scorer.close()

    def _of(self, candidate: Candidate) -> RecipeScorer:
        return self._scorers[candidate.training]
