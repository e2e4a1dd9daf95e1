"""The step `tune_model` with its KFP inputs and outputs."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint import CONFIGURATION, read_configuration
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.component_interface.step import log_metrics, of_this_training, own_process, place_of, with_advanced
from gpu_pipelines.errors import UserError
from gpu_pipelines.tracking.facts import facts_of_study
from gpu_pipelines.tracking.tracked import RUN_OF_ARTIFACT, Tracked, run_at
from gpu_pipelines.tuning.result import TuningResult
from gpu_pipelines.tuning.search import REPORT, Search, search
from gpu_pipelines.tuning.settings import TuningSettings


def run(
    settings: TuningSettings,
    *,
    dataset: Any,
    checkpoints: Any,
    training_metrics: Any,
    training_report: Any,
    study: Any,
    checkpoint_uri: str = "",
    tracking: str = "none",
    advanced: Mapping[str, Any],
) -> tuple[dict[str, Any]]:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        dataset: a KFP artifact, as are the next four.
        checkpoints: gets the checkpoints with the best parameters.
        training_metrics: gets the figures.
        training_report: gets the report.
        study: gets the place of the study.
        checkpoint_uri: the place of the study; empty for the artifact's own place.
        tracking: the tracker.
        advanced: values of parameters by name, which take precedence; one is the place of the study.

    Returns:
        The output of the component that is not an artifact: the best parameters.
    """
    began = time.monotonic()
    with own_process():
        settings = with_advanced(settings, advanced, "checkpoint_uri")
        place = place_of(study, of_this_training(advanced.get("checkpoint_uri", checkpoint_uri), settings, dataset))
        tracked = Tracked(tracking, run_at(place))
        tracked.require_tracker()
        with tracked:
            result = search(requested(settings), place_of(dataset), place, began=began)
            place_of(checkpoints, str(result.checkpoints))
            checkpoints.metadata.update(metadata_of(result))
            checkpoints.metadata[RUN_OF_ARTIFACT] = tracked.run.to_json()
            log_metrics(training_metrics, figures_of(result))
            _copy_report(place, Path(training_report.path))
            tracked.add(
                facts_of_study(result.best_parameters, figures_of(result)), training_report=training_report.path
            )
    return (dict(result.best_parameters),)


def requested(settings: TuningSettings) -> Search:
    """The search that a step was asked for.

    Raises:
        UserError: lists all problems.
    """
    if problems := [*settings.problems_of_values(), *settings.problems_of_space()]:
        raise UserError.of_all(problems)
    return Search(
        base=settings.base,
        space=settings.search_space(),
        trials=settings.trials,
        parallel=settings.parallel_trials,
        seed=settings.study_seed,
        sampler=settings.sampler,
        reduction=settings.reduction,
        first_rung=settings.first_rung,
        longer=settings.longer,
        budget=settings.budget,
        dollars_per_hour=settings.dollars_per_hour,
    )


def figures_of(result: TuningResult) -> dict[str, float]:
    """The numbers to show beside the run."""
    return {
        "lowest_val_loss": round(result.loss, 6),
        "trials": len(result.trials),
        "trials_trained_to_their_end": sum(trial.is_whole for trial in result.trials),
        "trials_failed": sum(bool(trial.error) for trial in result.trials),
        "best_trial": result.best,
        "rows": result.rows,
        "seconds": result.seconds,
        "dollars": result.dollars,
        **{f"best_{name}": value for name, value in result.best_parameters.items() if _is_number(value)},
    }


def metadata_of(result: TuningResult) -> dict[str, Any]:
    """Metadata about the study for the checkpoints with the best parameters."""
    return {
        "best_parameters": json.dumps(dict(result.best_parameters)),
        "trial": result.best,
        "ended_by": result.ended_by,
        "rehearsal": _is_rehearsal(str(result.checkpoints)),
    }


def _is_rehearsal(place: str) -> bool:
    """Whether checkpoints come from CPU processes in place of the chosen GPUs."""
    remote = is_remote(place)
    told = json.loads(RemoteFolder(place).read(CONFIGURATION)) if remote else read_configuration(Path(place))
    return bool(told["devices"]["rehearsal"])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _copy_report(place: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_remote(place):
        path.write_bytes(RemoteFolder(place).read(REPORT))
    else:
        shutil.copyfile(Path(place) / REPORT, path)
