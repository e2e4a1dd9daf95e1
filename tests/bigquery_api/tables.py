"""The tables of the server, its queries, and its read sessions; SQL is SQLite's."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import types

from gpu_pipelines.emulator.api_error import ApiError

PROJECT = "example-project"
_TYPES = {pa.string(): "STRING", pa.int64(): "INTEGER", pa.float64(): "FLOAT", pa.binary(): "BYTES"}
_SCALARS = tuple(_TYPES)
#: As BigQuery marks a column of its type JSON.
JSON = {b"ARROW:extension:name": b"google:sqlType:json"}


@dataclass
class StoredTable:
    """A table.

    Attributes:
        rows: its rows.
        version: counts its changes.
        kind: TABLE or VIEW.
        streaming: rows that are still in the buffer of streamed rows; those are not counted in `numRows`.
        labels: of the table.
    """

    rows: pa.Table
    version: int = 1
    kind: str = "TABLE"
    streaming: int = 0
    labels: dict[str, str] = field(default_factory=dict)


@dataclass
class Job:
    """A query that ran, or was only checked."""

    query: str
    dry_run: bool
    reads: list[str]
    destination: str


@dataclass
class Tables:
    """What BigQuery holds.

    Attributes:
        tables: by `project.dataset.table`.
        jobs: by id.
        sessions: requests for read sessions, in their order.
        streams: rows of each stream, by its name.
        most_streams: that a session is given.
        datasets: `project.dataset` of those that tables may be written to.
        loads: what load jobs were asked to do, by their ids.
    """

    tables: dict[str, StoredTable] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    sessions: list[Any] = field(default_factory=list)
    streams: dict[str, pa.Table] = field(default_factory=dict)
    most_streams: int = 4
    datasets: set[str] = field(default_factory=set)
    loads: dict[str, dict[str, Any]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=count)

    def get(self, name: str) -> StoredTable:
        """A table."""
        if name not in self.tables:
            project, dataset, table = name.split(".")
            raise ApiError(404, f"Not found: Table {project}:{dataset}.{table}")
        return self.tables[name]

    def described(self, name: str) -> dict[str, Any]:
        """The resource of a table, made with the types of Google's client."""
        stored = self.get(name)
        project, dataset, table = name.split(".")
        told: dict[str, Any] = bigquery.Table(name, schema=[_field(f) for f in stored.rows.schema]).to_api_repr()
        told |= {
            "id": f"{project}:{dataset}.{table}",
            "etag": f"etag-{stored.version}",
            "lastModifiedTime": str(1_700_000_000_000 + stored.version),
            "numRows": str(stored.rows.num_rows - stored.streaming),
            "type": stored.kind,
            "labels": stored.labels,
        }
        if stored.streaming:
            told["streamingBuffer"] = {"estimatedRows": str(stored.streaming), "oldestEntryTime": "1700000000000"}
        return told

    def described_dataset(self, project: str, dataset: str) -> dict[str, Any]:
        """The resource of a dataset that there is."""
        if f"{project}.{dataset}" not in self.datasets:
            raise ApiError(404, f"Not found: Dataset {project}:{dataset}")
        return bigquery.Dataset(f"{project}.{dataset}").to_api_repr()

    def load(self, job: dict[str, Any], content: bytes) -> dict[str, Any]:
        """Runs a load job of one Parquet file; its rows replace those of the table, or are added to them."""
        name, wanted = job["jobReference"]["jobId"], job["configuration"]["load"]
        if name in self.loads:
            raise ApiError(409, f"Already Exists: Job {PROJECT}:US.{name}")
        if wanted["sourceFormat"] != "PARQUET" or not wanted["parquetOptions"]["enableListInference"]:
            raise ApiError(400, "Parquet with lists is what is loaded here.")
        reference = wanted["destinationTable"]
        place = f"{reference['projectId']}.{reference['datasetId']}.{reference['tableId']}"
        rows = pq.read_table(pa.BufferReader(content))
        stored = self.tables.setdefault(place, StoredTable(rows.slice(0, 0)))
        is_added = wanted.get("writeDisposition", "WRITE_APPEND") == "WRITE_APPEND"
        stored.rows = pa.concat_tables([stored.rows, rows]) if is_added else rows
        stored.version += 1
        self.loads[name] = {"load": wanted}
        return self.told_load(name)

    def told_load(self, name: str) -> dict[str, Any]:
        """The resource of a load job, which has ended."""
        reference = {"projectId": PROJECT, "jobId": name, "location": "US"}
        configuration = {"jobType": "LOAD", **self.loads[name]}
        return {
            "kind": "bigquery#job",
            "jobReference": reference,
            "configuration": configuration,
            "status": {"state": "DONE"},
        }

    def insert_job(self, body: dict[str, Any]) -> dict[str, Any]:
        """Checks a query and, if it is no dry run, runs it."""
        configuration = body["configuration"]
        query, dry_run = configuration["query"]["query"], configuration.get("dryRun", False)
        if configuration["query"].get("useLegacySql", True):
            raise ApiError(400, "Legacy SQL is not what anyone wants.")
        name = body["jobReference"]["jobId"]
        if name in self.jobs:
            raise ApiError(409, f"Already Exists: Job {PROJECT}:US.{name}")
        reads = re.findall(r"`([^`]+)`", query)
        rows = self._selected(query, reads) if query.split()[0].upper() == "SELECT" else pa.table({})
        destination = f"{PROJECT}._results.anon{next(self._numbers)}"
        self.jobs[name] = Job(query, dry_run, reads, destination)
        if not dry_run:
            self.tables[destination] = StoredTable(rows)
        return self.told_job(name, "DONE" if dry_run else "RUNNING")

    def told_job(self, name: str, state: str = "DONE") -> dict[str, Any]:
        """The resource of a job."""
        if name in self.loads:
            return self.told_load(name)
        if name not in self.jobs:
            raise ApiError(404, f"Not found: Job {PROJECT}:US.{name}")
        job = self.jobs[name]
        return {
            "kind": "bigquery#job",
            "id": f"{PROJECT}:US.{name}",
            "jobReference": {"projectId": PROJECT, "jobId": name, "location": "US"},
            "configuration": {
                "jobType": "QUERY",
                "dryRun": job.dry_run,
                "query": {"query": job.query, "useLegacySql": False, "destinationTable": _reference(job.destination)},
            },
            "status": {"state": state},
            "statistics": {
                "query": {
                    "statementType": job.query.split()[0].upper(),
                    "totalBytesProcessed": str(sum(self.get(table).rows.nbytes for table in job.reads)),
                    "referencedTables": [_reference(table) for table in job.reads],
                }
            },
        }

    def create_session(self, request: Any) -> Any:
        """A read session with as many streams as there may be."""
        self.sessions.append(request)
        wanted = request.read_session
        match = re.fullmatch(r"projects/([^/]+)/datasets/([^/]+)/tables/([^/]+)", wanted.table)
        stored = self.get(".".join(match.groups()) if match else "")
        if stored.kind == "VIEW":
            raise ApiError(400, "request failed: Tables of type VIEW cannot be read using the Storage API.")
        options = wanted.read_options
        rows = self._filtered(wanted.table, stored.rows, options.row_restriction).select(list(options.selected_fields))
        name = f"{request.parent}/locations/us/sessions/{next(self._numbers)}"
        session = types.ReadSession(name=name, table=wanted.table, data_format=wanted.data_format)
        session.arrow_schema.serialized_schema = rows.schema.serialize().to_pybytes()
        number = min(self.most_streams, request.max_stream_count or self.most_streams) if stored.rows.num_rows else 0
        size = -(-rows.num_rows // number) if number else 0
        for stream in range(number):
            self.streams[f"{name}/streams/{stream}"] = rows.slice(stream * size, size)
            session.streams.append(types.ReadStream(name=f"{name}/streams/{stream}"))
        return session

    def _selected(self, query: str, reads: list[str]) -> pa.Table:
        with closing(sqlite3.connect(":memory:")) as base:
            for name in reads:
                _load(base, name, self.get(name).rows)
            try:
                found = base.execute(query)
            except sqlite3.Error as error:
                raise ApiError(400, f"Syntax error: {error} at [1:1]") from error
            names = [column[0] for column in found.description]
            rows = [dict(zip(names, row, strict=True)) for row in found]
        return pa.Table.from_pylist(rows)

    def _filtered(self, table: str, rows: pa.Table, restriction: str) -> pa.Table:
        if not restriction:
            return rows
        with closing(sqlite3.connect(":memory:")) as base:
            _load(base, "rows", rows)
            try:
                kept = base.execute(f"SELECT rowid FROM rows WHERE {restriction}")
                return rows.take(pa.array([number - 1 for (number,) in kept], pa.int64()))
            except sqlite3.Error as error:
                said = f"request failed: Row filter for table {table} is invalid. Filter is '{restriction}': {error}"
                raise ApiError(400, said) from error


def _load(base: sqlite3.Connection, name: str, rows: pa.Table) -> None:
    columns = [f.name for f in rows.schema if f.type in _SCALARS]
    base.execute(f"CREATE TABLE `{name}` ({', '.join(f'`{column}`' for column in columns)})")
    values = zip(*(rows[column].to_pylist() for column in columns), strict=True)
    base.executemany(f"INSERT INTO `{name}` VALUES ({', '.join('?' * len(columns))})", values)


def _field(field_: pa.Field) -> bigquery.SchemaField:
    kind = field_.type
    if pa.types.is_struct(kind):
        return bigquery.SchemaField(field_.name, "RECORD", fields=[_field(part) for part in kind])
    if pa.types.is_list(kind):
        item = kind.value_type
        inner = [_field(part) for part in item] if pa.types.is_struct(item) else []
        return bigquery.SchemaField(field_.name, "RECORD" if inner else _TYPES[item], mode="REPEATED", fields=inner)
    return bigquery.SchemaField(field_.name, "JSON" if field_.metadata == JSON else _TYPES[kind])


def _reference(name: str) -> dict[str, str]:
    return dict(zip(("projectId", "datasetId", "tableId"), name.split("."), strict=True))
