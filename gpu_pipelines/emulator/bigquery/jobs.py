"""The jobs of BigQuery: queries (SELECT), and load jobs. All run at once."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.bigquery.load_files import as_schema, rows_of_file
from gpu_pipelines.emulator.bigquery.sql import selected, statement_of, tables_read_by
from gpu_pipelines.emulator.bigquery.tables import StoredTable, Tables, name_of, reference_of
from gpu_pipelines.emulator.bigquery.types import cells_of, field_of, schema_of, stored
from gpu_pipelines.emulator.storage.bucket_places import BucketPlaces

#: The most jobs that are remembered.
_MOST_JOBS = 1000
_ROWS_OF_A_PAGE = 10_000
_API = "https://bigquery.googleapis.com/bigquery/v2"
_ID = re.compile(r"[\w-]{1,1024}", re.ASCII)
_REASONS = {400: "invalid", 404: "notFound", 409: "duplicate", 501: "notImplemented"}


@dataclass
class QueryJob:
    """A query that ran, or was only checked."""

    project: str
    query: str
    dry_run: bool
    reads: list[str]
    destination: str


@dataclass
class LoadJob:
    """A finished load job: its configuration, and its error if it failed."""

    project: str
    load: Mapping[str, Any]
    rows: int = 0
    error: ApiError | None = None


class Jobs:
    """The jobs.

    Args:
        tables: the tables that they read and write.
        places: the buckets with files to load; None for none.

    Attributes:
        queries, loads: by id; older ones are forgotten after a thousand.
    """

    def __init__(self, tables: Tables, places: BucketPlaces | None = None) -> None:
        self._tables, self._places = tables, places
        # Of two requests with one id, the second has to find the first.
        self._lock = threading.RLock()
        self.queries: dict[str, QueryJob] = {}
        self.loads: dict[str, LoadJob] = {}

    def insert(self, project: str, body: Mapping[str, Any], content: bytes | None = None) -> dict[str, Any]:
        """Runs a job.

        Args:
            project: id of the project that pays.
            body: the job.
            content: the file that comes with a load job.

        Raises:
            ApiError: it is not a job, or one that the emulator does not run.
        """
        with self._lock:
            return self._insert(project, body, content)

    def _insert(self, project: str, body: Mapping[str, Any], content: bytes | None) -> dict[str, Any]:
        configuration = _object(body, "configuration")
        name = _object(body, "jobReference").get("jobId") or f"job_{uuid.uuid4().hex}"
        if not isinstance(name, str) or not _ID.fullmatch(name):
            raise ApiError(400, f"Invalid job ID {str(name)[:80]!r}.")
        if name in self.queries or name in self.loads:
            raise ApiError(409, f"Already Exists: Job {project}:US.{name}")
        if "load" in configuration:
            return self._load(project, name, _object(configuration, "load"), content)
        if "query" not in configuration:
            kind = ", ".join(sorted(set(configuration) & {"copy", "extract"})) or "nothing"
            raise ApiError(501, f"The emulator runs queries and load jobs of BigQuery; this job is for {kind}.")
        state = self._query(project, name, _object(configuration, "query"), bool(configuration.get("dryRun", False)))
        return self.told(name, state)

    def query(self, project: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a query and returns the first rows: jobs.query."""
        name = f"job_{uuid.uuid4().hex}"
        self._query(project, name, body, bool(body.get("dryRun", False)))
        return self.results(name, {"maxResults": str(body.get("maxResults", _ROWS_OF_A_PAGE))})

    def told(self, name: str, state: str = "DONE") -> dict[str, Any]:
        """The resource of a job."""
        job = self.loads.get(name) or self.queries.get(name)
        if job is None:
            raise ApiError(404, f"Not found: Job {name}")
        told: dict[str, Any] = {
            "kind": "bigquery#job",
            "id": f"{job.project}:US.{name}",
            "jobReference": {"projectId": job.project, "jobId": name, "location": "US"},
            # Where Google's pipeline components ask for the job again.
            "selfLink": f"{_API}/projects/{job.project}/jobs/{name}?location=US",
            "status": {"state": state},
        }
        if isinstance(job, LoadJob):
            told["configuration"] = {"jobType": "LOAD", "load": job.load}
            told["statistics"] = {"load": {"outputRows": str(job.rows)}}
            if job.error:
                why = {"reason": _REASONS.get(job.error.code, "invalid"), "message": job.error.message}
                told["status"] |= {"errorResult": why, "errors": [why]}
            return told
        query = {"query": job.query, "useLegacySql": False, "destinationTable": reference_of(job.destination)}
        told["configuration"] = {"jobType": "QUERY", "dryRun": job.dry_run, "query": query}
        processed = str(sum(self._tables.get(table).rows.nbytes for table in job.reads if table in self._tables.tables))
        told["statistics"] = {
            "totalBytesProcessed": processed,
            "query": {
                "statementType": statement_of(job.query),
                "totalBytesProcessed": processed,
                "referencedTables": [reference_of(table) for table in job.reads],
            },
        }
        return told

    def results(self, name: str, asked: Mapping[str, str]) -> dict[str, Any]:
        """A page of the result of a query: jobs.getQueryResults."""
        reference = self.told(name)["jobReference"]
        if name not in self.queries:
            raise ApiError(400, f"The job {name} is no query.")
        job = self.queries[name]
        if job.dry_run:
            return {"jobComplete": True, "jobReference": reference, "schema": {"fields": []}, "totalRows": "0"}
        rows = self._tables.get(job.destination).rows
        told = {"kind": "bigquery#queryResponse", "jobComplete": True, "jobReference": reference}
        return {**told, "schema": {"fields": [field_of(column) for column in rows.schema]}, **page_of(rows, asked)}

    def _query(self, project: str, name: str, asked: Mapping[str, Any], dry_run: bool) -> str:
        query = asked.get("query")
        if not isinstance(query, str) or not query.strip():
            raise ApiError(400, "Required parameter is missing: query")
        if asked.get("useLegacySql", True):
            raise ApiError(501, "The emulator has no legacy SQL: useLegacySql is false for GoogleSQL.")
        if asked.get("queryParameters"):
            raise ApiError(501, "The emulator has no parameters of queries.")
        statement = statement_of(query)
        if statement != "SELECT" and not dry_run:
            raise ApiError(501, f"The emulator runs no {statement or 'such'} statements of BigQuery; it runs SELECT.")
        named = {text: _full_name(project, text) for text in tables_read_by(query)}
        rows = pa.table({})
        if statement == "SELECT":
            rows = selected(query, {text: self._tables.get(table).rows for text, table in named.items()})
        target = asked.get("destinationTable")
        destination = name_of(target) if isinstance(target, Mapping) else f"{project}._results.anon{uuid.uuid4().hex}"
        if not dry_run and target:
            self._write(destination, rows, asked, "WRITE_EMPTY")
        elif not dry_run:
            self._tables.put_result(destination, rows)
        _remember(self.queries, name, QueryJob(project, query, dry_run, list(named.values()), destination))
        return "DONE" if dry_run else "RUNNING"

    def _load(self, project: str, name: str, load: Mapping[str, Any], content: bytes | None) -> dict[str, Any]:
        job = LoadJob(project, load)
        try:
            job.rows = self._loaded(load, content)
        except ApiError as error:
            # A wrong request is answered with an error; wrong data make the job fail.
            if error.code == 501:
                raise
            job.error = error
        _remember(self.loads, name, job)
        return self.told(name)

    def _loaded(self, load: Mapping[str, Any], content: bytes | None) -> int:
        """Writes the rows of a load job into its table; returns their number."""
        destination = name_of(_object(load, "destinationTable"))
        files = [content] if content is not None else list(self._files(load.get("sourceUris") or []))
        if not files:
            raise ApiError(400, "Required parameter is missing: sourceUris")
        fields = _object(load, "schema").get("fields") or []
        held = self._tables.tables.get(destination)
        adds = load.get("writeDisposition", "WRITE_APPEND") == "WRITE_APPEND"
        schema = schema_of(fields) if fields else held.rows.schema if held and adds and len(held.rows.schema) else None
        if schema is None and load.get("sourceFormat", "CSV") != "PARQUET" and not load.get("autodetect"):
            raise ApiError(400, "No schema specified on job or table.")
        parts = [rows_of_file(file, load, schema) for file in files]
        rows = pa.concat_tables(parts, promote_options="default")
        self._write(destination, rows, load, "WRITE_APPEND")
        return int(rows.num_rows)

    def _files(self, uris: Sequence[Any]) -> list[bytes]:
        if self._places is None:
            raise ApiError(501, "There are no buckets here.")
        return [file.read_bytes() for uri in uris for file in self._places.matching(str(uri))]

    def _write(self, destination: str, rows: pa.Table, asked: Mapping[str, Any], default: str) -> None:
        """Writes rows into a table according to the dispositions of a job."""
        disposition = asked.get("writeDisposition") or default
        with self._tables.lock:
            held: StoredTable | None = self._tables.tables.get(destination)
            if held is None and asked.get("createDisposition") == "CREATE_NEVER":
                self._tables.get(destination)
            if disposition == "WRITE_EMPTY" and held and held.rows.num_rows:
                raise ApiError(409, f"Already Exists: Table {destination}")
            if disposition == "WRITE_APPEND" and held and len(held.rows.schema):
                rows = pa.concat_tables([held.rows, as_schema(rows, held.rows.schema)])
            self._tables.put(destination, stored(rows))


def page_of(rows: pa.Table, asked: Mapping[str, str]) -> dict[str, Any]:
    """A page of rows.

    Args:
        rows: all of them.
        asked: parameters of the request: startIndex, maxResults, pageToken and formatOptions.useInt64Timestamp.

    Raises:
        ApiError: one of them is invalid.
    """
    numbers = {name: asked.get(name) or "" for name in ("pageToken", "startIndex", "maxResults")}
    if wrong := [name for name, text in numbers.items() if not re.fullmatch(r"[0-9]{0,12}", text)]:
        raise ApiError(400, f"Invalid value for {wrong[0]}: {numbers[wrong[0]]!r}.")
    start = int(numbers["pageToken"] or numbers["startIndex"] or 0)
    size = min(int(numbers["maxResults"] or _ROWS_OF_A_PAGE), _ROWS_OF_A_PAGE)
    in_microseconds = asked.get("formatOptions.useInt64Timestamp", "").lower() == "true"
    found = rows.slice(start, size)
    told: dict[str, Any] = {"totalRows": str(rows.num_rows)}
    if size:
        told["rows"] = cells_of(found, in_microseconds)
    if size and start + size < rows.num_rows:
        told["pageToken"] = str(start + size)
    return told


def _object(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object in a document; an empty one if it is missing."""
    found = document.get(name, {})
    if not isinstance(found, Mapping):
        raise ApiError(400, f"Invalid value at {name!r}.")
    return found


def _full_name(project: str, text: str) -> str:
    parts = text.split(".")
    if len(parts) not in (2, 3):
        raise ApiError(400, f"Invalid table-valued name {text!r}.")
    return text if len(parts) == 3 else f"{project}.{text}"


def _remember(jobs: dict[str, Any], name: str, job: Any) -> None:
    jobs[name] = job
    if len(jobs) > _MOST_JOBS:
        del jobs[next(iter(jobs))]
