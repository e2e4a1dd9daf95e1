"""The rows of now: a sample of a source, or of logged requests, as the model gets them."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
NOT_JSON, NO_REQUEST = "request is no JSON", "request cannot be predicted"


class Live(NamedTuple):
    """A row of now: what the model predicts from, or an instance of a request."""

    value: Any
    is_instance: bool = False


@dataclass
class LiveRows:
    """A sample of the rows of now.

    Attributes:
        kept: the sample, in an order that is as good as any, with what could not be read.
        times: how often the content of each of the sample is there.
        rows: how many there are in all, each content once.
        repeated: how many were left out because the same content was there before.
        unread: of how many of all rows nothing could be read.
        unusable: how many of the sample cannot be predicted, by reason.
        refused: as how many rows those of them are there that could be read.
        missing: by column of numbers, in how many of all rows it is the first without one.
        is_log: whether they are logged requests.
        are_asked: whether the model is asked for each as it is: as logged, or in a column of what it is asked.
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
        """How many rows there are in all, repeated ones too."""
        return self.rows + self.repeated

    @property
    def lost(self) -> tuple[int, int]:
        """How many rows cannot be used, and of how many: each counts, however often it is there, as in training."""
        readable = sum(times for each, times in zip(self.kept, self.times, strict=True) if isinstance(each, Live))
        share = (self.unread + (self.every - self.unread) * self.refused / max(readable, 1)) / max(self.every, 1)
        rows = self.every if len(self.kept) == self.rows else len(self.kept)
        return round(share * rows), rows


def live_rows(settings: DriftSettings, task: str, inputs: Inputs, scratch: Path) -> LiveRows:
    """Reads a source once, and keeps some of it.

    The same content counts once, as in the data that models are trained on: a client that asks the same thing every
    second says nothing of the data.

    Args:
        settings: what is read.
        task: of the model.
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
    """The sample as the model takes it, some rows at a time; what cannot be used is counted in `live`.

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
    """What the model takes of one of the sample, or what is wrong; nothing of a document that a profile has not."""
    if isinstance(each, Problem):
        return [each]
    if each.is_instance:
        return [row_or_why_not(partial(_row_of_instance, predictor, each.value, parameters))]
    value = read_value(each.value)
    return [value] if isinstance(value, Problem) else rows_of([value], parameters)


def _row_of_instance(predictor: Predictor, instance: Any, parameters: Any) -> Any:
    return predictor.read(instance, parameters).row()


def _columns_of_log(files: SourceFiles, rows: Any) -> list[str] | None:
    """The columns that are read of logged requests; None for any other source."""
    if not files.service and not FORMATS[files.format].is_table:
        return None
    if not len(files):
        return None
    has = source_columns(files, rows.choices)
    return next((list(columns) for columns in LOGS if set(columns) <= set(has)), None)


def _logged(files: SourceFiles, columns: Sequence[str], days: float) -> Iterator[Live | Problem]:
    since = datetime.now(timezone.utc) - timedelta(days=days) if days else None
    for _, (_, row) in rows_of(
        files, list(columns), "All files of logged requests need the same columns.", Meter(files)
    ):
        if isinstance(row, Problem):
            yield row
        elif since is None or _time_of(row.get(LOGGED_AT)) >= since:
            yield from _instances(row.get(PAYLOAD))


def _instances(payload: Any) -> Iterator[Live | Problem]:
    """The instances of a logged request: each a text of JSON, or all of them as the body had them."""
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
    """When a request was logged; one that does not say it counts as of now."""
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
    """The first column without a number: a row that was rejected in training counts under one column as well."""
    return next((name for name in columns if isinstance(number_in(values, name), Problem)), None)


def _take_sample(live: Iterator[Live | Problem], most: int, found: LiveRows) -> None:
    """The rows with the smallest hashes of their contents, each content once; of what cannot be read, of its place."""
    heap: list[tuple[int, int, Live | Problem]] = []
    seen = Counter[int]()
    for number, row in enumerate(live):
        found.unread += isinstance(row, Problem)
        place = _hash([row.reason, number] if isinstance(row, Problem) else row.value)
        seen[place] += 1
        if seen[place] > 1:
            found.repeated += 1
            continue
        found.rows += 1
        # heapq has the smallest first.
        if len(heap) < most:
            heapq.heappush(heap, (-place, number, row))
        elif -place > heap[0][0]:
            heapq.heapreplace(heap, (-place, number, row))
    heap.sort(key=lambda each: -each[0])
    found.kept, found.times = [row for _, _, row in heap], [seen[-place] for place, _, _ in heap]


def _hash(value: Any) -> int:
    if isinstance(value, SourceFile):  # which is not read for it
        content = value.place.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        content = value
    else:
        content = json.dumps(value, sort_keys=True, default=str).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
