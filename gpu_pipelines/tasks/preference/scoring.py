"""Scores preferences: whether a model finds the completion better that people chose, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gpu_pipelines.evaluation.scores import SummedScores
from gpu_pipelines.evaluation.scoring import WORST_KEPT, Columns, Scoring
from gpu_pipelines.evaluation.statistics.bootstrap import Resampled
from gpu_pipelines.numbers import finite_or_none
from gpu_pipelines.tasks.instances import decoded, prompts_to_send
from gpu_pipelines.tasks.preference.losses import ORPO, SIGMOID, Said, drift_of, judged_losses, pair_losses, rewards
from gpu_pipelines.tasks.preference.recipe import FIRST, FIRST_TOKENS, PREDICTED, SECOND, SECOND_TOKENS, WHOLE

RIGHT, MARGIN, LOSS, ROWS, FIRST_REWARD, SECOND_REWARD = range(6)
#: Characters of each text that a report shows.
_SHOWN = 240
_BETA = 0.1


@dataclass(frozen=True)
class PreferenceScores(SummedScores):
    """Margins of rows: by how much more a completion is worth that was chosen, or judged good.

    Attributes:
        sums: float64 (rows, 6): whether the margin is above 0, where a half is for neither; the margin; the loss; 1;
            and the rewards of the first and the second completion.
        judged: of rows with one completion each, bool (rows,): which were judged good; None of pairs.
    """

    judged: np.ndarray | None = None

    def subset(self, rows: np.ndarray) -> PreferenceScores:
        return PreferenceScores(self.sums[rows], None if self.judged is None else self.judged[rows])

    @property
    def right(self) -> np.ndarray:
        """Bool (rows,): whether the margin is above 0."""
        return self.sums[:, RIGHT] == 1

    def of_totals(self, totals: np.ndarray) -> Resampled:
        """Share of rows whose margin is above 0, mean margin, and mean loss."""
        with np.errstate(divide="ignore", invalid="ignore"):
            means = totals / totals[:, [ROWS]]
        return {
            "accuracy": means[:, RIGHT],
            "margin": means[:, MARGIN],
            "loss": means[:, LOSS],
        }

    def details(self) -> dict[str, Any]:
        """The mean reward of each kind of completion."""
        if self.judged is None:
            kinds = {"chosen": self.sums[:, FIRST_REWARD], "rejected": self.sums[:, SECOND_REWARD]}
        else:
            kinds = {
                "good": self.sums[self.judged, FIRST_REWARD],
                "bad": self.sums[~self.judged, FIRST_REWARD],
            }
        told = [(name, values) for name, values in kinds.items() if len(values)]
        return {"parts": [{"name": name, "rows": len(v), "mean reward": finite_or_none(v.mean())} for name, v in told]}


class PreferenceScoring(Scoring):
    """Takes (rows, 6): log-probabilities of both completions, their tokens, loss and tokens of prompt and the first."""

    _loss, _beta = SIGMOID, _BETA

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._reference: dict[str, np.ndarray] = {}

    def trained_with(self, settings: Mapping[str, Any]) -> None:
        self._loss, self._beta = settings.get("preference_loss", SIGMOID), settings.get("beta", _BETA)

    @property
    def has_reference(self) -> bool:
        return self._loss != ORPO

    def refer(self, predicted: np.ndarray, split: str) -> None:
        self._reference[split] = predicted[:, [FIRST, SECOND]]

    def width(self, labels: list[str]) -> int:
        return 6

    def shape(self, rows: int, labels: list[str]) -> str:
        return (
            f"({rows}, 6): log-probabilities of both completions, their tokens, loss and tokens of prompt and first one"
        )

    def scores(self, predicted: np.ndarray, split: str) -> PreferenceScores:
        of = torch.from_numpy(predicted.astype(np.float64))
        # A model that was trained elsewhere is scored by what it says alone.
        reference = torch.from_numpy(self._reference.get(split, np.zeros((len(predicted), 2))).astype(np.float64))
        whole = of[:, WHOLE] / of[:, PREDICTED].clamp(min=1)
        said = Said(of[:, [FIRST, SECOND]], reference, of[:, [FIRST_TOKENS, SECOND_TOKENS]], whole)
        worth, judged = rewards(said, self._loss, self._beta), self._judged(split)
        if judged is None:
            losses, margins = pair_losses(said, self._loss, self._beta), worth[:, 0] - worth[:, 1]
        else:
            has_other = said.tokens[:, 1] > 0
            drift = drift_of(said.ratios[has_other, 1].sum(), has_other.sum())
            is_good = torch.from_numpy(judged)
            losses = judged_losses(said, is_good, self._beta, drift)
            margins = torch.where(is_good, worth[:, 0], -worth[:, 0])
        right = torch.where(margins.isnan(), torch.nan, (margins > 0).double() + 0.5 * (margins == 0))
        parts = [right, margins, losses, torch.ones(len(of)), worth[:, 0], worth[:, 1]]
        return PreferenceScores(torch.stack([part.double() for part in parts], dim=1).numpy(), judged)

    def _judged(self, split: str) -> np.ndarray | None:
        if "label" not in self.dataset.manifest.features:
            return None
        return self.dataset.split(split).column("label") != 0

    def worst(self, scores: PreferenceScores) -> list[dict[str, Any]]:
        margins = scores.sums[:, MARGIN]
        rows = [int(row) for row in np.argsort(margins, kind="stable")[:WORST_KEPT] if np.isfinite(margins[row])]
        test = self.dataset.split("test")
        taken = test.take(np.array(rows, dtype=int))
        names = ["prompt", *(("chosen", "rejected") if scores.judged is None else ("completion",))]
        texts = {name: self._texts(taken, name) for name in names}
        shown = []
        for place, (row, source) in enumerate(zip(rows, test.sources(rows), strict=True)):
            told: dict[str, Any] = {"row": row, "source": source, "margin": round(float(margins[row]), 4)}
            if scores.judged is not None:
                told["judged"] = "good" if scores.judged[row] else "bad"
            told |= {name: texts[name][place][:_SHOWN] for name in names[1:]}
            shown.append({**told, "text": texts["prompt"][place][-_SHOWN:]})
        return shown

    def _texts(self, columns: Columns, name: str) -> list[str]:
        lengths = columns[f"{name}_length"]
        return decoded([row[:length] for row, length in zip(columns[name], lengths, strict=True)], self._tokenizer)

    @property
    def _tokenizer(self) -> Any:
        return self.dataset.tokenizer

    def examples(self, rows: Columns) -> tuple[list[dict[str, Any]], list[Columns]] | None:
        """Beginnings of prompts, as the server of a language model takes them."""
        longest = self.dataset.manifest.preprocessing["sequence_length"]
        instances, tokens = prompts_to_send(self._texts(rows, "prompt"), self._tokenizer, longest)
        return instances, [_row_of(each) for each in tokens]

    def prediction(self, predicted: np.ndarray, labels: list[str], instance: dict[str, Any]) -> dict[str, Any]:
        return {"loss": float(predicted[WHOLE] / predicted[PREDICTED]), "tokens": int(predicted[PREDICTED])}


def _row_of(tokens: np.ndarray) -> Columns:
    """A pair that consists of the tokens of a prompt, twice, with nothing but the first given."""
    found: Columns = {}
    for name, part in (("prompt", tokens[:1]), ("chosen", tokens[1:]), ("rejected", tokens[1:])):
        found |= {name: part[None], f"{name}_length": np.array([len(part)], dtype=np.int32)}
    return found
