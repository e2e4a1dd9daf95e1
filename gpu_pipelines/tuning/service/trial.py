"""The program of a trial, which a service starts on each machine of the trial.

`python3 -m gpu_pipelines.tuning.service.trial --study gs://… [--trial NAME] --learning_rate=0.01 …`

A trial that is started again, such as after a preemption, continues bit for bit. Its exit status is 0 if it was trained
to its end or the budget ended it. If its parameters cannot be trained with, the status is 1 on Vertex AI, which then
marks the trial as infeasible. Kubernetes would start it again several times, so the status is 0 there, and the trial
has no loss.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.errors import ERROR_PREFIX, UnfitParametersError, UserError, root_of
from gpu_pipelines.step_environment import RUN
from gpu_pipelines.tuning.service.documents import StudyDocuments
from gpu_pipelines.tuning.service.records import FAILED, Price, Record, Records
from gpu_pipelines.tuning.service.study import ServiceStudy, values_of
from gpu_pipelines.tuning.service.tellers import VERTEX_TRIAL, teller_here
from gpu_pipelines.tuning.service.training import StudyTraining
from gpu_pipelines.tuning.study import MOST_FAILURES


def checkpoints_of(documents: StudyDocuments, trial: str) -> str:
    """The place of a trial's checkpoints."""
    return documents.place_of(f"trials/{trial}/checkpoints")


def run(study: str, trial: str, arguments: Sequence[str], cluster: Cluster) -> str:
    """Trains a trial, or the rest of one.

    Args:
        study: folder of the study.
        trial: the service's name for it, the same when it is started again.
        arguments: its parameters.
        cluster: the machines of the trial.

    Returns:
        The outcome: WHOLE or BUDGET.

    Raises:
        UserError: it cannot be trained, or must not be any more.
        Interrupted: it was interrupted; the same call continues it.
    """
    documents = StudyDocuments(study)
    asked = ServiceStudy.load(documents)
    values = values_of(asked.request.space, arguments)
    record = _record_of(Records(documents), trial, values)
    if cluster.is_rank_0:
        _require_study_goes_on(Records(documents), asked, record)
        told = ", ".join(f"{name}={value}" for name, value in values.items())
        print(f"trial {trial}: {told}", flush=True)
    settings, _ = asked.request.trained_with(values)
    training = StudyTraining(asked, documents, settings, checkpoints_of(documents, trial))
    return training.run(record, teller_here(), cluster)


def _record_of(records: Records, trial: str, values: Mapping[str, Any]) -> Record:
    """The earlier record of a trial, or a new one.

    Raises:
        UserError: there is a record with other parameters, from another study.
    """
    before = records.read(trial)
    if before is None:
        return Record(trial, values)
    if dict(before.parameters) != dict(values):
        raise UserError(
            f"Trial {trial} has the parameters {dict(values)} here, but {dict(before.parameters)} in {records.place}.",
            "Give each study a folder of its own.",
        )
    return before


class StudyIsOverError(UserError):
    """No further trial of a study may be trained."""


def _require_study_goes_on(records: Records, asked: ServiceStudy, own: Record) -> None:
    """Raises StudyIsOverError if no further trial may be trained."""
    price = Price(asked.budget, asked.dollars_per_hour, asked.request.parallel)
    others = [each for each in records.all() if each.trial != own.trial]
    if price.is_spent([*others, own]):
        raise StudyIsOverError(f"The budget of {price.budget:g} dollars is spent, so this trial is not trained.")
    failed = [each for each in others if each.outcome == FAILED]
    if len(failed) >= MOST_FAILURES and not any(each.loss is not None for each in others):
        raise StudyIsOverError(
            f"{len(failed)} trials have failed, and none has a loss, so this one is not trained: {failed[-1].error}"
        )


def main() -> None:
    """Reads the command line, which ends with the service's parameters, and trains."""
    parser = argparse.ArgumentParser(prog="trial", allow_abbrev=False)
    parser.add_argument("--study", required=True)
    parser.add_argument("--trial", default="")
    given, arguments = parser.parse_known_args()
    with own_process():
        trial = given.trial or os.environ.get(VERTEX_TRIAL, "")
        if not trial:
            raise UserError("The trial has no name.", f"Give --trial, or {VERTEX_TRIAL}, which Vertex AI sets.")
        # A process that is started again replaces its predecessor at once.
        os.environ[RUN] = f"{given.study} {trial}"
        try:
            run(given.study, trial, arguments, Cluster.from_environment(os.environ))
        except UserError as error:
            if VERTEX_TRIAL in os.environ or not isinstance(root_of(error), (UnfitParametersError, StudyIsOverError)):
                raise
            print(f"{ERROR_PREFIX}{error}", flush=True)


if __name__ == "__main__":
    main()
