"""The current rows: a sample of a source, or of logged requests, in the form that the model gets."""

from __future__ import annotations

import hashlib
import heapq
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpu_pipelines.data.sources.files import SourceFile
from gpu_pipelines.data.sources.files_read import FilesOfSources
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.rows import rows_of, source_columns
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.sources.sources import open_source
from gpu_pipelines.drift.settings import LOGGED_AT, LOGS, PAYLOAD, DriftSettings
from gpu_pipelines.prediction.source_rows import RowSource, choices_of, read_value
from gpu_pipelines.serving.predictor import Inputs, Predictor, row_or_why_not
from gpu_pipelines.serving.request_body import WrongRequest
from gpu_pipelines.tasks.formats import FORMATS
from gpu_pipelines.tasks.regression.prepare import number_in

_AT_ONCE = 64
#: Fewest hashes that are sorted in among the others at a time.
_ADDED_AT_ONCE = 1 << 20
NOT_JSON, NO_REQUEST = "request is no JSON", "request cannot be predicted"


class Live(NamedTuple):
    """A current row: what the model predicts from, or an instance of a request."""

    value: Any
    is_instance: bool = False


@dataclass
class LiveRows:
    """A sample of the current rows.

    Attributes:
        kept: the sample in arbitrary order, including rows that could not be read.
        times: how often the content of each row of the sample occurs.
        rows: rows in all, each content once.
        repeated: rows left out because the same content came before.
        unread: rows that could not be read, of all rows.
        unusable: rows of the sample that cannot be predicted, by reason.
        refused: occurrences of those of them that could be read.
        missing: by column of numbers, the rows for which it is the first column without a number.
        is_log: whether they are logged requests.
        are_asked: whether the rows are the model's own inputs: logged, or in the column of its input field.
    """

    kept: list[Live | Problem] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    rows: int = 0
    repeated: int = 0
    unread: int = 0
    unusable: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    is_log: bool = False
    are_asked: bool = True

    @property
    def every(self) -> int:
        """Rows in all, repeated ones included."""
        return self.rows + self.repeated

    @property
    def lost(self) -> tuple[int, int]:
        """The number of unusable rows, and of how many: each counts as often as it occurs, as in training."""
        readable = sum(times for each, times in zip(self.kept, self.times, strict=True) if isinstance(each, Live))
        share = (self.unread + (self.every - self.unread) * self.refused / max(readable, 1)) / max(self.every, 1)
        rows = self.every if len(self.kept) == self.rows else len(self.kept)
        return round(share * rows), rows


def live_rows(settings: DriftSettings, task: str, inputs: Inputs, scratch: Path) -> LiveRows:
    """Reads a source once, and keeps a sample.

    The same content counts once, as in training data: a client that sends the same request every second says nothing of
    the data.

    Args:
        settings: the source, and how to read it.
        task: the task of the model.
        inputs: what the model takes.
        scratch: an empty directory.

    Raises:
        UserError: the source cannot be read, or lacks a column.
    """
    found = LiveRows()
    rows = settings.rows(task, (*LOGS, *choices_of(settings.rows(task), inputs, "")))
    files = open_source(rows, scratch / "source")
    FilesOfSources(files, None).say()
    if (columns := _columns_of_log(files, rows)) is not None:
        found.is_log = True
        live: Iterator[Live | Problem] = _logged(files, columns, settings.days)
    else:
        source = RowSource(settings.rows(task), inputs, "", scratch / "rows")
        found.are_asked = source.columns[:1] == (inputs.field,)
        live = _of_source(source, inputs, found)
    _take_sample(live, settings.max_rows, found)
    return found


def usable_rows(live: LiveRows, predictor: Predictor) -> Iterator[list[Any]]:
    """The sample in the model's form, some rows at a time; unusable rows are counted in `live`.

    Args:
        live: the sample.
        predictor: the model.
    """
    parameters = predictor.checked({})
    rows_of = predictor.rows_of if live.are_asked else predictor.rows_of_documents
    for start in range(0, len(live.kept), _AT_ONCE):
        usable = []
        for each, times in zip(live.kept[start : start + _AT_ONCE], live.times[start : start + _AT_ONCE], strict=True):
            for row in _made(each, predictor, rows_of, parameters):
                if isinstance(row, (Problem, WrongRequest)):
                    live.unusable[row.reason if isinstance(row, Problem) else NO_REQUEST] += 1
                    live.refused += times * isinstance(each, Live)
                else:
                    usable.append(row)
        yield usable


def _made(each: Live | Problem, predictor: Predictor, rows_of: Callable[..., list[Any]], parameters: Any) -> list[Any]:
    """The model's rows of one row of the sample, or its problem; none for a document of a kind that profiles lack."""
    if isinstance(each, Problem):
        return [each]
    if each.is_instance:
        return [row_or_why_not(partial(_row_of_instance, predictor, each.value, parameters))]
    value = read_value(each.value)
    return [value] if isinstance(value, Problem) else rows_of([value], parameters)


def _row_of_instance(predictor: Predictor, instance: Any, parameters: Any) -> Any:
    return predictor.read(instance, parameters).row()


def _columns_of_log(files: SourceFiles, rows: Any) -> list[str] | None:
    """The columns to read from logged requests; None for any other source."""
    if not files.service and not FORMATS[files.format].is_table:
        return None
    if not len(files):
        return None
    has = source_columns(files, rows.choices)
    return next((list(columns) for columns in LOGS if set(columns) <= set(has)), None)


def _logged(files: SourceFiles, columns: Sequence[str], days: float) -> Iterator[Live | Problem]:
    since = datetime.now(timezone.utc) - timedelta(days=days) if days else None
    for _, (_, row) in rows_of(files, list(columns), Meter(files)):
        if isinstance(row, Problem):
            yield row
        elif since is None or _time_of(row.get(LOGGED_AT)) >= since:
            yield from _instances(row.get(PAYLOAD))


def _instances(payload: Any) -> Iterator[Live | Problem]:
    """The instances of a logged request: each as JSON text, or all of them as in the body."""
    for text in payload if isinstance(payload, list) else [payload]:
        try:
            content = json.loads(text) if isinstance(text, str) else text
        except (ValueError, RecursionError) as error:
            yield Problem(NOT_JSON, str(error))
            continue
        several = content.get("instances") if isinstance(content, dict) else None
        for instance in several if isinstance(several, list) else [content]:
            yield Live(instance, is_instance=True)


def _time_of(value: Any) -> datetime:
    """The time of a logged request; one without a time counts as current."""
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return datetime.now(timezone.utc)
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _of_source(source: RowSource, inputs: Inputs, found: LiveRows) -> Iterator[Live | Problem]:
    for piece in source.pieces(Meter(source.files)):
        for row in piece.rows:
            value = row.value
            if isinstance(value, dict) and (lacked := _first_lacked(value, inputs.columns)):
                found.missing[lacked] += 1
            yield value if isinstance(value, Problem) else Live(value)


def _first_lacked(values: Mapping[str, Any], columns: Sequence[str]) -> str | None:
    """The first column without a number; a row that was rejected in training also counts under one column."""
    return next((name for name in columns if isinstance(number_in(values, name), Problem)), None)


def _take_sample(live: Iterator[Live | Problem], most: int, found: LiveRows) -> None:
    """Keeps the rows with the smallest hashes of their contents, each content once; an unreadable row by its place."""
    heap: list[tuple[int, int, Live | Problem]] = []
    # Only of the kept ones: the largest kept hash never grows, so what was left out once does not come back.
    times: dict[int, int] = {}
    seen, every = _Distinct(), 0
    for number, row in enumerate(live):
        found.unread += isinstance(row, Problem)
        place = _hash([row.reason, number] if isinstance(row, Problem) else row.value)
        seen.add(place)
        every += 1
        if place in times:
            times[place] += 1
            continue
        # heapq keeps the smallest first.
        if len(heap) < most:
            heapq.heappush(heap, (-place, number, row))
        elif -place > heap[0][0]:
            del times[-heapq.heapreplace(heap, (-place, number, row))[0]]
        else:
            continue
        times[place] = 1
    found.rows = seen.count()
    found.repeated = every - found.rows
    heap.sort(key=lambda each: -each[0])
    found.kept, found.times = [row for _, _, row in heap], [times[-place] for place, _, _ in heap]


class _Distinct:
    """Counts distinct hashes, in eight bytes each; a Counter takes over a hundred."""

    def __init__(self) -> None:
        self._sorted, self._added = np.empty(0, np.uint64), array("Q")

    def add(self, number: int) -> None:
        self._added.append(number)
        if len(self._added) > max(_ADDED_AT_ONCE, len(self._sorted)):
            self.count()

    def count(self) -> int:
        # np.unique makes a set of them first.
        both = np.concatenate([self._sorted, np.frombuffer(self._added, np.uint64)])
        both.sort()
        self._sorted, self._added = both[np.diff(both, prepend=~both[:1]) != 0], array("Q")
        return len(self._sorted)


def _hash(value: Any) -> int:
    if isinstance(value, SourceFile):  # not read for its hash
        content = value.place.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        content = value
    else:
        content = json.dumps(value, sort_keys=True, default=str).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
