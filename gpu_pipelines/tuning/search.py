"""Carries out a search on this machine, from a valid request to its result."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint_lock import CheckpointLock
from gpu_pipelines.artifacts.documents import read_document, write_document
from gpu_pipelines.distributed.signals import noted
from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import RUN
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.budget import Budget
from gpu_pipelines.tuning.folder import STUDY, StudyFolder, trial_folder
from gpu_pipelines.tuning.journal import Journal
from gpu_pipelines.tuning.processes import Processes
from gpu_pipelines.tuning.result import RESULT, TuningResult, best_of, trials_of
from gpu_pipelines.tuning.sampler import require_optuna
from gpu_pipelines.tuning.shares import shares_of_this_machine
from gpu_pipelines.tuning.space import Dimension
from gpu_pipelines.tuning.study import BudgetSpentError, SearchPlan, Study, StudyRequest

REPORT = "report.html"


@dataclass(frozen=True)
class Search(SearchPlan):
    """A search on this machine; see `gpu_pipelines.tune`.

    Attributes:
        longer: the best parameters are trained again, for this many times the steps.
        budget: US dollars; 0 for no limit.
        dollars_per_hour: price of this machine.
    """

    longer: float = field(kw_only=True)
    budget: float = field(kw_only=True)
    dollars_per_hour: float = field(kw_only=True)


def search(
    asked: Search, dataset: str, place: str, *, began: float | None = None, progress: bool = True
) -> TuningResult:
    """Searches on this machine; continues a study that is at the place.

    Args:
        asked: the search.
        dataset: a directory or `gs://…`.
        place: the place of the study: a directory or `gs://…`.
        began: since when this machine is paid for, on the clock of `time.monotonic`; by default now.
        progress: print a line for each part of a trial.

    Raises:
        UserError: see `gpu_pipelines.tune`.
        Interrupted: it was interrupted; the same call continues it.
    """
    began = time.monotonic() if began is None else began
    require_optuna()
    task, rows, fingerprint = known_of(dataset)
    shares = shares_of_this_machine(asked.parallel)
    wrong = asked.space.problems(asked.base, task, shares[0].processes)
    if problems := [*wrong, *asked.base.problems_here(task)]:
        raise UserError.of_all(problems)
    request = StudyRequest.of(asked, dataset, task, rows)
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-study-") as scratch:
        folder = StudyFolder(place, Path(scratch))
        with CheckpointLock(folder.place, os.environ.get(RUN, "")):
            folder.fetch()
            _require_same_study(folder, request, fingerprint)
            name = folder.place if folder.is_remote else str(folder.directory.resolve())
            processes = Processes(shares, run=f"study {name}", study=folder.place if folder.is_remote else "")
            keep = folder.keep if folder.is_remote else None
            limits = Budget(folder.directory, asked.budget, asked.dollars_per_hour, began, keep)
            return _carried_out(request, folder, processes, limits, asked.longer, progress=progress)


def known_of(dataset: str) -> tuple[str, int, str]:
    """The task of a dataset, the rows to train on, and its fingerprint."""
    # Imported here, because it takes numpy, for which a program that only imports `tune` should not wait.
    from gpu_pipelines.artifacts.dataset_manifest import manifest_at

    manifest = manifest_at(dataset)
    return manifest.task, manifest.rows("train"), manifest.fingerprint


def _carried_out(
    request: StudyRequest, folder: StudyFolder, processes: Processes, limits: Budget, longer: float, *, progress: bool
) -> TuningResult:
    told = (lambda line: print(line, flush=True)) if progress else (lambda line: None)
    journal = Journal(folder.directory, folder.keep_trial)
    with noted() as signalled:
        running = Study(request, folder, journal, processes, limits, signalled, told)
        try:
            winner, ended_by = _search(running, request, folder, journal, longer)
            processes.stop_and_wait()
            return _result(request, folder, journal, limits, winner, ended_by)
        finally:
            processes.stop_and_wait()
            limits.close()


def _search(
    running: Study, request: StudyRequest, folder: StudyFolder, journal: Journal, longer: float
) -> tuple[str, str]:
    """The name of the folder of a longer training, if there is one, and what ended the study."""
    try:
        running.run()
        if longer > 1:
            best = best_of(trials_of(request, folder, journal))
            return running.train_longer(best.number, longer), "trials"
    except BudgetSpentError:
        return "", "budget"
    return "", "trials"


def _result(
    request: StudyRequest, folder: StudyFolder, journal: Journal, limits: Budget, winner: str, ended_by: str
) -> TuningResult:
    # Imported here, like Dataset above.
    from gpu_pipelines.tuning.report import write_report

    # Trials that were stopped in the middle of a part have trained further than the study has seen.
    folder.fetch()
    known = trials_of(request, folder, journal)
    best = best_of(known)
    assert best.loss is not None
    checkpoints: Any = folder.checkpoints_of(winner or trial_folder(best.number))
    report: Any = folder.shown(REPORT)
    result = TuningResult(
        best_parameters=best.parameters,
        checkpoints=checkpoints if folder.is_remote else Path(checkpoints),
        loss=best.loss,
        best=best.number,
        trials=tuple(known),
        seconds=round(limits.seconds, 1),
        dollars=round(limits.dollars, 4),
        ended_by=ended_by,
        report=report if folder.is_remote else Path(report),
    )
    write_report(result, request, folder.directory / REPORT)
    result.save(folder.directory)
    folder.keep(REPORT, RESULT)
    return result


def _require_same_study(folder: StudyFolder, request: StudyRequest, fingerprint: str) -> None:
    """Writes the description of a study, or compares it with the one in the folder.

    Raises:
        UserError: the folder has another study.
    """
    said = {
        "dataset": fingerprint,
        "space": [_as_json(each) for each in request.space.dimensions],
        "seed_of_study": request.seed,
        "sampler": request.sampler,
        "reduction": request.reduction,
        "first_rung": request.first_rung,
        **request.base.shaping(),
    }
    path = folder.directory / STUDY
    if not path.exists():
        write_document(path, said)
        folder.keep(STUDY)
        return
    # What the version that began the study could not search with yet was as it is by default.
    there = {**asdict(TrainingSettings()), **read_document(path, "study")}
    if other := [name for name, value in said.items() if there.get(name) != value]:
        # `tune` calls it seed; the component calls it study_seed, beside the seed of a training.
        told = "; ".join(
            f"{name.replace('_of_', ' of the ')} is {said[name]!r:.80}, there it was {there.get(name)!r:.80}"
            for name in other
        )
        raise UserError(
            f"{folder.place} has another study: {told}.", "Give an empty folder, or the request of that study."
        )


def _as_json(dimension: Dimension) -> dict[str, Any]:
    return {**asdict(dimension), "choices": list(dimension.choices)}
