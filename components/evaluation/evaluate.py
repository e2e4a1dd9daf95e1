"""Evaluates every checkpoint on `val`, the best one on `test`, beside the registry's champion on the same rows."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.exported_model import write_model_card
from gpu_pipelines.components.evaluation.bootstrap import json_metrics, without_interval
from gpu_pipelines.components.evaluation.candidates import Candidate, Scorer
from gpu_pipelines.components.evaluation.function_scoring import FunctionScorer
from gpu_pipelines.components.evaluation.gates import GateResult, shown_beside
from gpu_pipelines.components.evaluation.recipe_scoring import RecipeScorer
from gpu_pipelines.components.evaluation.scores import Scores, summary
from gpu_pipelines.components.evaluation.settings import EvaluationSettings, Ranking
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.registry import RegisteredVersion, model_name_for, open_registry

AT_LEAST_CHAMPION = "at least as good as the champion"
#: Of checkpoints that are equal by the metric that chooses, the one with the lowest of these is taken.
TIE_BREAKERS = ("log_loss", "loss")


def evaluate_checkpoints(
    settings: EvaluationSettings, dataset_directory: Path, checkpoint_directory: Path, export_directory: Path
) -> Evaluation:
    """Scores all checkpoints, exports the best one with its evaluation, and says whether it passed.

    Args:
        settings: gates, metric to choose by, scoring function, registry and name of the champion.
        dataset_directory: the dataset artifact; `val` ranks, `test` decides.
        checkpoint_directory: where training left its checkpoints.
        export_directory: where the best one goes: in Hugging Face layout, or as it is if a function scores it.

    Raises:
        UserError: there is no good checkpoint, or data, checkpoints and champion do not belong together.
    """
    dataset = Dataset(dataset_directory)
    task = dataset.manifest.task
    if problems := settings.problems(task):
        raise UserError.of_all(problems)
    scorer: Scorer
    if settings.scoring_function:
        scorer = FunctionScorer(settings, dataset, checkpoint_directory)
    else:
        scorer = RecipeScorer(dataset, checkpoint_directory)

    on_val = _score_all(scorer, settings, task)
    ranking = settings.ranking(task, on_val[0])
    best = _choose(scorer.candidates, on_val, ranking)
    scores, mistakes = scorer.on_test(best)
    name = settings.model_name or model_name_for(dataset.manifest.source)
    champion = _score_champion(scorer, open_registry(settings.registry).champion(name))
    gates = _check_gates(settings, task, scores, ranking, champion)
    evaluation = Evaluation(
        model_name=name,
        task=task,
        labels=dataset.manifest.labels,
        dataset_fingerprint=dataset.manifest.fingerprint,
        configuration=scorer.configuration,
        select_by=ranking.metric,
        checkpoints=[
            {"name": candidate.name, "step": candidate.step, "epoch": candidate.epoch, "val": json_metrics(metrics)}
            for candidate, metrics in zip(scorer.candidates, on_val, strict=True)
        ],
        best=best.name,
        test=summary(scores),
        champion=champion,
        gates=[asdict(gate) for gate in gates],
        passed=all(gate.passed for gate in gates),
        mistakes=mistakes,
        scoring_function=settings.scoring_function,
        rehearsal=best.rehearsal,
        source_fingerprint=dataset.manifest.source_fingerprint,
    )
    export_directory.mkdir(parents=True, exist_ok=True)
    scorer.export(best, export_directory)
    evaluation.save(export_directory)
    write_model_card(export_directory, evaluation, dataset.manifest.source)
    return evaluation


def _score_all(scorer: Scorer, settings: EvaluationSettings, task: str) -> list[dict[str, float]]:
    """Metrics of each checkpoint on `val`."""
    on_val: list[dict[str, float]] = []
    for number, candidate in enumerate(scorer.candidates, start=1):
        started = time.monotonic()
        metrics = scorer.on_val(candidate).metrics()
        if not on_val:
            _require_metrics(settings, task, metrics)
        on_val.append(metrics)
        # The first and the last metric of a task say most about it.
        names = dict.fromkeys((next(iter(metrics)), next(reversed(metrics))))
        shown = "  ".join(f"{name} {metrics[name]:.4f}" for name in names)
        took = time.monotonic() - started
        print(f"checkpoint {number}/{len(scorer.candidates)}  {candidate.name}  {shown}  {took:.1f} s", flush=True)
    return on_val


def _score_champion(scorer: Scorer, champion: RegisteredVersion | None) -> dict[str, Any] | None:
    if champion is None:
        return None
    return {"version": champion.number, "metrics": scorer.champion_on_test(champion)}


def _require_metrics(settings: EvaluationSettings, task: str, metrics: Mapping[str, float]) -> None:
    """Checks that what is asked for was computed, which for a user's own code shows only when it has run."""
    asked = [settings.ranking(task, metrics).metric, *(gate.metric for gate in settings.parsed_gates(task))]
    if missing := [name for name in asked if name not in metrics]:
        raise UserError(
            f"There is no metric {missing[0]!r} to select by or gate on; {settings.scoring_function or 'the recipe'} "
            f"gives {', '.join(metrics)}.",
            nearest(missing[0], metrics),
        )


def _choose(candidates: list[Candidate], on_val: list[dict[str, float]], ranking: Ranking) -> Candidate:
    """The best by the ranking's metric on val; among equals the one of lower loss, then the earlier one.

    Raises:
        UserError: the metric is not a finite number for any of them.
    """

    def rank(number: int) -> tuple[float, float, int]:
        metrics = on_val[number]
        value = -metrics[ranking.metric] if ranking.more_is_better else metrics[ranking.metric]
        loss = next((metrics[name] for name in TIE_BREAKERS if name in metrics), 0.0)
        return value, loss if math.isfinite(loss) else math.inf, number

    finite = [number for number in range(len(candidates)) if math.isfinite(on_val[number][ranking.metric])]
    if not finite:
        raise UserError(
            f"{ranking.metric} on val is not a finite number for any of the {len(candidates)} checkpoints.",
            "The training has diverged, or the rows of val have nothing to score; look at the training's report.",
        )
    return candidates[min(finite, key=rank)]


def _check_gates(
    settings: EvaluationSettings, task: str, scores: Scores, ranking: Ranking, champion: dict[str, Any] | None
) -> list[GateResult]:
    metrics = scores.metrics()
    comparison = _champion_gate(metrics[ranking.metric], scores.rows, champion, ranking)
    return [*(gate.check(metrics) for gate in settings.parsed_gates(task)), comparison]


def _champion_gate(value: float, rows: int, champion: dict[str, Any] | None, ranking: Ranking) -> GateResult:
    metric = ranking.metric
    if not math.isfinite(value):
        return GateResult(AT_LEAST_CHAMPION, None, None, False, f"{metric} on test is not a finite number")
    if champion is None:
        return GateResult(AT_LEAST_CHAMPION, value, None, True, "there is no champion yet")
    other = champion["metrics"].get(metric, without_interval(math.nan))["value"]
    if other is None:
        why = f"{metric} of version {champion['version']} is not a finite number on the same test rows"
        return GateResult(AT_LEAST_CHAMPION, value, None, True, why)
    passed = value >= other if ranking.more_is_better else value <= other
    ours, theirs = [f"{value:.4f}"] * 2 if value == other else [shown_beside(value, other), shown_beside(other, value)]
    why = f"{metric} is {ours}, version {champion['version']} has {theirs} on the same {rows:,} test rows"
    return GateResult(AT_LEAST_CHAMPION, value, other, passed, why)
