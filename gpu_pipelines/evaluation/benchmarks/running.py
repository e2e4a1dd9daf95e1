"""Benchmarks of an evaluation: the best checkpoints are run on them, and the champion on the same documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from gpu_pipelines.artifacts.benchmark_results import BENCHMARKS, BenchmarkResult, plain, read_results
from gpu_pipelines.artifacts.documents import write_document
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.benchmark_catalog import Benchmark, Catalog, wrong_gate
from gpu_pipelines.evaluation.benchmarks.harness import Asked, Measured, measure
from gpu_pipelines.evaluation.benchmarks.scores import BenchmarkScores, scores_of
from gpu_pipelines.evaluation.benchmarks.store import ResultStore
from gpu_pipelines.evaluation.champion.champion import Champion
from gpu_pipelines.evaluation.champion.comparison import Comparison, Incomparable
from gpu_pipelines.evaluation.models.candidates import Candidate, NoComparisonError, WorkOnModels
from gpu_pipelines.evaluation.settings import EvaluationSettings, Ranking
from gpu_pipelines.evaluation.statistics.bootstrap import CONFIDENCE, Interval
from gpu_pipelines.registry import RegisteredVersion


class RunsModels(Protocol):
    """A scorer that has models in memory; one that runs the user's function has none."""

    candidates: list[Candidate]

    def each(self, models: Sequence[Candidate | RegisteredVersion], work: WorkOnModels) -> None:
        """Does work with models, which are checkpoints or only the champion, spread over all processes."""

    def identity_of(self, candidate: Candidate) -> str:
        """Hex SHA-256 that identifies its weights."""


@dataclass(frozen=True)
class Benchmarked:
    """The results of the benchmarks.

    Attributes:
        candidates: the checkpoints that were run, best on val first, each with its results by benchmark.
        champion: the results of the champion; None if there is none, or it could not be compared.
        why_not: why it could not be compared; None if it was.
        version: number of the champion; None if there is none.
        reused: whether the champion's results are all from its registered version.
    """

    candidates: list[tuple[Candidate, dict[str, Measured]]]
    champion: dict[str, BenchmarkResult] | None
    why_not: Incomparable | None
    version: int | None
    reused: bool

    @property
    def best(self) -> dict[str, BenchmarkResult]:
        """The results of the best checkpoint."""
        return {name: each.result for name, each in self.candidates[0][1].items()}

    def figures(self) -> dict[str, float]:
        """All metrics of the best checkpoint, by their names in gates."""
        return {name: value for scores in self._scores().values() for name, value in scores.metrics().items()}

    def comparison(self, metric: str) -> tuple[BenchmarkScores, Comparison | Incomparable | None, Ranking]:
        """What a gate compares: the scores of a metric beside the champion's, and the metric's direction."""
        task, ours = next((task, each) for task, each in self._scores().items() if metric in each.metrics())
        ranking = Ranking(metric, ours.directions[metric])
        if self.champion is None or self.version is None:
            return ours, self.why_not, ranking
        return ours, Comparison(ours, _all_scores(self.champion)[task], self.version), ranking

    def summary(self, settings: EvaluationSettings) -> dict[str, Any]:
        """The entry `benchmarks` of `evaluation.json`."""
        main = [name for result in self.best.values() for name in result.main]
        tasks = {}
        for result in self.best.values():
            for name, task in result.tasks.items():
                tasks[name] = {"version": task.version, "documents": task.documents}
            for name, group in result.groups.items():
                documents = sum(result.tasks[task].documents for task in group.tasks)
                tasks[name] = {"version": "", "documents": documents, "tasks": group.tasks}
        directions = {name: more for scores in self._scores().values() for name, more in scores.directions.items()}
        return {
            "lm_eval": version("lm-eval"),
            "options": {**asdict(settings.benchmark_options), "best": settings.benchmark_best},
            "main": main,
            "tasks": tasks,
            "more_is_better": directions,
            "checkpoints": [{"name": each.name, "metrics": _intervals(found)} for each, found in self.candidates],
            "champion": self._champion_summary(),
        }

    def _scores(self) -> dict[str, BenchmarkScores]:
        return _all_scores(self.best)

    def _champion_summary(self) -> dict[str, Any] | None:
        if self.why_not is not None:
            return self.why_not.summary()
        if self.champion is None or self.version is None:
            return None
        metrics: dict[str, Interval] = {}
        differences: dict[str, Interval] = {}
        theirs = _all_scores(self.champion)
        for task, ours in self._scores().items():
            told = Comparison(ours, theirs[task], self.version).summary()
            metrics |= told["metrics"]
            differences |= told["differences"]
        told = {"version": self.version, "reused": self.reused, "confidence": CONFIDENCE}
        return {**told, "metrics": metrics, "differences": differences}


def run_benchmarks(
    models: RunsModels,
    settings: EvaluationSettings,
    ranked: Sequence[Candidate],
    beside: tuple[RegisteredVersion, Champion] | None,
    stores: Mapping[str, str],
) -> Benchmarked:
    """Runs the best checkpoints on the benchmarks, and the champion if its recorded results are of something else.

    Args:
        models: the models.
        settings: the benchmarks, and how to run them.
        ranked: the checkpoints, best on val first.
        beside: the registered champion, and what is known about it; None if there is none.
        stores: places of the checkpoints by training, beside which results are kept; others keep none.

    Raises:
        UserError: a benchmark is unknown or cannot be run, or a gate names a metric that it does not have.
    """
    catalog = Catalog(settings.benchmarks)
    if problems := catalog.problems():
        raise UserError.of_all(problems)
    benchmarks = catalog.benchmarks()
    chosen = list(ranked[: settings.benchmark_best or len(ranked)])
    found = _of_candidates(models, settings, chosen, benchmarks, stores)
    measured = [(candidate, found[number]) for number, candidate in enumerate(chosen)]
    if beside is None:
        return Benchmarked(measured, None, None, None, False)
    registered, champion = beside
    if isinstance(champion.comparison, Incomparable):
        return Benchmarked(measured, None, champion.comparison, registered.number, False)
    ours = {name: each.result for name, each in found[0].items()}
    try:
        theirs, reused = _of_champion(models, settings, registered, benchmarks, ours)
    except NoComparisonError as error:
        print(f"warning: {error}", flush=True)
        why = Incomparable(registered.number, error.problem.rstrip("."))
        return Benchmarked(measured, None, why, registered.number, False)
    return Benchmarked(measured, theirs, None, registered.number, reused)


def save_benchmarks(benchmarked: Benchmarked | None, directory: Path) -> None:
    """Writes the results of all checkpoints that were run: figures, and the log of each document.

    Args:
        benchmarked: None if there were no benchmarks.
        directory: created; gets `benchmarks.json`, and for each checkpoint a folder with a file for each task.
    """
    directory.mkdir(parents=True, exist_ok=True)
    candidates = benchmarked.candidates if benchmarked else []
    for candidate, found in candidates:
        folder = directory / candidate.name
        folder.mkdir(parents=True)
        for each in found.values():
            for task, samples in each.samples.items():
                lines = "".join(f"{json.dumps(sample, ensure_ascii=False)}\n" for sample in samples)
                (folder / f"{plain(task)}.jsonl").write_text(lines, encoding="utf-8")
    results = {
        candidate.name: {name: asdict(each.result) for name, each in found.items()} for candidate, found in candidates
    }
    theirs = benchmarked.champion if benchmarked else None
    champion = {name: asdict(each) for name, each in (theirs or {}).items()}
    write_document(directory / BENCHMARKS, {"checkpoints": results, "champion": champion})


def _of_candidates(
    models: RunsModels,
    settings: EvaluationSettings,
    chosen: Sequence[Candidate],
    benchmarks: Sequence[Benchmark],
    stores: Mapping[str, str],
) -> dict[int, dict[str, Measured]]:
    """The results of each checkpoint, by benchmark; those of different documents are measured again."""
    found: dict[int, dict[str, Measured]] = {}

    def done(number: int, answers: list[Measured]) -> None:
        found[number] = {each.name: answer for each, answer in zip(benchmarks, answers, strict=True)}
        _require_metrics(settings, found[number])
        kept = " (measured before)" if all(answer.kept for answer in answers) else ""
        shown = "  ".join(f"{name} {value:.4f}" for name, value in _main_figures(found[number]).items())
        print(f"benchmarks {len(found)}/{len(chosen)}  {chosen[number].name}  {shown}{kept}", flush=True)

    options = settings.benchmark_options
    asked = []
    for number, candidate in enumerate(chosen):
        place = stores.get(candidate.training, "")
        store = ResultStore(place) if place else None
        identity = models.identity_of(candidate) if store else ""
        for each in benchmarks:
            told = [identity, each.name, each.definition, asdict(options), version("lm-eval"), version("transformers")]
            key = hashlib.sha256(json.dumps(told).encode()).hexdigest()
            asked.append((number, Asked(each, options, store, key)))
    models.each(chosen, WorkOnModels(measure, asked, done))
    again = [
        (number, Asked(request.benchmark, options, None))
        for number, request in asked
        if not found[number][request.benchmark.name].result.is_comparable(_newest(found, request.benchmark.name))
    ]
    if again:
        print("the documents of a benchmark are others than before: what was kept of it is measured again", flush=True)
        _again(models, chosen, again, found)
    return found


def _newest(found: Mapping[int, Mapping[str, Measured]], benchmark: str) -> BenchmarkResult:
    """A result of a benchmark that was measured now, if there is one."""
    each = [results[benchmark] for _, results in sorted(found.items())]
    return next((measured for measured in each if not measured.kept), each[0]).result


def _again(
    models: RunsModels,
    chosen: Sequence[Candidate],
    asked: Sequence[tuple[int, Asked]],
    found: dict[int, dict[str, Measured]],
) -> None:
    def done(number: int, answers: list[Measured]) -> None:
        names = [request.benchmark.name for of, request in asked if of == number]
        found[number] |= dict(zip(names, answers, strict=True))

    models.each(chosen, WorkOnModels(measure, asked, done))


def _of_champion(
    models: RunsModels,
    settings: EvaluationSettings,
    registered: RegisteredVersion,
    benchmarks: Sequence[Benchmark],
    ours: Mapping[str, BenchmarkResult],
) -> tuple[dict[str, BenchmarkResult], bool]:
    """The champion's results on the same documents, and whether all of them are those that it was registered with."""
    recorded = read_results(registered.path)
    theirs = {name: recorded[name] for name, each in ours.items() if each.is_comparable(recorded.get(name))}
    missing = [each for each in benchmarks if each.name not in theirs]
    if missing:
        names = ", ".join(each.name for each in missing)
        print(f"the champion, version {registered.number}, is run on {names}", flush=True)
        asked = [(0, Asked(each, settings.benchmark_options)) for each in missing]

        def done(number: int, answers: list[Measured]) -> None:
            theirs.update({each.name: answer.result for each, answer in zip(missing, answers, strict=True)})

        models.each([registered], WorkOnModels(measure, asked, done))
    return {name: theirs[name] for name in ours}, not missing


def _require_metrics(settings: EvaluationSettings, measured: Mapping[str, Measured]) -> None:
    """Checks that the benchmarks have what gates ask for, which of some tasks only shows when they have run."""
    metrics: dict[str, bool] = {}
    for each in measured.values():
        for scores in scores_of(each.result).values():
            metrics |= {name: name in scores.resampled for name in scores.metrics()}
    wrong = [why for text, gate in settings.gates_on_benchmarks().items() if (why := wrong_gate(text, gate, metrics))]
    if wrong:
        raise UserError.of_all(wrong)


def _all_scores(results: Mapping[str, BenchmarkResult]) -> dict[str, BenchmarkScores]:
    return {name: scores for result in results.values() for name, scores in scores_of(result).items()}


def _intervals(measured: Mapping[str, Measured]) -> dict[str, Interval]:
    scores = _all_scores({name: each.result for name, each in measured.items()})
    return {name: interval for each in scores.values() for name, interval in each.intervals().items()}


def _main_figures(measured: Mapping[str, Measured]) -> dict[str, float]:
    """The first metric of each task and group that was asked for."""
    found: dict[str, float] = {}
    for each in measured.values():
        scores = scores_of(each.result)
        for name in each.result.main:
            found |= dict(list(scores[name].metrics().items())[:1])
    return found
