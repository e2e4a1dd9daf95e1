"""The record of a trial in the study's folder, for the other trials and for the end of the study."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_pipelines.tuning.service.documents import StudyDocuments

_RECORDS = "records"
#: The outcomes of a trial. One that its service has ended, or that is gone, stays at `RUNNING`.
RUNNING, WHOLE, UNFIT, FAILED, BUDGET = "running", "whole", "unfit", "failed", "budget"


@dataclass(frozen=True)
class Record:
    """The record of a trial.

    Attributes:
        trial: the service's name for it.
        parameters: the values of the searched parameters.
        outcome: one of those above.
        began: its first start, seconds since 1970.
        seconds: time of use of its machines, over all its starts, and a little ahead while it runs.
        curve: steps, and losses on val after them.
        step: the steps that it was trained for.
        rows: rows that it was trained on, with repetition.
        error: why it failed; empty if it did not.
    """

    trial: str
    parameters: Mapping[str, Any]
    outcome: str = RUNNING
    began: float = field(default_factory=time.time)
    seconds: float = 0.0
    curve: tuple[tuple[int, float], ...] = ()
    step: int = 0
    rows: int = 0
    error: str = ""

    @property
    def loss(self) -> float | None:
        """The lowest loss on val; None if there is none, or the trial failed."""
        return None if self.error else min((loss for _, loss in self.curve), default=None)

    @property
    def has_ended(self) -> bool:
        return self.outcome != RUNNING


class Records:
    """The records of a study. Only the trial itself writes its own.

    Args:
        documents: the documents in the folder of the study.

    Attributes:
        place: the place of the records.
    """

    def __init__(self, documents: StudyDocuments) -> None:
        self._documents, self.place = documents, documents.place_of(_RECORDS)
        self._ended: dict[str, Record] = {}

    def read(self, trial: str) -> Record | None:
        """The record of a trial; None before it has one."""
        return self._read(f"{trial}.json")

    def write(self, record: Record) -> None:
        """Writes a record, replacing an earlier one.

        Raises:
            UserError: the storage cannot be written to.
        """
        self._documents.write(f"{_RECORDS}/{record.trial}.json", asdict(record))

    def all(self) -> list[Record]:
        """All records, in the order in which the trials were begun.

        Raises:
            UserError: the storage cannot be read.
        """
        found: Iterable[Record | None] = [self._read(name) for name in self._documents.names(_RECORDS)]
        return sorted((each for each in found if each), key=lambda each: (each.began, each.trial))

    def _read(self, name: str) -> Record | None:
        # A record of an ended trial changes only if the trial is started again, which costs next to nothing.
        if name in self._ended:
            return self._ended[name]
        content = self._documents.read(f"{_RECORDS}/{name}")
        if content is None:
            return None
        content.pop("format_version")
        curve = tuple((int(step), float(loss)) for step, loss in content.pop("curve"))
        record = Record(curve=curve, **content)
        if record.has_ended:
            self._ended[name] = record
        return record


@dataclass(frozen=True)
class Price:
    """The price of machines, and the budget.

    Attributes:
        budget: US dollars that all trials may cost; 0 for no limit.
        dollars_per_hour: price of the machines of one trial.
        parallel: trials at the same time.
    """

    budget: float
    dollars_per_hour: float
    parallel: int

    @property
    def most_seconds(self) -> float:
        """The most seconds of all trials together; infinite without a limit."""
        return self.budget / self.dollars_per_hour * 3600 if self.budget and self.dollars_per_hour else math.inf

    @property
    def seconds_ahead(self) -> float:
        """Seconds that a trial records ahead; they are left to save its state when the budget ends."""
        return min(60.0, self.most_seconds / self.parallel / 10)

    def is_spent(self, records: Iterable[Record]) -> bool:
        """Whether the trials have used up the budget, including the time recorded ahead."""
        return sum(each.seconds for each in records) >= self.most_seconds
