"""Searches for parameters of a training on this machine, as a function for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.parameter import parameters_in, typed_values
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.tasks import defaults_of_task
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.halving import FIRST_RUNG, REDUCTION
from gpu_pipelines.tuning.result import TuningResult
from gpu_pipelines.tuning.sampler import require_optuna
from gpu_pipelines.tuning.search import Search, known_of, search
from gpu_pipelines.tuning.settings import problems_of_search
from gpu_pipelines.tuning.space import read_space, space_of


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
    reduction: int = REDUCTION,
    first_rung: float = FIRST_RUNG,
    longer: float = 1.0,
    progress: bool = True,
    **parameters: Any,
) -> TuningResult:
    """Searches for the parameters of `train_model` with the lowest loss on val, by trainings on this machine.

    The same call continues a study that was interrupted or killed: no trial is lost, and none is begun twice.

    Args:
        dataset: made by `prepare_data`: a directory or `gs://…`. Its test split is not used.
        study: folder of the study, with its trials and its report: a directory or `gs://…`.
        space: the search space: a YAML file, or the same as a mapping; see docs/tuning.md.
        trials: the number of trials. A finished study continues with more.
        parallel: the number of trials at the same time; they share the GPUs, or the CPUs, of the machine.
        budget: dollars that the study may cost in all its calls together; 0 for no limit.
        dollars_per_hour: price of this machine; 0 if it costs nothing.
        seed: the seed of the choice of values; the seed of the trainings is 0 if it is not searched for.
        sampler: how values are chosen: tpe, by the losses so far, or random.
        reduction: one trial in this many continues from each rung; 1 trains all trials to their end.
        first_rung: share of its steps before which no trial ends early.
        longer: the best parameters are trained again, for this many times the steps; 1 keeps the trial itself.
        progress: print a line for each part of a trial.
        parameters: parameters of `train_model`, the same in all trials. Without `model`, that of the dataset's task.

    Returns:
        The result of the study.

    Raises:
        UserError: lists all problems before anything is trained; or a trial failed for another reason than its
            parameters; or no trial has a loss.
        Interrupted: it was interrupted; the same call continues it.
    """
    began = time.monotonic()
    require_optuna()
    declared = parameters_in(TrainingSettings)
    del declared["resume_from_step"]
    base, problems = typed_values(declared, parameters, " of a trial")
    read = space_of(space) if isinstance(space, Mapping) else read_space(Path(space))
    twice = [name for name in read.names if name in base]
    problems += [f"{name} is searched for, and given as well. Leave one of the two out." for name in twice]
    if "model" not in base:
        task, *_ = known_of(fspath(dataset))
        base = {**{name: value for name, value in defaults_of_task(task).items() if name in declared}, **base}
    asked = Search(
        TrainingSettings(**base), read, trials=trials, parallel=parallel, seed=seed, sampler=sampler,
        reduction=reduction, first_rung=first_rung, longer=longer, budget=budget, dollars_per_hour=dollars_per_hour,
    )  # fmt: skip
    problems += problems_of_search(vars(asked))
    if problems:
        raise UserError.of_all(problems)
    return search(asked, fspath(dataset), fspath(study), began=began, progress=progress)
