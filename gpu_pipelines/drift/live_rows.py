"""The rows of now: a sample of a source, or of logged requests, as the model gets them."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
        rows: how many there are in all, each content once.
        repeated: how many were left out because the same content was there before.
        unusable: how many of the sample cannot be predicted, by reason.
        missing: by column of numbers, in how many of all rows it is the first without one.
        is_log: whether they are logged requests.
        are_asked: whether the model is asked for each as it is: as logged, or in a column of what it is asked.
    """

    kept: list[Live | Problem] = field(default_factory=list)
    rows: int = 0
    repeated: int = 0
    unusable: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    is_log: bool = False
    are_asked: bool = True


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
    found.kept = _sample(live, settings.max_rows, found)
    return found


def usable_rows(live: LiveRows, predictor: Predictor) -> Iterator[list[Any]]:
    """The sample as the model takes it, some rows at a time; what cannot be used is counted in `live`.

    Args:
        live: the sample.
        predictor: the model.
    """
    parameters = predictor.checked({})
    for start in range(0, len(live.kept), _AT_ONCE):
        some = [each for each in live.kept[start : start + _AT_ONCE] if isinstance(each, Live)]
        made: list[Any] = [each for each in live.kept[start : start + _AT_ONCE] if isinstance(each, Problem)]
        made += [
            row_or_why_not(partial(_row_of_instance, predictor, each.value, parameters))
            for each in some
            if each.is_instance
        ]
        values = [read_value(each.value) for each in some if not each.is_instance]
        usable = [each for each in values if not isinstance(each, Problem)]
        rows_of = predictor.rows_of if live.are_asked else predictor.rows_of_documents
        made += [*rows_of(usable, parameters), *(each for each in values if isinstance(each, Problem))]
        for row in made:
            if isinstance(row, (Problem, WrongRequest)):
                live.unusable[row.reason if isinstance(row, Problem) else NO_REQUEST] += 1
        yield [row for row in made if not isinstance(row, (Problem, WrongRequest))]


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


def _sample(live: Iterator[Live | Problem], most: int, found: LiveRows) -> list[Live | Problem]:
    """The rows with the smallest hashes of their contents, each content once; of what cannot be read, of its place."""
    heap: list[tuple[int, int, Live | Problem]] = []
    seen: set[int] = set()
    for number, row in enumerate(live):
        place = _hash([row.reason, number] if isinstance(row, Problem) else row.value)
        if place in seen:
            found.repeated += 1
            continue
        seen.add(place)
        found.rows += 1
        # heapq has the smallest first.
        if len(heap) < most:
            heapq.heappush(heap, (-place, number, row))
        elif -place > heap[0][0]:
            heapq.heapreplace(heap, (-place, number, row))
    return [row for _, _, row in sorted(heap, key=lambda each: -each[0])]


def _hash(value: Any) -> int:
    if isinstance(value, SourceFile):  # which is not read for it
        content = value.place.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        content = value
    else:
        content = json.dumps(value, sort_keys=True, default=str).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
