"""What a trial leaves for the others and for the end of the study: a record in the study's folder."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_pipelines.tuning.service.documents import StudyDocuments

_RECORDS = "records"
#: How a trial has ended. One that its service has ended, or that is gone, stays at `RUNNING`.
RUNNING, WHOLE, UNFIT, FAILED, BUDGET = "running", "whole", "unfit", "failed", "budget"


@dataclass(frozen=True)
class Record:
    """What is known of a trial.

    Attributes:
        trial: what the service calls it.
        parameters: what is searched for, with its values.
        outcome: one of those above.
        began: when it was begun first, seconds since 1970.
        seconds: for which its machines are used, over all its starts, and a little ahead while it runs.
        curve: steps, and losses on val after them.
        step: steps that it was trained.
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
        """The lowest on val; None if there is none, or the trial failed."""
        return None if self.error else min((loss for _, loss in self.curve), default=None)

    @property
    def has_ended(self) -> bool:
        return self.outcome != RUNNING


class Records:
    """The records of a study. Only the trial itself writes its own.

    Args:
        documents: in the folder of the study.

    Attributes:
        place: where they are.
    """

    def __init__(self, documents: StudyDocuments) -> None:
        self._documents, self.place = documents, documents.place_of(_RECORDS)
        self._ended: dict[str, Record] = {}

    def read(self, trial: str) -> Record | None:
        """The record of a trial; None before it has one."""
        return self._read(f"{trial}.json")

    def write(self, record: Record) -> None:
        """Writes a record in the place of an earlier one.

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
        # One that has ended changes only if the trial is started once more, which costs next to nothing.
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
    """What machines cost.

    Attributes:
        budget: US dollars that all trials may cost; 0 for no limit.
        dollars_per_hour: of the machines of one trial.
        parallel: trials at the same time.
    """

    budget: float
    dollars_per_hour: float
    parallel: int

    @property
    def most_seconds(self) -> float:
        """Of all trials together; infinite where there is no limit."""
        return self.budget / self.dollars_per_hour * 3600 if self.budget and self.dollars_per_hour else math.inf

    @property
    def seconds_ahead(self) -> float:
        """For which a trial writes down its time ahead; it is what is left to save its state when the budget ends."""
        return min(60.0, self.most_seconds / self.parallel / 10)

    def is_spent(self, records: Iterable[Record]) -> bool:
        """Whether trials have used the budget up, with what they have written down ahead."""
        return sum(each.seconds for each in records) >= self.most_seconds
