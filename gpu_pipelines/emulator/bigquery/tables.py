"""The datasets and tables of BigQuery, kept as Arrow files in the state."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.bigquery.types import field_of
from gpu_pipelines.emulator.state_folder import StateFolder, damaged

_TABLES, _DATASETS, _FOLDER = "bigqueryTables", "bigqueryDatasets", "bigquery"
#: Names of datasets, and of tables: https://cloud.google.com/bigquery/docs/datasets#dataset-naming and …/tables.
_DATASET, _TABLE = re.compile(r"\w{1,1024}", re.ASCII), re.compile(r"[\w -]{1,1024}")
#: The dataset for results of queries, which BigQuery keeps for a day.
_MOST_RESULTS = 100


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class StoredTable:
    """A table.

    Attributes:
        rows: its rows.
        version: counts its changes.
        kind: TABLE or VIEW.
        streaming: rows that are still in the streaming buffer; they are not counted in `numRows`.
        labels: the table's labels.
        is_filtered: whether reading requires a filter on its partitions.
        created, changed: the creation time, and the time of the last rows, milliseconds since 1970.
    """

    rows: pa.Table
    version: int = 1
    kind: str = "TABLE"
    streaming: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    is_filtered: bool = False
    created: int = field(default_factory=_now_ms)
    changed: int = field(default_factory=_now_ms)


class Tables:
    """The content of BigQuery.

    Args:
        tables: by `project.dataset.table`.
        datasets: `project.dataset` of the datasets to which tables may be written.
        state: where it is kept, and loaded from at the start; None keeps nothing.

    Raises:
        UserError: the state is damaged.
    """

    def __init__(
        self,
        tables: Mapping[str, StoredTable] | None = None,
        datasets: Sequence[str] | set[str] = (),
        state: StateFolder | None = None,
    ) -> None:
        self.tables = dict(tables or {})
        self.datasets: dict[str, dict[str, str]] = {name: {} for name in datasets}
        self.lock = threading.RLock()
        self._state = state
        self._results: list[str] = []
        if state:
            self._read(state)

    def get(self, name: str) -> StoredTable:
        """A table.

        Raises:
            ApiError: there is no such table.
        """
        if name not in self.tables:
            project, dataset, table = name.split(".", 2)
            raise ApiError(404, f"Not found: Table {project}:{dataset}.{table}")
        return self.tables[name]

    def put(self, name: str, rows: pa.Table, labels: Mapping[str, str] | None = None) -> StoredTable:
        """Replaces the rows of a table; it is created if it does not exist.

        Raises:
            ApiError: its dataset does not exist, or the name is invalid.
        """
        dataset, _, table = name.rpartition(".")
        self.require_dataset(dataset)
        if not _TABLE.fullmatch(table):
            raise ApiError(400, f"Invalid table ID {table!r}.")
        with self.lock:
            held = self.tables.get(name)
            made = StoredTable(rows, held.version + 1 if held else 1, labels=dict(held.labels if held else {}))
            made.labels.update(labels or {})
            if held:
                made.created = held.created
            self._keep(name, made, held)
            self.tables[name] = made
        return made

    def put_result(self, name: str, rows: pa.Table) -> None:
        """Holds the result of a query, which belongs to no dataset and is not kept."""
        with self.lock:
            self.tables[name] = StoredTable(rows)
            self._results.append(name)
            if len(self._results) > _MOST_RESULTS:
                del self.tables[self._results.pop(0)]

    def change(self, name: str, labels: Mapping[str, str]) -> None:
        """Sets the labels of a table."""
        with self.lock:
            stored = self.get(name)
            stored.labels = dict(labels)
            self._record(name, stored)

    def delete(self, name: str) -> None:
        """Deletes a table."""
        with self.lock:
            stored = self.get(name)
            del self.tables[name]
            if self._state:
                self._state.remove(_TABLES, name)
                self._file(name, stored).unlink(missing_ok=True)

    def of_dataset(self, dataset: str) -> list[str]:
        """Names of the tables of a dataset."""
        with self.lock:
            return sorted(name for name in self.tables if name.rpartition(".")[0] == dataset)

    def require_dataset(self, dataset: str) -> None:
        """Raises ApiError if a dataset does not exist."""
        if dataset not in self.datasets:
            raise ApiError(404, f"Not found: Dataset {dataset.replace('.', ':', 1)}")

    def put_dataset(self, dataset: str, labels: Mapping[str, str], is_new: bool = True) -> None:
        """Creates a dataset, or changes one.

        Raises:
            ApiError: it already exists, or the name is invalid.
        """
        name = dataset.partition(".")[2]
        if not _DATASET.fullmatch(name):
            text = f"Invalid dataset ID {name!r}. Dataset IDs must be alphanumeric (plus underscores)."
            raise ApiError(400, text)
        with self.lock:
            if is_new and dataset in self.datasets:
                raise ApiError(409, f"Already Exists: Dataset {dataset.replace('.', ':', 1)}")
            if self._state:
                self._state.write(_DATASETS, dataset, {"name": dataset, "labels": dict(labels)})
            self.datasets[dataset] = dict(labels)

    def delete_dataset(self, dataset: str, with_tables: bool) -> None:
        """Deletes a dataset.

        Raises:
            ApiError: it does not exist, or has tables.
        """
        with self.lock:
            self.require_dataset(dataset)
            if (held := self.of_dataset(dataset)) and not with_tables:
                raise ApiError(400, f"Dataset {dataset.replace('.', ':', 1)} is still in use")
            for name in held:
                self.delete(name)
            del self.datasets[dataset]
            if self._state:
                self._state.remove(_DATASETS, dataset)

    def described(self, name: str) -> dict[str, Any]:
        """The resource of a table."""
        stored = self.get(name)
        project, dataset, table = name.split(".", 2)
        told: dict[str, Any] = {
            "kind": "bigquery#table",
            "id": f"{project}:{dataset}.{table}",
            "etag": f"etag-{stored.changed}-{stored.version}",
            "tableReference": reference_of(name),
            "schema": {"fields": [field_of(column) for column in stored.rows.schema]},
            "creationTime": str(stored.created),
            "lastModifiedTime": str(stored.changed),
            "numRows": str(stored.rows.num_rows - stored.streaming),
            "numBytes": str(stored.rows.nbytes),
            "location": "US",
            "type": stored.kind,
            "labels": stored.labels,
            "requirePartitionFilter": stored.is_filtered,
        }
        if stored.streaming:
            told["streamingBuffer"] = {"estimatedRows": str(stored.streaming), "oldestEntryTime": "1700000000000"}
        return told

    def described_dataset(self, dataset: str) -> dict[str, Any]:
        """The resource of a dataset."""
        self.require_dataset(dataset)
        project, _, name = dataset.partition(".")
        return {
            "kind": "bigquery#dataset",
            "id": f"{project}:{name}",
            "etag": "etag",
            "datasetReference": {"projectId": project, "datasetId": name},
            "location": "US",
            "labels": self.datasets[dataset],
        }

    def _read(self, state: StateFolder) -> None:
        for path, document in state.documents(_DATASETS):
            if not isinstance(document.get("name"), str):
                raise damaged(path, "it has no name")
            self.datasets[document["name"]] = dict(document.get("labels", {}))
        kept = set()
        for path, document in state.documents(_TABLES):
            try:
                name, version = document["name"], int(document["version"])
                made = StoredTable(pa.table({}), version, labels=dict(document["labels"]))
                made.created, made.changed = int(document["created"]), int(document["changed"])
                file = self._file(name, made)
                with pa.memory_map(str(file)) as source:
                    made.rows = pa.ipc.open_file(source).read_all()
            except (KeyError, ValueError, TypeError, OSError) as error:
                raise damaged(path, error) from error
            self.tables[name] = made
            kept.add(file.name)
        for left in (state.folder / _FOLDER).glob("*"):
            # From a table that was being written when the emulator was killed.
            if left.name not in kept:
                left.unlink()

    def _file(self, name: str, stored: StoredTable) -> Path:
        assert self._state is not None
        return self._state.folder / _FOLDER / f"{quote(name, safe='')}@{stored.version}.arrow"

    def _keep(self, name: str, made: StoredTable, before: StoredTable | None) -> None:
        """Writes a table; a reader of the state finds either the old rows, or all of the new ones."""
        if not self._state:
            return
        file = self._file(name, made)
        try:
            file.parent.mkdir(exist_ok=True)
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, made.rows.schema) as writer:
                writer.write_table(made.rows)
            self._record(name, made)
        except OSError as error:
            file.unlink(missing_ok=True)
            why = os.strerror(error.errno) if error.errno else error
            text = f"The emulator cannot write the table {name}: {why}. Free space there."
            raise ApiError(400, text, "FAILED_PRECONDITION") from error
        if before:
            self._file(name, before).unlink(missing_ok=True)

    def _record(self, name: str, stored: StoredTable) -> None:
        if self._state:
            told = {"version": stored.version, "created": stored.created, "changed": stored.changed}
            self._state.write(_TABLES, name, {"name": name, "labels": stored.labels, **told})


def reference_of(name: str) -> dict[str, str]:
    """The reference of a table by its name."""
    return dict(zip(("projectId", "datasetId", "tableId"), name.split(".", 2), strict=True))


def name_of(reference: Mapping[str, Any]) -> str:
    """The name of a table by its reference.

    Raises:
        ApiError: the reference is invalid.
    """
    parts = [reference.get(part) for part in ("projectId", "datasetId", "tableId")]
    if not all(isinstance(part, str) and part and "." not in part for part in parts):
        raise ApiError(400, f"Invalid table reference: {dict(reference)}.")
    return ".".join(map(str, parts))
