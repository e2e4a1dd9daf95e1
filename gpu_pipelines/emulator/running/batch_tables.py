"""Batch prediction jobs with BigQuery: the tables that they read and write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpu_pipelines.emulator.api_error import ApiError

if TYPE_CHECKING:
    import pyarrow as pa

    from gpu_pipelines.emulator.bigquery.tables import Tables

SCHEME = "bq://"
_ROWS_AT_ONCE = 1000


def rows_of_table(tables: Tables, uri: str) -> Iterator[dict[str, Any]]:
    """The rows of a table as objects of JSON.

    Raises:
        ApiError: there is no such table.
    """
    from gpu_pipelines.emulator.bigquery.types import plain

    name = uri.removeprefix(SCHEME)
    if name.count(".") < 2:
        raise ApiError(400, f"{uri} is not of the form bq://project.dataset.table.")
    rows = tables.get(name).rows
    return (plain(row) for batch in rows.to_batches(_ROWS_AT_ONCE) for row in batch.to_pylist())


class TableOutput:
    """Two tables: the predictions, with the columns of their instances or keys, and the instances without one.

    Args:
        tables: BigQuery's tables.
        uri: `bq://PROJECT`, in which a dataset is created, or `bq://PROJECT.DATASET`.
        model: display name of the model.
        created: the creation time of the job.

    Raises:
        ApiError: there is no such dataset.
    """

    def __init__(self, tables: Tables, uri: str, model: str, created: datetime) -> None:
        moment = re.sub(r"\W", "_", created.isoformat(timespec="milliseconds").replace("+00:00", "Z"))
        project, _, dataset = uri.removeprefix(SCHEME).partition(".")
        self._tables = tables
        if dataset:
            tables.require_dataset(f"{project}.{dataset}")
            self._dataset, self._end = f"{project}.{dataset}", f"_{moment}"
        else:
            named = re.sub(r"\W", "_", model, flags=re.ASCII)
            self._dataset, self._end = f"{project}.prediction_{named}_{moment}", ""
            tables.put_dataset(self._dataset, {})
        self._rows: list[dict[str, Any]] = []
        self._errors: list[dict[str, Any]] = []

    def add(self, told: Mapping[str, Any], prediction: Any) -> None:
        """Adds the prediction of an instance."""
        self._rows.append({**_columns(told), "prediction": json.dumps(prediction, ensure_ascii=False)})

    def refuse(self, told: Mapping[str, Any], error: str) -> None:
        """Adds an instance without a prediction, and the reason."""
        self._errors.append({**_columns(told), "errors": {"code": 3, "message": error}})

    def finish(self) -> dict[str, str]:
        """Writes everything; returns the fields of `OutputInfo`."""
        for name, rows in (("predictions", self._rows), ("errors", self._errors)):
            self._tables.put(f"{self._dataset}.{name}{self._end}", _table(rows))
        return {
            "bigquery_output_dataset": f"{SCHEME}{self._dataset}",
            "bigquery_output_table": f"predictions{self._end}",
        }

    def close(self) -> None:
        """Discards what was not written."""
        self._rows, self._errors = [], []


def _columns(told: Mapping[str, Any]) -> dict[str, Any]:
    """The columns for an instance: those of its fields, or one."""
    instance = told.get("instance")
    if isinstance(instance, Mapping):
        return dict(instance)
    return {name: value if name == "key" else json.dumps(value, ensure_ascii=False) for name, value in told.items()}


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows as a table; a column with values of several types has them as JSON."""
    import pyarrow as pa

    from gpu_pipelines.emulator.bigquery.types import stored

    names = list(dict.fromkeys(name for row in rows for name in row))
    made: dict[str, Any] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            made[name] = stored(pa.table({name: pa.array(values)}))[name]
        except (pa.ArrowException, ApiError):
            made[name] = pa.array([None if value is None else json.dumps(value) for value in values])
    return pa.table(made)
