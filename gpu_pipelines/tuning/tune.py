"""Searches for parameters of a training on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint_lock import CheckpointLock
from gpu_pipelines.artifacts.documents import read_document, write_document
from gpu_pipelines.artifacts.remote_files import fetched_folder, is_remote
from gpu_pipelines.component_interface.parameter import CALLED, parameters_in, typed
from gpu_pipelines.distributed.signals import noted
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.budget import Budget
from gpu_pipelines.tuning.journal import Journal
from gpu_pipelines.tuning.processes import Processes
from gpu_pipelines.tuning.result import TuningResult, best_of, trials_of
from gpu_pipelines.tuning.sampler import SAMPLERS, require_optuna
from gpu_pipelines.tuning.shares import shares_of_this_machine
from gpu_pipelines.tuning.space import Dimension, read_space, space_of
from gpu_pipelines.tuning.study import BudgetSpentError, Study, StudyRequest, checkpoints_of, trial_folder

STUDY, REPORT = "study.json", "report.html"


def tune(
    dataset: str | PathLike[str],
    study: str | PathLike[str],
    space: str | PathLike[str] | Mapping[str, Any],
    *,
    trials: int = 40,
    parallel: int = 1,
    budget: float = 0.0,
    dollars_per_hour: float = 0.0,
    seed: int = 0,
    sampler: str = "tpe",
    reduction: int = 3,
    longer: float = 1.0,
    progress: bool = True,
    **parameters: Any,
) -> TuningResult:
    """Searches for the parameters of `train_model` with the lowest loss on val, by trainings on this machine.

    A study that was interrupted or killed is continued by the same call: no trial is lost, and none begun twice.

    Args:
        dataset: made by `prepare_data`: a directory or `gs://…`. Its test split is not looked at.
        study: folder of the study on this machine, with its trials and its report.
        space: what is searched: a YAML file, or the same as a mapping; see docs/tuning.md.
        trials: how many are begun. A finished study goes on with more.
        parallel: how many are trained at the same time; they share the GPUs, or the CPUs, of the machine.
        budget: dollars that the study may cost in all its calls together; 0 for no limit.
        dollars_per_hour: price of this machine; 0 where it costs nothing.
        seed: of the choice of values; the trainings have their own parameter of that name, as `parameters`.
        sampler: how values are chosen: tpe, by the losses so far, or random.
        reduction: one trial in so many goes on from each rung, at a ninth and a third of its steps where that is 3; 1
            trains all trials to their end.
        longer: the best parameters are trained with anew, for so many times the steps; 1 keeps the trial itself.
        progress: print a line for each part of a trial.
        parameters: of `train_model`, which are the same in all trials.

    Returns:
        What was found.

    Raises:
        UserError: lists everything that is wrong before anything is trained; or a trial failed for another reason than
            its parameters; or no trial has a loss.
        Interrupted: it was interrupted; the same call continues it.
    """
    # Here, because it takes numpy, which a program that only imports `tune` does not wait for.
    from gpu_pipelines.artifacts.dataset import Dataset

    began = time.monotonic()
    require_optuna()
    folder, place = Path(study), fspath(dataset)
    data = Dataset(fetched_folder(place) if is_remote(place) else Path(place))
    base, problems = _base(parameters)
    read = space_of(space) if isinstance(space, Mapping) else read_space(Path(space))
    twice = [name for name in read.names if name in parameters]
    problems += [f"{name} is searched for, and given as well. Leave one of the two out." for name in twice]
    if is_remote(fspath(study)):
        problems.append(f"study is {fspath(study)}; give a folder of this machine.")
    problems += _problems(trials, parallel, budget, dollars_per_hour, sampler, reduction, longer)
    if problems:
        raise UserError.of_all(problems)
    task, rows = data.manifest.task, data.manifest.rows("train")
    shares = shares_of_this_machine(parallel)
    if problems := [*base.problems(task), *base.problems_here(task), *read.problems(base, task, shares[0].processes)]:
        raise UserError.of_all(problems)
    request = StudyRequest(str(data.directory), task, rows, base, read, trials, parallel, seed, sampler, reduction)
    folder.mkdir(parents=True, exist_ok=True)
    with CheckpointLock(str(folder)):
        _require_same_study(folder, request, data.manifest.fingerprint)
        processes = Processes(shares, run=f"study {folder.resolve()}")
        limits = Budget(folder, budget, dollars_per_hour, began)
        return _carried_out(request, folder, processes, limits, longer, progress)


def _carried_out(
    request: StudyRequest, folder: Path, processes: Processes, limits: Budget, longer: float, progress: bool
) -> TuningResult:
    told = (lambda line: print(line, flush=True)) if progress else (lambda line: None)
    journal = Journal(folder)
    with noted() as signalled:
        running = Study(request, folder, journal, processes, limits, signalled, told)
        try:
            checkpoints, ended_by = _search(running, request, folder, journal, longer)
            processes.stop_and_wait()
            return _result(request, folder, journal, limits, checkpoints, ended_by)
        finally:
            processes.stop_and_wait()
            limits.close()


def _search(
    running: Study, request: StudyRequest, folder: Path, journal: Journal, longer: float
) -> tuple[Path | None, str]:
    """The checkpoints of a longer training, if there is one, and what has ended the study."""
    try:
        running.run()
        if longer > 1:
            best = best_of(trials_of(request, folder, journal))
            return checkpoints_of(running.train_longer(best.number, longer)), "trials"
    except BudgetSpentError:
        return None, "budget"
    return None, "trials"


def _result(
    request: StudyRequest, folder: Path, journal: Journal, limits: Budget, checkpoints: Path | None, ended_by: str
) -> TuningResult:
    # Here, as the import of Dataset above.
    from gpu_pipelines.tuning.report import write_report

    known = trials_of(request, folder, journal)
    best = best_of(known)
    assert best.loss is not None
    result = TuningResult(
        best_parameters=best.parameters,
        checkpoints=checkpoints or checkpoints_of(trial_folder(folder, best.number)),
        loss=best.loss,
        best=best.number,
        trials=tuple(known),
        seconds=round(limits.seconds, 1),
        dollars=round(limits.dollars, 4),
        ended_by=ended_by,
        report=folder / REPORT,
    )
    write_report(result, request, result.report)
    result.save(folder)
    return result


def _base(parameters: Mapping[str, Any]) -> tuple[TrainingSettings, list[str]]:
    """The parameters that all trials have, and what is wrong with their names and types."""
    declared = parameters_in(TrainingSettings)
    problems, values = [], {}
    for name, value in parameters.items():
        if name not in declared or name == "resume_from_step":
            valid = [each for each in declared if each != "resume_from_step"]
            problems.append(f"There is no parameter {name[:80]!r} of a trial. {nearest(name, valid)}")
            continue
        try:
            values[name] = typed(declared[name].type, value)
        except ValueError:
            problems.append(f"{name} takes {CALLED[declared[name].type]}; got {str(value)[:80]!r}.")
    return TrainingSettings(**values), problems


def _problems(
    trials: int, parallel: int, budget: float, dollars_per_hour: float, sampler: str, reduction: int, longer: float
) -> list[str]:
    found = [
        f"{name} is {value}; give a whole number from 1 to {most:,}."
        for name, value, most in (
            ("trials", trials, 10_000),
            ("parallel", parallel, 1_000),
            ("reduction", reduction, 9),
        )
        if not (isinstance(value, int) and 1 <= value <= most)
    ]
    for name, dollars in (("budget", budget), ("dollars_per_hour", dollars_per_hour)):
        if not 0 <= dollars < math.inf:
            found.append(f"{name} is {dollars}; give dollars, at least 0.")
    if budget > 0 and dollars_per_hour == 0:
        found.append(
            f"budget is {budget:g} dollars, and this machine costs nothing. Give its price as dollars_per_hour, which "
            "gpu-pipelines accelerators plan shows, or no budget."
        )
    if sampler not in SAMPLERS:
        found.append(f"There is no sampler {sampler!r}. {nearest(sampler, SAMPLERS)}")
    if not 1 <= longer <= 1_000:
        found.append(f"longer is {longer}; give at least 1.")
    return found


def _require_same_study(folder: Path, request: StudyRequest, fingerprint: str) -> None:
    """Writes what a study is of, or compares it with what stands there.

    Raises:
        UserError: the folder has another study.
    """
    said = {
        "dataset": fingerprint,
        "space": [_as_json(each) for each in request.space.dimensions],
        "seed_of_study": request.seed,
        "sampler": request.sampler,
        "reduction": request.reduction,
        **request.base.shaping(),
    }
    path = folder / STUDY
    if not path.exists():
        write_document(path, said)
        return
    there = read_document(path, "study")
    if other := [name for name, value in said.items() if there.get(name) != value]:
        told = "; ".join(f"{name} is {said[name]!r:.80}, there it was {there.get(name)!r:.80}" for name in other)
        raise UserError(f"{folder} has another study: {told}.", "Give an empty folder, or the request of that study.")


def _as_json(dimension: Dimension) -> dict[str, Any]:
    return {**asdict(dimension), "choices": list(dimension.choices)}
