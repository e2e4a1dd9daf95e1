"""Chooses the values of the next trial: Optuna's samplers, as a function of the seed and of the earlier trials.

No sampler is kept: each trial has one of its own, seeded by the study's seed and the trial's number. So a study that
was killed continues as if it had not been.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.tuning.space import Dimension, SearchSpace

SAMPLERS = ("tpe", "random")


@dataclass(frozen=True)
class Known:
    """What is known of an earlier trial.

    Attributes:
        values: the values of its dimensions.
        losses: the losses on val, by rung; infinite if it failed.
        is_whole: whether it reached its last step.
        is_running: whether more losses follow soon.
    """

    values: Mapping[str, Any]
    losses: Mapping[int, float]
    is_whole: bool
    is_running: bool


def problems_of_sampler() -> list[str]:
    """The problem that Optuna is not installed, if so; without the second that its import takes."""
    if find_spec("optuna") is not None:
        return []
    return ["A search for parameters needs Optuna. Install it: pip install 'gpu-pipelines[tune]'."]


def require_optuna() -> None:
    """Raises UserError if Optuna is not installed."""
    if problems := problems_of_sampler():
        raise UserError.of_all(problems)


def next_values(space: SearchSpace, known: Sequence[Known], seed: int, sampler: str = "tpe") -> dict[str, Any]:
    """The values of the next trial.

    Args:
        space: the search space.
        known: the trials before it, by number.
        seed: the seed of the study.
        sampler: one of `SAMPLERS`. TPE: Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization,
            https://papers.nips.cc/paper/4443.
    """
    study = _study(space, known, seed, sampler)
    trial = study.ask()
    values: dict[str, Any] = {}
    for dimension in space.dimensions:
        if dimension.counts(values):
            values[dimension.name] = _suggested(trial, dimension)
    return values


def importance(space: SearchSpace, known: Sequence[Known]) -> dict[str, float]:
    """The share of each parameter in the variance of the losses, in shares of 1; empty if it is too early.

    Args:
        space: the search space.
        known: the trials; each counts with its last loss.
    """
    from optuna.importance import get_param_importances

    study = _study(space, known, 0, "random", all_whole=True)
    everywhere = [each.name for each in space.dimensions if not each.when]
    if len(study.get_trials()) < 4 or not everywhere:
        return {}
    with _quietly():
        return {name: float(share) for name, share in get_param_importances(study, params=everywhere).items()}


def _study(space: SearchSpace, known: Sequence[Known], seed: int, sampler: str, *, all_whole: bool = False) -> Any:
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    digest = hashlib.sha256(f"{seed} {len(known)}".encode()).digest()
    own = int.from_bytes(digest[:4], "big")
    with _quietly():
        made: Any = (
            optuna.samplers.RandomSampler(seed=own)
            if sampler == "random"
            else optuna.samplers.TPESampler(seed=own, multivariate=True, group=True, constant_liar=True)
        )
        study = optuna.create_study(sampler=made, direction="minimize")
    distributions = {each.name: _distribution(each) for each in space.dimensions}
    for each in known:
        finite = {rung: loss for rung, loss in each.losses.items() if loss < float("inf")}
        whole = (all_whole and finite) or (each.is_whole and len(finite) == len(each.losses))
        if all_whole and not finite:
            continue
        state = TrialState.RUNNING if each.is_running else TrialState.PRUNED
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE if whole else state,
                value=finite[max(finite)] if whole else None,
                params=dict(each.values),
                distributions={name: distributions[name] for name in each.values},
                intermediate_values=dict(each.losses),
            )
        )
    return study


def _suggested(trial: Any, dimension: Dimension) -> Any:
    if dimension.kind == "categorical":
        return trial.suggest_categorical(dimension.name, dimension.choices)
    if dimension.kind == "int":
        low, high = int(dimension.low), int(dimension.high)
        return trial.suggest_int(dimension.name, low, high, step=int(dimension.step), log=dimension.log)
    step = dimension.step or None
    return trial.suggest_float(dimension.name, dimension.low, dimension.high, step=step, log=dimension.log)


def _distribution(dimension: Dimension) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.kind == "categorical":
        return CategoricalDistribution(dimension.choices)
    if dimension.kind == "int":
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log, step=int(dimension.step))
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log, step=dimension.step or None)


@contextmanager
def _quietly() -> Iterator[None]:
    """Hides the warnings that parts of Optuna may change in later versions: its version is pinned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
