"""Evaluates every checkpoint on `val`, the best one on `test`, beside the registry's champion on the same rows."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np

from gpu_pipelines.artifacts.benchmark_results import write_results
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.exported_model import write_model_card
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.evaluation.benchmark_request import is_metric_of_benchmark
from gpu_pipelines.evaluation.benchmarks.running import Benchmarked, RunsModels, run_benchmarks, save_benchmarks
from gpu_pipelines.evaluation.champion.champion import Champion, beside
from gpu_pipelines.evaluation.champion.promotion import better, better_by_value
from gpu_pipelines.evaluation.champion.shift import data_of, shift_gate, shift_json
from gpu_pipelines.evaluation.gates import ChampionGate, Gate, GateResult
from gpu_pipelines.evaluation.generation.record import texts_json, write_texts
from gpu_pipelines.evaluation.generation.request import JUDGE
from gpu_pipelines.evaluation.generation.scores import ScoresWithText
from gpu_pipelines.evaluation.generation.text_scoring import TextScoring
from gpu_pipelines.evaluation.metrics.one_answer import no_better_than_one_answer
from gpu_pipelines.evaluation.models.candidates import Candidate, Scorer
from gpu_pipelines.evaluation.scorers.function import FunctionScorer
from gpu_pipelines.evaluation.scorers.recipe import RecipeScorer
from gpu_pipelines.evaluation.scorers.trainings import TrainingsScorer
from gpu_pipelines.evaluation.scores import Scores, summary
from gpu_pipelines.evaluation.settings import EvaluationSettings, Ranking
from gpu_pipelines.evaluation.statistics.bootstrap import json_metrics
from gpu_pipelines.evaluation.trainings import differing
from gpu_pipelines.profiles.making import keep_profile
from gpu_pipelines.registry import model_name_for, open_registry
from gpu_pipelines.tasks.model_places import ADAPTER, base_of_adapters, hub_id
from gpu_pipelines.tasks.tasks import task_named

#: Of checkpoints that are equal by the metric that chooses, the one with the lowest of these is taken.
TIE_BREAKERS = ("log_loss", "loss")
LATENCY = "latency_"
#: Values that have a slice of their own; the rows of all others are one more.
MOST_SLICES = 50
OTHERS = "(all others)"


def evaluate_checkpoints(
    settings: EvaluationSettings,
    dataset_directory: Path,
    checkpoints: Path | Mapping[str, Path],
    export_directory: Path,
    processes: int | None = None,
    benchmark_directory: Path | None = None,
    stores: Mapping[str, str] | None = None,
    rehearsals: Collection[str] = (),
) -> Evaluation:
    """Scores all checkpoints, exports the best one with its evaluation, and says whether it passed.

    Args:
        settings: gates, metric to choose by, scoring function, registry and name of the champion.
        dataset_directory: the dataset artifact; `val` ranks, `test` decides.
        checkpoints: directory of a training's checkpoints, or of models in Hugging Face layout; for several trainings
            that are ranked together, these directories by the names of the trainings.
        export_directory: where the best one goes: in Hugging Face layout, or as it is if a function scores it.
        processes: GPUs or CPU processes to use; None for all that the step was placed on.
        benchmark_directory: for the benchmarks' results of each document; None for nowhere.
        stores: places of the checkpoints by the names of the trainings, beside which results of benchmarks are kept
            that an evaluation of the same checkpoints takes; None to keep none.
        rehearsals: names of the trainings that are known to be rehearsals; checkpoints of scripts do not say it.

    Raises:
        UserError: there is no good checkpoint, or data, checkpoints and champion do not belong together.
    """
    dataset = Dataset(dataset_directory)
    task = dataset.manifest.task
    if problems := settings.problems(task):
        raise UserError.of_all(problems)
    directories = {"": checkpoints} if isinstance(checkpoints, Path) else checkpoints
    texts = TextScoring(settings.texts, dataset, settings.select_by == JUDGE) if settings.generate else None
    with closing(_scorer(settings, dataset, directories, processes, texts)) as scorer:
        found, benchmarked = _evaluate(scorer, settings, dataset, export_directory, texts, stores or {}, rehearsals)
    found.save(export_directory)
    model = found.configuration["settings"].get("model") or base_of_adapters(export_directory / ADAPTER)
    base = hub_id(str(model))
    write_model_card(export_directory, found, dataset.manifest.source, task_named(task).pipeline_tag, base)
    if not settings.scoring_function:
        keep_profile(export_directory, dataset)
    if benchmarked is not None:
        write_results(export_directory, benchmarked.best)
    if benchmark_directory is not None:
        save_benchmarks(benchmarked, benchmark_directory)
    return found


def _scorer(
    settings: EvaluationSettings,
    dataset: Dataset,
    directories: Mapping[str, Path],
    processes: int | None,
    texts: TextScoring | None,
) -> Scorer:
    if settings.scoring_function:
        return FunctionScorer(settings, dataset, directories)
    if len(directories) > 1:
        return TrainingsScorer(dataset, directories, settings.average_last, processes, texts, settings.texts_on_val)
    (directory,) = directories.values()
    return RecipeScorer(
        dataset, directory, settings.average_last, processes, texts=texts, texts_on_val=settings.texts_on_val
    )


def _evaluate(
    scorer: Scorer,
    settings: EvaluationSettings,
    dataset: Dataset,
    export_directory: Path,
    texts: TextScoring | None,
    stores: Mapping[str, str],
    rehearsals: Collection[str],
) -> tuple[Evaluation, Benchmarked | None]:
    task = dataset.manifest.task
    values = scorer.slice_values(settings.slice_by) if settings.slice_by else []
    trainings = _trainings(scorer)
    on_val = _score_all(scorer, settings, task)
    ranking = settings.ranking(task, on_val[0])
    ranked = _ranked(scorer.candidates, on_val, ranking)
    best = ranked[0]
    scores = scorer.on_test(best)
    name = settings.model_name or model_name_for(dataset.manifest.source)
    registered = open_registry(settings.registry).champion(name)
    both = (registered, beside(registered, scorer, scores, dataset.manifest)) if registered else None
    champion = both[1] if both else None
    theirs = champion.scores if champion else None
    benchmarked = run_benchmarks(_runs_models(scorer), settings, ranked, both, stores) if settings.benchmarks else None
    test = summary(scores) | ({"slices": slices_of(values, scores, theirs)} if values else {})
    asked = settings.parsed_gates(task)
    latency = scorer.latency(best) if _asks_for_latency(settings, asked) else None
    figures = _figures(scores, test, latency) | (benchmarked.figures() if benchmarked else {})
    gates = _check_gates(settings, task, asked, figures, scores, champion, benchmarked)
    evaluation = Evaluation(
        model_name=name,
        task=task,
        labels=dataset.manifest.labels,
        dataset_fingerprint=dataset.manifest.fingerprint,
        configuration=scorer.configuration_of(best),
        select_by=ranking.metric,
        more_is_better=ranking.more_is_better,
        checkpoints=[_scored(*scored) for scored in zip(scorer.candidates, on_val, strict=True)],
        best=best.name,
        test=test,
        champion=champion.summary(dataset.manifest.test_source) if champion else None,
        gates=[asdict(gate) for gate in gates],
        passed=all(gate.passed for gate in gates),
        mistakes=scorer.worst(scores),
        scoring_function=settings.scoring_function,
        rehearsal=best.rehearsal or best.training in rehearsals,
        source_fingerprint=dataset.manifest.source_fingerprint,
        slice_by=settings.slice_by,
        latency=latency,
        data=data_of(dataset.manifest),
        shift=shift_json(champion.shift, settings.accept_shift) if champion else None,
        test_source=dataset.manifest.test_source,
        trainings=trainings,
        texts=texts_json(texts, scores, theirs) if texts and isinstance(scores, ScoresWithText) else None,
        benchmarks=benchmarked.summary(settings) if benchmarked else None,
    )
    if told := no_better_than_one_answer(evaluation):
        print(f"warning: {told}", flush=True)
    export_directory.mkdir(parents=True, exist_ok=True)
    scorer.export(best, export_directory)
    if isinstance(scores, ScoresWithText):
        write_texts(export_directory, scores, theirs)
    return evaluation, benchmarked


def _runs_models(scorer: Scorer) -> RunsModels:
    """The scorer as benchmarks use it: a function of the user's, which runs no models, is refused beside them."""
    return cast("RunsModels", scorer)


def _trainings(scorer: Scorer) -> list[dict[str, Any]]:
    """What `evaluation.json` says of the trainings; nothing where there is one only."""
    found = {each.training: scorer.configuration_of(each) for each in scorer.candidates if each.training}
    told = differing({name: configuration["settings"] for name, configuration in found.items()})
    for name, settings in told.items():
        said = ", ".join(f"{setting}={value}" for setting, value in settings.items())
        print(f"training {name}: {said or 'the same settings as the others'}", flush=True)
    return [{"name": name, **configuration} for name, configuration in found.items()]


def _score_all(scorer: Scorer, settings: EvaluationSettings, task: str) -> list[dict[str, float]]:
    """Metrics of each checkpoint on `val`."""
    found: dict[int, dict[str, float]] = {}
    total = len(scorer.candidates)
    started = time.monotonic()

    def done(number: int, scores: Scores) -> None:
        metrics = scores.metrics()
        if not found:
            _require_metrics(settings, task, metrics)
        found[number] = metrics
        # The first and the last metric of a task say most about it.
        names = dict.fromkeys((next(iter(metrics)), next(reversed(metrics))))
        shown = "  ".join(f"{name} {metrics[name]:.4f}" for name in names)
        took = time.monotonic() - started
        name = scorer.candidates[number].name
        print(f"checkpoint {len(found)}/{total}  {name}  {shown}  after {took:.1f} s", flush=True)

    scorer.on_val(done)
    return [found[number] for number in range(total)]


def _scored(candidate: Candidate, metrics: Mapping[str, float]) -> dict[str, Any]:
    """What `evaluation.json` says of a checkpoint."""
    scored = {"name": candidate.name, "step": candidate.step, "epoch": candidate.epoch, "val": json_metrics(metrics)}
    scored |= {"training": candidate.training} if candidate.training else {}
    scored |= {"ema": True} if candidate.ema else {}
    return {**scored, "averages": list(candidate.averages)} if candidate.averages else scored


def _figures(scores: Scores, test: Mapping[str, Any], latency: Mapping[str, Any] | None) -> dict[str, float]:
    """Everything on test that can be gated on, by name."""
    found = {**scores.metrics(), **scores.figures(), **slice_figures(test.get("slices", []))}
    if latency is not None:
        found |= {f"{LATENCY}{name}": latency[name] for name in ("p50_ms", "p95_ms")}
    return found


def _asks_for_latency(settings: EvaluationSettings, gates: Sequence[Gate | ChampionGate]) -> bool:
    return not settings.scoring_function and any(gate.metric.startswith(LATENCY) for gate in gates)


def _require_metrics(settings: EvaluationSettings, task: str, metrics: Mapping[str, float]) -> None:
    """Checks that what is asked for was computed, which for a user's own code shows only when it has run."""
    asked = [settings.ranking(task, metrics).metric]
    later = () if settings.scoring_function else (LATENCY, *task_named(task).figures, *settings.texts.metrics)
    gates = [gate.metric for gate in settings.parsed_gates(task) if gate.metric]
    if settings.slice_by:
        gates = [re.sub(r"slices\.(.*)\.(min|max)", r"\1", metric) for metric in gates]
    gates = [metric for metric in gates if not (settings.benchmarks and is_metric_of_benchmark(metric))]
    asked += [metric for metric in gates if not metric.startswith(later)]
    if missing := [name for name in asked if name not in metrics]:
        raise UserError(
            f"There is no metric {missing[0]!r} to select by or gate on; {settings.scoring_function or 'the recipe'} "
            f"gives {', '.join(metrics)}.",
            nearest(missing[0], metrics),
        )


def _ranked(candidates: list[Candidate], on_val: list[dict[str, float]], ranking: Ranking) -> list[Candidate]:
    """The best first by the ranking's metric on val; among equals the one of lower loss, then the earlier one.

    Those of which the metric is not a finite number are left out.

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
    return [candidates[number] for number in sorted(finite, key=rank)]


def _check_gates(
    settings: EvaluationSettings,
    task: str,
    gates: Sequence[Gate | ChampionGate],
    figures: Mapping[str, float],
    scores: Scores,
    champion: Champion | None,
    benchmarked: Benchmarked | None,
) -> list[GateResult]:
    metrics = scores.metrics()
    comparison = champion.comparison if champion else None
    found = []
    for gate in gates:
        if isinstance(gate, ChampionGate) and benchmarked and is_metric_of_benchmark(gate.metric):
            found.append(better(gate, *benchmarked.comparison(gate.metric)))
        elif isinstance(gate, ChampionGate):
            found.append(better(gate, scores, comparison, settings.ranking(task, metrics, gate.metric)))
        else:
            found.append(gate.check(figures, scores.why_unknown(gate.metric)))
    if not any(isinstance(gate, ChampionGate) for gate in gates):
        found.append(better_by_value(scores, comparison, settings.ranking(task, metrics)))
    if champion:
        found.append(shift_gate(champion.shift, champion.version, settings.accept_shift))
    return found


def slices_of(values: Sequence[str], scores: Scores, champion: Scores | None) -> list[dict[str, Any]]:
    """Rows and metrics of each value, most rows first, beside the champion's on the same rows.

    Args:
        values: the value of each row, in the order of the scores.
        scores: of the model.
        champion: the scores of the champion on the same rows, if there is one.
    """
    counts = Counter(values).most_common()
    kept = {value for value, _ in counts[: MOST_SLICES if len(counts) > MOST_SLICES else len(counts)]}
    named = np.array([value if value in kept else OTHERS for value in values], dtype=object)
    found = []
    for value in [value for value, _ in counts if value in kept] + [OTHERS] * (len(counts) > len(kept)):
        rows = np.flatnonzero(named == value)
        part: dict[str, Any] = {"value": value, "rows": len(rows), "metrics": scores.subset(rows).intervals()}
        if champion is not None:
            part["champion"] = json_metrics(champion.subset(rows).metrics())
        found.append(part)
    return found


def slice_figures(slices: Sequence[dict[str, Any]]) -> dict[str, float]:
    """`slices.accuracy.min` and the like: the least and the largest value of each metric over the slices."""
    found: dict[str, float] = {}
    for name in slices[0]["metrics"] if slices else ():
        values = [part["metrics"][name]["value"] for part in slices]
        known = [float("nan") if value is None else value for value in values]
        found[f"slices.{name}.min"], found[f"slices.{name}.max"] = float(np.min(known)), float(np.max(known))
    return found
