"""The steps around a study, `begin_study` and `finish_study`, with their KFP inputs and outputs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.component_interface.step import (
    PLACE,
    in_this_run,
    log_metrics,
    of_this_training,
    own_process,
    place_of,
    with_advanced,
)
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import STORAGE
from gpu_pipelines.tracking.facts import facts_of_study
from gpu_pipelines.tracking.tracked import RUN_OF_ARTIFACT, Tracked, run_at
from gpu_pipelines.tuning.service.begin import begin
from gpu_pipelines.tuning.service.finish import finish
from gpu_pipelines.tuning.service.settings import FinishSettings
from gpu_pipelines.tuning.service.vertex_study import algorithm_of, parameters_of, stopping_of
from gpu_pipelines.tuning.settings import TuningSettings
from gpu_pipelines.tuning.step import figures_of, metadata_of

__all__ = ["Begun", "FinishSettings", "TuningSettings", "run_begin", "run_finish"]


class Begun(NamedTuple):
    """The fields of a tuning job of Vertex AI, besides its machines."""

    study: str
    parameters: list[dict[str, Any]]
    algorithm: str
    early_stopping: dict[str, Any]
    trials: int
    parallel_trials: int
    trains_longer: bool


def run_begin(
    settings: TuningSettings,
    *,
    dataset: Any,
    processes: int = 0,
    checkpoint_uri: str = "",
    advanced: Mapping[str, Any],
) -> Begun:
    """Runs the step `begin_study`.

    Args:
        settings: the parameters that the component declares.
        dataset: a KFP artifact.
        processes: processes of each trial; 0 if that is not known.
        checkpoint_uri: folder of the study.
        advanced: values of parameters by name, which take precedence; one is the folder.
    """
    with own_process():
        settings = with_advanced(settings, advanced, "checkpoint_uri")
        uri = of_this_training(str(advanced.get("checkpoint_uri", checkpoint_uri)), settings, dataset)
        if not uri:
            raise UserError("The study has no folder.", "Give one as checkpoint_uri, the same for every restart.")
        parameters = parameters_of(settings.search_space())
        study = in_this_run(uri)
        begin(settings, _shared(dataset, study), study, processes)
        return Begun(
            study=study,
            parameters=parameters,
            algorithm=algorithm_of(settings.sampler),
            early_stopping=stopping_of(settings.reduction),
            trials=settings.trials,
            parallel_trials=min(settings.parallel_trials, settings.trials),
            trains_longer=settings.longer > 1,
        )


def _shared(dataset: Any, study: str) -> str:
    """A place of a dataset that all trials can read: its own place, or a copy in the folder of the study.

    If a platform moves artifacts itself, those that are not in Cloud Storage are only in the pod of this step.
    """
    here = place_of(dataset)
    if not os.environ.get(STORAGE) or dataset.metadata.get(PLACE):
        return here
    if dataset.uri.startswith("gs://"):
        return str(dataset.uri)
    copy = f"{study}/dataset"
    if not is_remote(copy):
        shutil.copytree(here, copy, dirs_exist_ok=True)
        return copy
    names = [path.relative_to(here).as_posix() for path in sorted(Path(here).rglob("*")) if path.is_file()]
    RemoteFolder(copy).upload(Path(here), names)
    return copy


def run_finish(
    settings: FinishSettings,
    *,
    dataset: Any,
    checkpoints: Any,
    training_metrics: Any,
    training_report: Any,
    folder: Any,
    tracking: str = "none",
) -> tuple[dict[str, Any]]:
    """Runs the step `finish_study`.

    Args:
        settings: the parameters that the component declares.
        dataset: a KFP artifact, as are the others; its place is in the request of the study.
        checkpoints: gets the checkpoints of the best trial, or of the longer training.
        training_metrics: gets the figures.
        training_report: gets the report.
        folder: gets the folder of the study.
        tracking: the tracker, which gets the result of the study.

    Returns:
        The output of the component that is not an artifact: the best parameters.
    """
    with own_process():
        page = Path(training_report.path)
        page.parent.mkdir(parents=True, exist_ok=True)
        place = place_of(folder, settings.study)
        tracked = Tracked(tracking, run_at(place))
        tracked.require_tracker()
        with tracked:
            result = finish(place, page, Cluster.from_environment(os.environ))
            if result is not None:
                place_of(checkpoints, str(result.checkpoints))
                checkpoints.metadata.update(metadata_of(result))
                checkpoints.metadata[RUN_OF_ARTIFACT] = tracked.run.to_json()
                log_metrics(training_metrics, figures_of(result))
                facts = facts_of_study(result.best_parameters, figures_of(result))
                tracked.add(facts, training_report=training_report.path)
        if result is None:
            # Only rank 0 writes outputs; KFP's executor would write its own after this function returned.
            sys.exit(0)
    return (dict(result.best_parameters),)
