"""The registry's champion beside a model: its scores on the same rows, and whether the data is still the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpu_pipelines.artifacts.dataset import Manifest
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.champion.comparison import Comparison, Incomparable
from gpu_pipelines.evaluation.champion.shift import ShiftCheck, checks
from gpu_pipelines.evaluation.models.candidates import NoComparisonError, Scorer
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.registry import RegisteredVersion
from gpu_pipelines.registry.registered import DamagedVersionError


@dataclass(frozen=True)
class Champion:
    """What is known about the champion.

    Attributes:
        version: its number.
        digest: hex SHA-256 of its files.
        comparison: the model beside it, or why there is none.
        recorded: the evaluation that it was registered with; None if there is none, or its files are damaged.
        shift: the checks whether the data is what it was evaluated on.
    """

    version: int
    digest: str
    comparison: Comparison | Incomparable
    recorded: Evaluation | None
    shift: list[ShiftCheck]

    @property
    def scores(self) -> Scores | None:
        """Its scores on the test rows; None if it could not be scored."""
        return self.comparison.theirs if isinstance(self.comparison, Comparison) else None

    def summary(self, test_source: Mapping[str, Any] | None) -> dict[str, Any]:
        """What `evaluation.json` says about it.

        Args:
            test_source: the fixed test set of the dataset, if it has one.
        """
        found = {**self.comparison.summary(), "digest": self.digest}
        if test_source is None:
            return found
        theirs = (self.recorded.test_source if self.recorded else None) or {}
        return {**found, "same_test_set": theirs.get("fingerprint") == test_source["fingerprint"]}


def beside(registered: RegisteredVersion, scorer: Scorer, scores: Scores, manifest: Manifest) -> Champion:
    """Scores the champion. If it cannot be scored, it stays champion, and the evaluation does not fail.

    Args:
        registered: the champion.
        scorer: of the dataset.
        scores: of the model on test.
        manifest: of the dataset.

    Raises:
        UserError: the champion is a model for something else.
    """
    comparison: Comparison | Incomparable
    known = partial(Champion, registered.number, registered.recorded_digest)
    try:
        files = registered.path
    except DamagedVersionError as error:
        return known(_not_compared(registered, error), None, [])
    try:
        recorded = Evaluation.load(files) if (files / EVALUATION).is_file() else None
    except UserError as error:  # of a newer format, say
        return known(_not_compared(registered, error), None, [])
    try:
        comparison = Comparison(*scores.paired_with(scorer.champion_on_test(registered)), registered.number)
    except NoComparisonError as error:
        comparison = _not_compared(registered, error)
    theirs = comparison.theirs if isinstance(comparison, Comparison) else None
    return known(comparison, recorded, checks(recorded, manifest, theirs) if recorded else [])


def _not_compared(registered: RegisteredVersion, error: UserError) -> Incomparable:
    print(f"warning: {error}", flush=True)
    return Incomparable(registered.number, error.problem.rstrip("."))
