"""The Storage Read API of BigQuery: sessions, whose streams return rows in Arrow's format."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pyarrow as pa
from google.cloud.bigquery_storage_v1 import types

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.bigquery.sql import filtered
from gpu_pipelines.emulator.bigquery.tables import Tables

_TABLE = re.compile(r"projects/([^/]+)/datasets/([^/]+)/tables/([^/]+)")
#: The most sessions that are remembered; Google's end after six hours.
_MOST_SESSIONS = 1000
_BYTES_OF_A_PAGE = 1 << 20


class ReadSessions:
    """The sessions.

    Args:
        tables: the tables to read.

    Attributes:
        sessions: requests of the last sessions, in order.
        most_streams: the most streams of a session.
        rows_in_page: rows of a page of a stream; 0 for a mebibyte of them.
        before_page: called with a stream and the offset of a page before it is sent.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.sessions: deque[Any] = deque(maxlen=_MOST_SESSIONS)
        self.most_streams = 4
        self.rows_in_page = 0
        self.before_page: Callable[[str, int], None] = lambda stream, offset: None
        self._streams: dict[str, pa.Table] = {}
        self._numbers = count()

    def create(self, request: Any) -> Any:
        """CreateReadSession, with as many streams as allowed.

        Raises:
            ApiError: there is no such table, or it cannot be read in this way.
        """
        self.sessions.append(request)
        wanted = request.read_session
        match = _TABLE.fullmatch(wanted.table)
        if match is None:
            raise ApiError(400, f"request failed: {wanted.table!r} is not the name of a table.")
        stored = self._tables.get(".".join(match.groups()))
        if stored.kind == "VIEW":
            raise ApiError(400, f"request failed: Tables of type {stored.kind} cannot be read using the Storage API.")
        if wanted.data_format != types.DataFormat.ARROW:
            raise ApiError(501, "The emulator gives rows of BigQuery in the format ARROW alone.")
        options = wanted.read_options
        if stored.is_filtered and not options.row_restriction:
            text = f"request failed: Cannot query over {wanted.table} without a filter for partition elimination"
            raise ApiError(400, text)
        rows = filtered(wanted.table, stored.rows, options.row_restriction)
        if unknown := [name for name in options.selected_fields if name not in rows.column_names]:
            text = f"request failed: The following selected fields do not exist in the table schema: {unknown[0]}"
            raise ApiError(400, text)
        if options.selected_fields:
            rows = rows.select(list(options.selected_fields))
        name = f"{request.parent}/locations/us/sessions/{next(self._numbers)}"
        session = types.ReadSession(name=name, table=wanted.table, data_format=wanted.data_format)
        session.arrow_schema.serialized_schema = rows.schema.serialize().to_pybytes()
        session.estimated_row_count = rows.num_rows
        number = min(self.most_streams, request.max_stream_count or self.most_streams) if stored.rows.num_rows else 0
        size = -(-rows.num_rows // number) if number else 0
        for stream in range(number):
            self._streams[f"{name}/streams/{stream}"] = rows.slice(stream * size, size)
            session.streams.append(types.ReadStream(name=f"{name}/streams/{stream}"))
        while len(self._streams) > _MOST_SESSIONS * self.most_streams:
            del self._streams[next(iter(self._streams))]
        return session

    def read(self, request: Any) -> Iterator[Any]:
        """ReadRows: pages from an offset on; the first includes the schema.

        Raises:
            ApiError: there is no such stream.
        """
        stream, offset, first = request.read_stream, int(request.offset), True
        if stream not in self._streams:
            raise ApiError(404, f"Not found: Stream {stream}")
        rows = self._streams[stream]
        size = self.rows_in_page or max(1, rows.num_rows * _BYTES_OF_A_PAGE // max(1, rows.nbytes))
        while offset < rows.num_rows or first:
            self.before_page(stream, offset)
            page = rows.slice(offset, size)
            offset += page.num_rows
            yield _page(page, offset / max(1, rows.num_rows), first)
            first = False


def _page(rows: pa.Table, share: float, first: bool) -> Any:
    response = types.ReadRowsResponse(row_count=rows.num_rows)
    if first:
        response.arrow_schema.serialized_schema = rows.schema.serialize().to_pybytes()
    if rows.num_rows:
        batch = rows.combine_chunks().to_batches()[0]
        response.arrow_record_batch.serialized_record_batch = batch.serialize().to_pybytes()
    response.stats.progress.at_response_end = share
    return response
