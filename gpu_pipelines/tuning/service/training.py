"""A training in a study by a service: it is recorded, and ends with the budget."""

from __future__ import annotations

import threading
from dataclasses import replace

from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.errors import Interrupted, UnfitParametersError, UserError, first_line, root_of
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model
from gpu_pipelines.tuning.service.documents import StudyDocuments
from gpu_pipelines.tuning.service.records import BUDGET, FAILED, RUNNING, UNFIT, WHOLE, Price, Record, Records
from gpu_pipelines.tuning.service.study import ServiceStudy
from gpu_pipelines.tuning.service.tellers import Teller
from gpu_pipelines.tuning.service.watch import Watch, end_this_training

_SECONDS_BETWEEN_LOOKS = 5.0


class StudyTraining:
    """A training in a study, on one of the machines that carry it out.

    Args:
        study: the request.
        documents: the documents in the folder of the study.
        settings: the settings of the training.
        place: the place of its checkpoints.
    """

    def __init__(self, study: ServiceStudy, documents: StudyDocuments, settings: TrainingSettings, place: str) -> None:
        self._study, self._documents, self._settings, self._place = study, documents, settings, place

    def run(self, before: Record, teller: Teller, cluster: Cluster) -> str:
        """Trains, or continues an earlier training.

        Args:
            before: the training's earlier record; only rank 0 writes it.
            teller: gets the losses.
            cluster: the machines.

        Returns:
            The outcome: WHOLE or BUDGET.

        Raises:
            UserError: it failed.
            Interrupted: it was interrupted, but not by the budget.
        """
        return self._run_rank_0(before, teller, cluster) if cluster.is_rank_0 else self._run_other(before, cluster)

    def _run_rank_0(self, before: Record, teller: Teller, cluster: Cluster) -> str:
        asked, rows = self._study, self._settings.global_batch_size
        price = Price(asked.budget, asked.dollars_per_hour, asked.request.parallel)
        # Whatever ended it before, it continues.
        going_on = replace(before, outcome=RUNNING, error="")
        watch = Watch(going_on, Records(self._documents), price, teller, rows, self._place)
        try:
            with watch:
                train_model(self._settings, asked.request.dataset, self._place, cluster, tracked=watch)
        except Interrupted:
            if watch.record.outcome != BUDGET:
                raise
            return BUDGET
        except UserError as error:
            is_unfit = isinstance(root_of(error), UnfitParametersError)
            watch.close(UNFIT if is_unfit else FAILED, first_line(root_of(error)))
            raise
        watch.close(WHOLE)
        return WHOLE

    def _run_other(self, before: Record, cluster: Cluster) -> str:
        """Trains along with rank 0, until that signals that the budget is spent."""
        over = threading.Event()

        def is_spent() -> bool:
            record = Records(self._documents).read(before.trial)
            return record is not None and record.outcome == BUDGET

        def listen() -> None:
            while not over.wait(_SECONDS_BETWEEN_LOOKS):
                if is_spent():
                    end_this_training()

        threading.Thread(target=listen, daemon=True, name="listener").start()
        try:
            train_model(self._settings, self._study.request.dataset, self._place, cluster)
        except Interrupted:
            if not is_spent():
                raise
            return BUDGET
        finally:
            over.set()
        return WHOLE
