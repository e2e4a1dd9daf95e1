"""Finishes a study whose trials a service has started: its result, from the records of the trials."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.report import write_report
from gpu_pipelines.tuning.result import RESULT, Trial, TuningResult, best_of
from gpu_pipelines.tuning.service.documents import StudyDocuments
from gpu_pipelines.tuning.service.records import BUDGET, WHOLE, Price, Record, Records
from gpu_pipelines.tuning.service.study import ServiceStudy
from gpu_pipelines.tuning.service.tellers import NobodyListens
from gpu_pipelines.tuning.service.training import StudyTraining
from gpu_pipelines.tuning.service.trial import checkpoints_of
from gpu_pipelines.tuning.study import StudyRequest

REPORT = "report.html"
#: Prefix of the record and the folder of a longer training.
_WINNER = "winner-"


def finish(study: str, report: Path, cluster: Cluster) -> TuningResult | None:
    """Evaluates a study whose trials have ended, and trains longer with the best parameters if requested.

    Args:
        study: folder of the study.
        report: gets the HTML page; a copy of it is left in the folder.
        cluster: the machines for the longer training.

    Returns:
        The result; None on a node that is not rank 0.

    Raises:
        UserError: no trial has a loss, or the longer training failed.
        Interrupted: that was interrupted; the same call continues it.
    """
    documents = StudyDocuments(study)
    asked = ServiceStudy.load(documents)
    of_trials = [each for each in Records(documents).all() if not each.trial.startswith(_WINNER)]
    by_number = _numbered(of_trials)
    trials = [_trial(asked.request, number, record) for number, record in sorted(by_number.items())]
    best = best_of(trials)
    winner = by_number[best.number]
    checkpoints = checkpoints_of(documents, winner.trial)
    if asked.longer > 1:
        checkpoints = _trained_longer(asked, documents, winner, cluster) or checkpoints
    if not cluster.is_rank_0:
        return None
    assert best.loss is not None
    records = Records(documents).all()
    seconds = sum(each.seconds for each in records)
    result = TuningResult(
        best_parameters=best.parameters,
        checkpoints=checkpoints,
        loss=best.loss,
        best=best.number,
        trials=tuple(trials),
        seconds=round(seconds, 1),
        dollars=round(seconds / 3600 * asked.dollars_per_hour, 4),
        ended_by="budget" if any(each.outcome == BUDGET for each in records) else "trials",
        report=documents.place_of(REPORT),
    )
    write_report(result, asked.request, report)
    _keep(documents, result, report)
    return result


def _numbered(records: Sequence[Record]) -> dict[int, Record]:
    """Records by the service's number of a trial, or by the order in which they were begun."""
    if all(each.trial.isdecimal() for each in records):
        return {int(each.trial): each for each in records}
    return dict(enumerate(records, 1))


def _trial(request: StudyRequest, number: int, record: Record) -> Trial:
    is_whole = record.outcome == WHOLE
    return Trial(
        number=number,
        parameters=record.parameters,
        loss=record.loss,
        # The service has no rungs: a trial reaches its end, or none.
        rung=request.rungs - 1 if is_whole else -1 if record.loss is None else 0,
        is_whole=is_whole,
        step=record.step,
        rows=record.rows,
        seconds=record.seconds,
        curve=record.curve,
        error=record.error,
    )


def longer_settings(request: StudyRequest, values: Mapping[str, Any], times: float) -> TrainingSettings:
    """The settings of a new training with the values of a trial, for a multiple of its steps.

    Args:
        request: the request of the study.
        values: the values of the trial.
        times: more than 1.
    """
    settings, steps = request.trained_with(dict(values))
    longer = replace(settings, max_steps=round(steps[-1] * times), checkpoint_every_steps=0)
    return replace(longer, checkpoint_every_steps=longer.steps_between_checkpoints(longer.max_steps))


def _trained_longer(asked: ServiceStudy, documents: StudyDocuments, winner: Record, cluster: Cluster) -> str:
    """The place of the longer training's checkpoints; empty if the budget ended it."""
    settings = longer_settings(asked.request, winner.parameters, asked.longer)
    name = f"{_WINNER}{winner.trial}-{settings.max_steps}"
    place = documents.place_of(f"{name}/checkpoints")
    before = Records(documents).read(name) or Record(name, winner.parameters)
    if cluster.is_rank_0 and Price(asked.budget, asked.dollars_per_hour, 1).is_spent(Records(documents).all()):
        Records(documents).write(replace(before, outcome=BUDGET))
        return ""
    training = StudyTraining(asked, documents, settings, place)
    return place if training.run(before, NobodyListens(), cluster) == WHOLE else ""


def _keep(documents: StudyDocuments, result: TuningResult, report: Path) -> None:
    """Leaves result and report in the folder of the study."""
    content = report.read_bytes()
    if not is_remote(documents.address):
        result.save(Path(documents.address))
        Path(documents.place_of(REPORT)).write_bytes(content)
        return
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-study-") as scratch:
        result.save(Path(scratch))
        folder = RemoteFolder(documents.address)
        folder.upload(Path(scratch), [RESULT])
        folder.write(REPORT, content)
