"""BigQuery's REST interface: datasets, tables, rows, jobs, and uploads of files to load."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.bigquery.jobs import Jobs, page_of
from gpu_pipelines.emulator.bigquery.load_files import rows_of_values
from gpu_pipelines.emulator.bigquery.reads import ReadSessions
from gpu_pipelines.emulator.bigquery.tables import Tables, name_of, reference_of
from gpu_pipelines.emulator.bigquery.types import schema_of
from gpu_pipelines.emulator.storage.bucket_places import BucketPlaces

_PREFIX, _UPLOADS = "/bigquery/v2/projects/", "/upload/bigquery/v2/projects/"
#: Unfinished uploads; an older one is forgotten after this many others.
_MOST_UPLOADS = 100
_OF_PAGES = {"maxResults", "pageToken", "startIndex", "selectedFields", "formatOptions.useInt64Timestamp"}
_OF_LISTS = {"maxResults", "pageToken", "all", "filter"}
_OF_RESULTS = {*_OF_PAGES, "location", "timeoutMs"}
Answer = tuple[int, dict[str, Any], dict[str, str]]


class BigQuery:
    """BigQuery.

    Args:
        tables: the datasets and tables.
        places: the buckets with files to load; None for none.

    Attributes:
        tables: the datasets and tables.
        jobs: queries and load jobs.
        reads: the Storage Read API.
    """

    def __init__(self, tables: Tables, places: BucketPlaces | None = None) -> None:
        self.tables, self.jobs, self.reads = tables, Jobs(tables, places), ReadSessions(tables)
        self._uploads: dict[str, tuple[str, Mapping[str, Any], bytearray]] = {}

    def answer(self, verb: str, path: str, query: Mapping[str, str], body: Any) -> dict[str, Any]:
        """The answer to a request.

        Args:
            verb: GET, POST and so on.
            path: the path alone.
            query: its parameters, without those of the protocol.
            body: the JSON of the body; None for none.

        Raises:
            ApiError: the answer is an error.
        """
        rest = path.removeprefix(_PREFIX) if path.startswith(_PREFIX) else ""
        for wanted, pattern, handle, taken in _ROUTES:
            match = re.fullmatch(pattern, rest)
            if match and verb == wanted:
                if unknown := sorted(set(query) - taken):
                    raise ApiError(400, f'Unknown name "{unknown[0]}": Cannot bind query parameter.')
                if verb in ("POST", "PATCH", "PUT") and not isinstance(body, dict):
                    raise ApiError(400, "Invalid JSON payload received. It is no object.")
                return handle(self, query, body, *match.groups())
        raise ApiError(501, f"The emulator does not have {verb} {path} of BigQuery; docs/emulator.md says what it has.")

    def upload(
        self, verb: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], content: bytes, host: str
    ) -> Answer:
        """An upload of a file to load, as a whole with its job (`multipart`) or in pieces (`resumable`).

        Args:
            verb: POST begins, PUT is a piece of a resumable one.
            path: the path alone.
            query: its parameters.
            headers: `Content-Type` of a whole upload, and `Content-Range` of a piece.
            content: the body.
            host: the server's address.

        Returns:
            Status, answer and headers; for the beginning of a resumable upload, the address for the pieces.

        Raises:
            ApiError: it is not a valid upload.
        """
        way = query.get("uploadType")
        match = re.fullmatch(r"([^/]+)/jobs", path.removeprefix(_UPLOADS))
        if match is None or way not in ("resumable", "multipart"):
            raise ApiError(400, f"There are no uploads of the type {way} to {path}.")
        if way == "multipart":
            job, file = _parts(headers.get("Content-Type", ""), content)
            return 200, self.jobs.insert(match[1], job, file), {}
        if verb == "POST":
            number = uuid.uuid4().hex
            self._uploads[number] = (match[1], _job(content), bytearray())
            if len(self._uploads) > _MOST_UPLOADS:
                del self._uploads[next(iter(self._uploads))]
            return 200, {}, {"Location": f"{host}{path}?uploadType=resumable&upload_id={number}"}
        if query.get("upload_id") not in self._uploads:
            raise ApiError(404, "There is no such upload.")
        return self._take_piece(query["upload_id"], headers.get("Content-Range", ""), content)

    def _take_piece(self, number: str, place: str, content: bytes) -> Answer:
        project, job, held = self._uploads[number]
        match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", place)
        if match is None:
            raise ApiError(400, f"Invalid Content-Range: {place!r}.")
        if match[1]:
            # A piece that is sent again replaces what came before.
            held[int(match[1]) :] = content
        if str(len(held)) == match[3]:
            return 200, self.jobs.insert(project, job, bytes(held)), {}
        return 308, {}, {"Range": f"bytes=0-{len(held) - 1}"} if held else {}

    def _datasets(self, query: Mapping[str, str], body: Any, project: str) -> dict[str, Any]:
        names = sorted(name for name in self.tables.datasets if name.startswith(f"{project}."))
        return {"kind": "bigquery#datasetList", "datasets": [self.tables.described_dataset(name) for name in names]}

    def _make_dataset(self, query: Mapping[str, str], body: Any, project: str) -> dict[str, Any]:
        reference = body.get("datasetReference")
        name = reference.get("datasetId") if isinstance(reference, dict) else None
        self.tables.put_dataset(f"{project}.{name or ''}", _labels(body))
        return self.tables.described_dataset(f"{project}.{name}")

    def _dataset(self, query: Mapping[str, str], body: Any, *names: str) -> dict[str, Any]:
        return self.tables.described_dataset(".".join(names))

    def _change_dataset(self, query: Mapping[str, str], body: Any, *names: str) -> dict[str, Any]:
        self.tables.require_dataset(".".join(names))
        self.tables.put_dataset(".".join(names), _labels(body), is_new=False)
        return self.tables.described_dataset(".".join(names))

    def _delete_dataset(self, query: Mapping[str, str], body: Any, *names: str) -> dict[str, Any]:
        self.tables.delete_dataset(".".join(names), query.get("deleteContents", "").lower() == "true")
        return {}

    def _tables(self, query: Mapping[str, str], body: Any, *names: str) -> dict[str, Any]:
        self.tables.require_dataset(".".join(names))
        held = self.tables.of_dataset(".".join(names))
        told = [{"id": name, "tableReference": reference_of(name), "type": "TABLE"} for name in held]
        return {"kind": "bigquery#tableList", "tables": told, "totalItems": len(told)}

    def _make_table(self, query: Mapping[str, str], body: Any, project: str, dataset: str) -> dict[str, Any]:
        if other := sorted(set(body) & {"view", "materializedView", "externalDataConfiguration"}):
            raise ApiError(501, f"The emulator has no tables with {other[0]}.")
        reference = body.get("tableReference")
        reference = reference if isinstance(reference, dict) else {}
        name = name_of({**reference, "projectId": project, "datasetId": dataset})
        if name in self.tables.tables:
            raise ApiError(409, f"Already Exists: Table {name.replace('.', ':', 1)}")
        self.tables.put(name, schema_of(_fields(body)).empty_table(), _labels(body))
        return self.tables.described(name)

    def _table(self, query: Mapping[str, str], body: Any, *names: str) -> dict[str, Any]:
        return self.tables.described(".".join(names))

    def _change_table(self, query: Mapping[str, str], body: Any, *names: str) -> dict[str, Any]:
        self.tables.change(".".join(names), _labels(body))
        return self.tables.described(".".join(names))

    def _delete_table(self, query: Mapping[str, str], body: Any, *names: str) -> dict[str, Any]:
        self.tables.delete(".".join(names))
        return {}

    def _rows(self, query: Mapping[str, str], body: Any, *names: str) -> dict[str, Any]:
        rows = self.tables.get(".".join(names)).rows
        chosen = [name for name in query.get("selectedFields", "").split(",") if name]
        if unknown := [name for name in chosen if name not in rows.column_names]:
            raise ApiError(400, f"Invalid field name: {unknown[0]}.")
        return {"kind": "bigquery#tableDataList", **page_of(rows.select(chosen) if chosen else rows, query)}

    def _insert_rows(self, query: Mapping[str, str], body: Any, *names: str) -> dict[str, Any]:
        name, given = ".".join(names), body.get("rows")
        stored = self.tables.get(name)
        if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
            raise ApiError(400, "Invalid value at 'rows'.")
        try:
            added = rows_of_values((row.get("json") for row in given), stored.rows.schema)
        except (ValueError, pa.ArrowException) as error:
            why = {"reason": "invalid", "message": str(error)}
            return {"kind": "bigquery#tableDataInsertAllResponse", "insertErrors": [{"index": 0, "errors": [why]}]}
        with self.tables.lock:
            self.tables.put(name, pa.concat_tables([self.tables.get(name).rows, added]))
        return {"kind": "bigquery#tableDataInsertAllResponse"}

    def _insert_job(self, query: Mapping[str, str], body: Any, project: str) -> dict[str, Any]:
        return self.jobs.insert(project, body)

    def _job(self, query: Mapping[str, str], body: Any, project: str, name: str) -> dict[str, Any]:
        return self.jobs.told(name)

    def _cancel_job(self, query: Mapping[str, str], body: Any, project: str, name: str) -> dict[str, Any]:
        return {"kind": "bigquery#jobCancelResponse", "job": self.jobs.told(name)}

    def _query(self, query: Mapping[str, str], body: Any, project: str) -> dict[str, Any]:
        return self.jobs.query(project, body)

    def _results(self, query: Mapping[str, str], body: Any, project: str, name: str) -> dict[str, Any]:
        return self.jobs.results(name, query)


_IN_DATASET, _OF_TABLE = r"([^/]+)/datasets/([^/]+)/tables", r"([^/]+)/datasets/([^/]+)/tables/([^/]+)"
_ROUTES: list[tuple[str, str, Callable[..., dict[str, Any]], set[str]]] = [
    ("GET", r"([^/]+)/datasets", BigQuery._datasets, _OF_LISTS),
    ("POST", r"([^/]+)/datasets", BigQuery._make_dataset, set()),
    ("GET", r"([^/]+)/datasets/([^/]+)", BigQuery._dataset, {"datasetView"}),
    ("PATCH", r"([^/]+)/datasets/([^/]+)", BigQuery._change_dataset, set()),
    ("DELETE", r"([^/]+)/datasets/([^/]+)", BigQuery._delete_dataset, {"deleteContents"}),
    ("GET", _IN_DATASET, BigQuery._tables, _OF_LISTS),
    ("POST", _IN_DATASET, BigQuery._make_table, set()),
    ("GET", _OF_TABLE, BigQuery._table, {"selectedFields", "view"}),
    ("PATCH", _OF_TABLE, BigQuery._change_table, {"autodetect_schema"}),
    ("DELETE", _OF_TABLE, BigQuery._delete_table, set()),
    ("GET", rf"{_OF_TABLE}/data", BigQuery._rows, _OF_PAGES),
    ("POST", rf"{_OF_TABLE}/insertAll", BigQuery._insert_rows, set()),
    ("POST", r"([^/]+)/jobs", BigQuery._insert_job, set()),
    ("GET", r"([^/]+)/jobs/([^/]+)", BigQuery._job, {"location", "projection"}),
    ("POST", r"([^/]+)/jobs/([^/]+)/cancel", BigQuery._cancel_job, {"location", "projection"}),
    ("POST", r"([^/]+)/queries", BigQuery._query, set()),
    ("GET", r"([^/]+)/queries/([^/]+)", BigQuery._results, _OF_RESULTS),
]


def _labels(body: Mapping[str, Any]) -> dict[str, str]:
    labels = body.get("labels") or {}
    if not isinstance(labels, dict):
        raise ApiError(400, "Invalid value at 'labels'.")
    return {str(name): str(value) for name, value in labels.items() if value is not None}


def _fields(body: Mapping[str, Any]) -> list[Any]:
    schema = body.get("schema") or {}
    fields = schema.get("fields") or [] if isinstance(schema, dict) else None
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise ApiError(400, "Invalid value at 'schema'.")
    return fields


def _job(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"Invalid JSON payload received. {error}") from error
    if not isinstance(found, dict):
        raise ApiError(400, "Invalid JSON payload received. It is no object.")
    return found


def _parts(kind: str, content: bytes) -> tuple[dict[str, Any], bytes]:
    """The job and the file of an upload with both."""
    match = re.search(r'boundary="?([^";]+)', kind)
    parts = content.split(b"--" + match[1].encode())[1:-1] if match else []
    bodies = [part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n") for part in parts]
    if len(bodies) != 2:
        raise ApiError(400, "The upload has not two parts, its job and its file.")
    return _job(bodies[0]), bodies[1]
