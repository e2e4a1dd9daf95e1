"""Begins a study whose trials a service starts: writes its request to the folder that all trials read."""

from __future__ import annotations

from gpu_pipelines.artifacts.dataset_manifest import manifest_at
from gpu_pipelines.errors import UserError
from gpu_pipelines.tuning.service.documents import StudyDocuments
from gpu_pipelines.tuning.service.records import Records
from gpu_pipelines.tuning.service.study import ServiceStudy
from gpu_pipelines.tuning.settings import TuningSettings
from gpu_pipelines.tuning.study import StudyRequest


def begin(settings: TuningSettings, dataset: str, study: str, processes: int) -> ServiceStudy:
    """Checks a request, and writes it into the folder of the study.

    Args:
        settings: the request.
        dataset: made by `prepare_data`: a directory or `gs://…`.
        study: the folder.
        processes: processes of each trial; 0 if that is not known.

    Raises:
        UserError: lists all problems; or the folder already has the trials of a study.
    """
    manifest = manifest_at(dataset)
    task = manifest.task
    # Each trial has all processes of its machines.
    if problems := settings.problems(task, processes * settings.parallel_trials):
        raise UserError.of_all(problems)
    request = StudyRequest(
        dataset=dataset,
        task=task,
        rows=manifest.rows("train"),
        base=settings.base,
        space=settings.search_space(),
        trials=settings.trials,
        parallel=min(settings.parallel_trials, settings.trials),
        seed=settings.study_seed,
        sampler=settings.sampler,
        reduction=settings.reduction,
    )
    asked = ServiceStudy(request, settings.budget, settings.dollars_per_hour, settings.longer)
    documents = StudyDocuments(study)
    if trials := Records(documents).all():
        raise UserError(
            f"{study} has {len(trials)} trials already; a service starts each study from the beginning.",
            "Leave checkpoint_uri out, or give an empty folder.",
        )
    asked.save(documents)
    return asked
