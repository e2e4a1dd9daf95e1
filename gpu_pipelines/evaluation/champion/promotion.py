"""Whether a model may replace the champion, by their scores on the same rows."""

from __future__ import annotations

import math

from gpu_pipelines.evaluation.champion.comparison import Comparison, Incomparable
from gpu_pipelines.evaluation.gates import ChampionGate, GateResult
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.evaluation.settings import Ranking
from gpu_pipelines.evaluation.statistics.bootstrap import CONFIDENCE, fewest_rows
from gpu_pipelines.numbers import finite_or_none, shown_beside

BETTER_BY_VALUE = "better than the champion"


def better_by_value(scores: Scores, champion: Comparison | Incomparable | None, ranking: Ranking) -> GateResult:
    """The gate if no other compares with the champion: better by value, and not worse beyond chance.

    Of two equally good models, it promotes the new one about every second time: it rejects worse models,
    but does not ask for a proof of better ones. `better_than_champion at 95%` does.

    Args:
        scores: of the model on test.
        champion: the comparison with it; None if there is none.
        ranking: the metric to compare, and which way it is better.
    """
    metric, sign = ranking.metric, 1 if ranking.more_is_better else -1
    value = scores.metrics()[metric]
    if settled := _without_comparison(BETTER_BY_VALUE, metric, value, None, champion):
        return settled
    assert isinstance(champion, Comparison)
    other = champion.theirs.metrics()[metric]
    both, improvement = _both(metric, champion), sign * champion.difference(metric)
    ends = champion.ends(metric, CONFIDENCE)
    if ends is None:
        why = f"{both}: {_word(improvement)}; {_no_interval(metric, champion, CONFIDENCE)}"
        return GateResult(BETTER_BY_VALUE, value, other, improvement > 0, why)
    low, high = sorted(sign * end + 0.0 for end in ends)  # 0 has no sign
    passed = improvement > 0 and high >= 0
    test = champion.mcnemar(metric)
    beyond = (low > 0 or high < 0) and not (test and test["p_value"] > 1 - CONFIDENCE)
    chance = ", beyond chance" if beyond else ", which may be chance"
    why = (
        f"{both}: {_word(improvement)}{f' by {abs(improvement):.4f}{chance}' if improvement else ''} "
        f"({CONFIDENCE:.0%} interval of the improvement {low:.4f} to {high:.4f})"
    )
    return GateResult(BETTER_BY_VALUE, value, other, passed, why, low, high)


def better(
    gate: ChampionGate, scores: Scores, comparison: Comparison | Incomparable | None, ranking: Ranking
) -> GateResult:
    """The gate `better_than_champion`: better by more than its margin, in the whole interval if it asks for one.

    With few rows in which the models differ, the bootstrap's interval of a share is too narrow; so McNemar's exact
    test must agree, which keeps its level with any number of rows.

    Args:
        gate: the gate.
        scores: of the model on test.
        comparison: with the champion; None if there is none.
        ranking: the metric to compare, and which way it is better.
    """
    metric, sign = ranking.metric, 1 if ranking.more_is_better else -1
    if settled := _without_comparison(str(gate), metric, scores.metrics()[metric], gate.margin, comparison):
        return settled
    assert isinstance(comparison, Comparison)
    improvement = _without_rounding(sign * comparison.difference(metric), gate.margin)
    both = _both(metric, comparison)
    wanted = f"wanted more than {gate.margin:g}"
    if gate.confidence is None:
        passed = improvement > gate.margin
        gained = f"better by {shown_beside(improvement, gate.margin)}" if improvement >= 0 else "worse"
        return GateResult(str(gate), improvement, gate.margin, passed, f"{both}: {gained}, {wanted}")
    ends = comparison.ends(metric, gate.confidence)
    if ends is None:
        why = f"{both}: {_no_interval(metric, comparison, gate.confidence)}"
        return GateResult(str(gate), finite_or_none(improvement), gate.margin, False, why)
    low, high = sorted(_without_rounding(sign * end + 0.0, gate.margin) for end in ends)
    passed = low > gate.margin
    why = (
        f"{both}: {'better' if improvement >= 0 else 'worse'} by {abs(improvement):.4f}, {gate.confidence * 100:g}% "
        f"interval of the improvement {shown_beside(low, gate.margin)} to {high:.4f}, {wanted} in all of it"
    )
    test = comparison.mcnemar(metric)
    if passed and test and test["p_value"] > 1 - gate.confidence:
        passed = False
        why += (
            f"; the models differ in too few rows ({test['this_model_alone_right']} that this one alone gets right, "
            f"{test['champion_alone_right']} the champion; McNemar's p is {test['p_value']:.3f})"
        )
    return GateResult(str(gate), improvement, gate.margin, passed, why, low, high)


def _without_comparison(
    name: str, metric: str, value: float, threshold: float | None, comparison: Comparison | Incomparable | None
) -> GateResult | None:
    """What is settled without looking at two numbers: one of them is not there."""
    if not math.isfinite(value):
        return GateResult(name, None, threshold, False, f"{metric} on test is not a finite number")
    if comparison is None:
        return GateResult(name, None if threshold is not None else value, threshold, True, "there is no champion yet")
    if isinstance(comparison, Incomparable):
        why = f"version {comparison.version} could not be compared with, and stays: {comparison.why}"
        return GateResult(name, None, threshold, False, why)
    if not math.isfinite(comparison.ours.metrics().get(metric, math.nan)):
        why = f"too few rows have {metric} of both models, this one and version {comparison.version}, which stays"
        return GateResult(name, None, threshold, False, why)
    if not math.isfinite(comparison.theirs.metrics().get(metric, math.nan)):
        why = f"{metric} of version {comparison.version} is not a finite number on the same {comparison.ours.row_name}"
        return GateResult(name, None if threshold is not None else value, threshold, True, why)
    return None


def _without_rounding(difference: float, margin: float) -> float:
    """The margin itself where a difference of two metrics, 0.955 and 0.95, is off it by their last bits alone."""
    return margin if math.isclose(difference, margin, rel_tol=1e-9) else difference


def _no_interval(metric: str, comparison: Comparison, confidence: float) -> str:
    if comparison.ours.rows_of(metric) >= (fewest := fewest_rows(confidence)):
        return "no interval is known"
    return f"a {confidence * 100:g}% interval takes {fewest} {comparison.ours.row_name}"


def _word(improvement: float) -> str:
    return "better" if improvement > 0 else "worse" if improvement < 0 else "no better"


def _both(metric: str, comparison: Comparison) -> str:
    value, other = comparison.ours.metrics()[metric], comparison.theirs.metrics()[metric]
    equal = comparison.difference(metric) == 0
    ours, theirs = [f"{value:.4f}"] * 2 if equal else [shown_beside(value, other), shown_beside(other, value)]
    rows = f"the same {comparison.ours.rows_of(metric):,} {comparison.ours.row_name}"
    return f"{metric} is {ours}, version {comparison.version} has {theirs} on {rows}"
