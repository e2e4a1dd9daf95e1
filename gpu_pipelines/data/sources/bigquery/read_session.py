"""What tables and queries in BigQuery share: their rows come by several streams at once, in Arrow's format."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.bigquery.clients import BigQuery, as_bigquery_errors
from gpu_pipelines.data.sources.files import SourceFile
from gpu_pipelines.data.sources.row_streams import Meter, Problem, Row
from gpu_pipelines.data.sources.source import Service, SourceFiles
from gpu_pipelines.data.sources.tables import parts, python_rows
from gpu_pipelines.processors import cores

if TYPE_CHECKING:
    from google.cloud.bigquery import Table
    from google.cloud.bigquery_storage_v1 import BigQueryReadClient

#: Of each stream a page of at most 10 MiB is in memory and another one on its way.
MOST_STREAMS = 16
# Rows of a stream before the next one has its turn: the order of the rows depends on nothing but the streams.
_ROWS_IN_TURN = 1000
# Seconds for which a stream that is unavailable is asked for again.
_PATIENCE = 600.0
#: How columns of the type JSON, whose values come as text, are marked: google/cloud/bigquery/_pandas_helpers.py.
_EXTENSION, _JSON = b"ARROW:extension:name", b"google:sqlType:json"


class BigQueryRows(Service):
    """Rows of a table or of a query's result: what is read are those that it has when it is opened."""

    title, example = "a table in BigQuery", "bq://…"
    #: Which rows a stream of a read session gets is told by no one before, and differs between sessions.
    is_repeatable = False

    def opened(self, bigquery: BigQuery, table: Table, shown: str, settings: PrepareSettings) -> SourceFiles:
        """Begins to read a table.

        Args:
            bigquery: the clients.
            table: as BigQuery describes it.
            shown: what it is called in the places of its rows.
            settings: `task`, the columns and `row_filter` are read.

        Returns:
            One part for each stream of a read session, which ends after 6 hours:
            https://cloud.google.com/bigquery/docs/reference/storage/rpc/google.cloud.bigquery.storage.v1#bigqueryread.

        Raises:
            UserError: a column is not there; errors of the API as they come.
        """
        columns = settings.columns_of(names_of(table))
        streams = _streams(bigquery, table, columns, settings.row_filter)
        return SourceFiles("bigquery", f"bq://{shown}/", streams, columns=columns, given=settings.source, service=self)

    def rows(self, files: SourceFiles, columns: list[str], meter: Meter) -> Iterator[tuple[SourceFile, Row]]:
        """Reads the streams of a session by turns, while the next page of each is on its way.

        A stream that breaks off is continued by the client at the offset that it had come to. The place of a row is
        the table, the number of the stream, and the row's offset in it.
        """
        if files.names:
            yield from _rows(files, meter)


def names_of(table: Table) -> list[str]:
    """The names of a table's columns."""
    return [field.name for field in table.schema]


def _streams(bigquery: BigQuery, table: Table, columns: tuple[str, ...], row_filter: str) -> tuple[str, ...]:
    reading, project = bigquery.reading, bigquery.project
    from google.cloud.bigquery_storage_v1.types import ArrowSerializationOptions, DataFormat, ReadSession

    options = ReadSession.TableReadOptions(
        selected_fields=columns,
        row_restriction=row_filter,
        arrow_serialization_options=ArrowSerializationOptions(
            buffer_compression=ArrowSerializationOptions.CompressionCodec.LZ4_FRAME
        ),
    )
    path = f"projects/{table.project}/datasets/{table.dataset_id}/tables/{table.table_id}"
    wanted = ReadSession(table=path, data_format=DataFormat.ARROW, read_options=options)
    session: Any = reading.create_read_session(
        parent=f"projects/{project}", read_session=wanted, max_stream_count=min(MOST_STREAMS, max(4, cores()))
    )
    print(f"{session.name}: {len(session.streams)} streams, billed to {project}", flush=True)
    return tuple(stream.name for stream in session.streams)


def _rows(source: SourceFiles, meter: Meter) -> Iterator[tuple[SourceFile, Row]]:
    client = BigQuery().reading
    name = source.root.removeprefix("bq://").rstrip("/")
    wrong = (f"The rows of {name} cannot be read any more", "A read session ends after 6 hours. Run the step again.")
    pool = ThreadPoolExecutor(len(source), thread_name_prefix="bigquery")
    streams = [_Stream(client, pool, file, f"{name}/stream-{number}") for number, file in enumerate(source)]
    try:
        with as_bigquery_errors(f"The table {name}", wrong, "roles/bigquery.readSessionUser"):
            turns = deque(streams)
            ended = 0
            while turns:
                stream = turns.popleft()
                for row in stream.take(_ROWS_IN_TURN):
                    yield stream.file, row
                if stream.has_ended:
                    meter.finish_file()
                    ended += 1
                else:
                    turns.append(stream)
                # The meter has a file for each stream and knows of one after another.
                meter.set_share(sum(stream.share for stream in streams) - ended)
    finally:
        # Ends the calls that are going on, those included that no answer has come to yet.
        client.transport.close()
        pool.shutdown(cancel_futures=True)


class _Page(NamedTuple):
    batch: Any
    share: float


class _Stream:
    """A stream of a read session, of which one page is read ahead in a thread."""

    def __init__(self, client: BigQueryReadClient, pool: Executor, file: SourceFile, place: str) -> None:
        self.file = file
        self.share = 0.0
        self.has_ended = False
        self._client = client
        self._pool = pool
        self._place = place
        self._pages = self._read()
        self._next = pool.submit(next, self._pages, None)
        self._batch: Any = None
        self._in_batch = self._offset = 0
        self._json: list[str] = []

    def take(self, most: int) -> Iterator[Row]:
        """The next rows, at most so many; fewer at the end."""
        while most and not self.has_ended:
            if self._batch is None or self._in_batch == self._batch.num_rows:
                self._turn_page()
                continue
            piece = next(parts(self._batch.slice(self._in_batch, most)))
            for row in python_rows(piece):
                yield f"{self._place}:{self._offset}", _with_json(row, self._json)
                self._offset += 1
            self._in_batch += piece.num_rows
            most -= piece.num_rows

    def _turn_page(self) -> None:
        page = self._next.result()
        if page is None:
            self.has_ended = True
            self.share = 1.0
            return
        self._next = self._pool.submit(next, self._pages, None)
        self._batch, self._in_batch = page.batch, 0
        self.share = page.share

    def _read(self) -> Iterator[_Page]:
        import pyarrow as pa
        from google.api_core.exceptions import ServiceUnavailable
        from google.api_core.retry import Retry, if_exception_type

        retry = Retry(predicate=if_exception_type(ServiceUnavailable), initial=0.1, timeout=_PATIENCE)
        schema = None
        for message in self._client.read_rows(self.file.name, retry=retry):
            if message.arrow_schema.serialized_schema:
                schema = pa.ipc.read_schema(pa.py_buffer(message.arrow_schema.serialized_schema))
                self._json = [f.name for f in schema if (f.metadata or {}).get(_EXTENSION) == _JSON]
            if message.row_count:
                content = pa.py_buffer(message.arrow_record_batch.serialized_record_batch)
                batch = pa.ipc.read_record_batch(content, schema)
                yield _Page(batch, message.stats.progress.at_response_end)


def _with_json(row: dict[str, Any] | Problem, columns: list[str]) -> dict[str, Any] | Problem:
    if not columns or isinstance(row, Problem):
        return row
    try:
        return row | {name: json.loads(row[name]) for name in columns if row[name] is not None}
    except (ValueError, RecursionError) as error:
        return Problem("malformed row", f"not JSON: {error}")
