"""The losses of preference tuning, of each row, as TRL 1.16 computes them.

They take what a model says of whole completions, in nats, and know of no model; the training and the evaluation share
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

SIGMOID, IPO, KTO, ORPO = "sigmoid", "ipo", "kto", "orpo"


@dataclass(frozen=True)
class Said:
    """Log-probabilities of the completions of some rows, by a model and by the one that the training began with.

    Attributes:
        sums: log-probabilities of the completions (rows, 2): of a pair the chosen and the rejected one; else of the own
            one, and of one that belongs to another row.
        reference: the same by the model that the training began with.
        tokens: their tokens (rows, 2).
        whole: the mean loss of the tokens of prompt and chosen completion (rows,); of ORPO.
    """

    sums: torch.Tensor
    reference: torch.Tensor
    tokens: torch.Tensor
    whole: torch.Tensor

    @property
    def ratios(self) -> torch.Tensor:
        """How much more probable the completions have become since, as logarithms (rows, 2)."""
        return self.sums - self.reference

    @property
    def means(self) -> torch.Tensor:
        """Log-probabilities of the completions, as means of their tokens (rows, 2)."""
        return self.sums / self.tokens.clamp(min=1)


def pair_losses(said: Said, loss: str, beta: float, smoothing: float = 0.0) -> torch.Tensor:
    """The loss of each pair (rows,).

    Args:
        said: of the pairs.
        loss: `sigmoid` (DPO, https://arxiv.org/abs/2305.18290), `ipo` (https://arxiv.org/abs/2310.12036, by the mean
            of the tokens) or `orpo` (https://arxiv.org/abs/2403.07691).
        beta: how much it costs to go away from the reference; of ORPO, how much the ratio of odds weighs.
        smoothing: share of the pairs that may have been judged the other way round; the loss is the expected one.
    """
    if loss == ORPO:
        return said.whole - beta * functional.logsigmoid(log_odds_ratio(said.means))
    if loss == IPO:
        each = said.ratios / said.tokens.clamp(min=1)
        drift = each[:, 0] - each[:, 1]
        right, wrong = (drift - 1 / (2 * beta)) ** 2, (drift + 1 / (2 * beta)) ** 2
    else:
        drift = beta * (said.ratios[:, 0] - said.ratios[:, 1])
        right, wrong = -functional.logsigmoid(drift), -functional.logsigmoid(-drift)
    return right if not smoothing else (1 - smoothing) * right + smoothing * wrong


def log_odds_ratio(means: torch.Tensor) -> torch.Tensor:
    """The logarithm of the ratio of the odds of chosen and rejected completions (rows,); see ORPO, equation 4."""
    # The odds of a probability that is 1 in fp32 are not finite, and its gradient is no number.
    means = means.clamp(max=-torch.finfo(means.dtype).eps)
    odds = means - torch.log(-torch.expm1(means))
    return odds[:, 0] - odds[:, 1]


def judged_losses(said: Said, is_good: torch.Tensor, beta: float, drift: torch.Tensor) -> torch.Tensor:
    """The loss of each completion that was judged (rows,): KTO, https://arxiv.org/abs/2402.01306, equation 7.

    Args:
        said: of the rows.
        is_good: bool (rows,).
        beta: how much it costs to go away from the reference.
        drift: how far the model has gone away from the reference, as `drift_of` estimates it.
    """
    distance = said.ratios[:, 0] - drift
    return 1 - torch.sigmoid(beta * torch.where(is_good, distance, -distance))


def drift_of(total: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The divergence from the reference, estimated by completions after prompts of other rows; at least 0.

    Args:
        total: sum of their log ratios.
        rows: how many they are.
    """
    return (total / rows.clamp(min=1)).clamp(min=0)


def rewards(said: Said, loss: str, beta: float) -> torch.Tensor:
    """The implicit rewards of completions for a model (rows, 2); for ORPO, which has no reference, by their means."""
    return beta * (said.means if loss == ORPO else said.ratios)
