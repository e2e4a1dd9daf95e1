"""BigQuery as a source: which table, and which of its columns and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.bigquery_clients import BigQuery
from gpu_pipelines.data.sources.bigquery_query import read_query, require_select, run_query
from gpu_pipelines.data.sources.bigquery_tables import described, table_errors
from gpu_pipelines.data.sources.files import Source
from gpu_pipelines.data.sources.names import TABLE_SCHEME, is_query
from gpu_pipelines.data.units.parallel import cores
from gpu_pipelines.tasks.tasks import task_named

if TYPE_CHECKING:
    from google.cloud.bigquery import Table


#: Of each stream a page of at most 10 MiB is in memory and another one on its way.
MOST_STREAMS = 16


def require_readable(settings: PrepareSettings) -> None:
    """Checks a table or a query without reading any rows, and without cost.

    Raises:
        UserError: there is no such table, it lacks a column, the query is refused, or either may not be read.
    """
    bigquery = BigQuery(settings.billing_project)
    if is_query(settings.source):
        require_select(bigquery, settings.source, read_query(settings.source))
    else:
        task_named(settings.task).columns_of(settings, _names(described(bigquery, settings.source)))


def find_table(settings: PrepareSettings) -> Source:
    """Begins reading a table: what is read later are the rows that it has now.

    Args:
        settings: `source`, `task`, the columns, `row_filter` and `billing_project` are read.

    Returns:
        A source with one file for each stream of a read session, which ends after 6 hours:
        https://cloud.google.com/bigquery/docs/reference/storage/rpc/google.cloud.bigquery.storage.v1#bigqueryread.

    Raises:
        UserError: as `require_readable`, and where `row_filter` is refused.
    """
    bigquery = BigQuery(settings.billing_project)
    if is_query(settings.source):
        table = run_query(bigquery, settings.source, read_query(settings.source))
        shown = settings.source.rpartition("/")[2]
    else:
        table = described(bigquery, settings.source)
        shown = settings.source.removeprefix(TABLE_SCHEME)
    columns = task_named(settings.task).columns_of(settings, _names(table))
    streams = _streams(bigquery, table, columns, settings)
    return Source("bigquery", f"{TABLE_SCHEME}{shown}/", streams, columns=columns, given=settings.source)


def _names(table: Table) -> list[str]:
    return [field.name for field in table.schema]


def _streams(bigquery: BigQuery, table: Table, columns: tuple[str, ...], settings: PrepareSettings) -> tuple[str, ...]:
    reading, project = bigquery.reading, bigquery.project
    from google.cloud.bigquery_storage_v1.types import ArrowSerializationOptions, DataFormat, ReadSession

    options = ReadSession.TableReadOptions(
        selected_fields=columns,
        row_restriction=settings.row_filter,
        arrow_serialization_options=ArrowSerializationOptions(
            buffer_compression=ArrowSerializationOptions.CompressionCodec.LZ4_FRAME
        ),
    )
    path = f"projects/{table.project}/datasets/{table.dataset_id}/tables/{table.table_id}"
    wanted = ReadSession(table=path, data_format=DataFormat.ARROW, read_options=options)
    streams = min(MOST_STREAMS, max(4, cores()))
    with table_errors(bigquery, settings.source, settings.row_filter):
        session: Any = reading.create_read_session(
            parent=f"projects/{project}", read_session=wanted, max_stream_count=streams
        )
    print(f"{session.name}: {len(session.streams)} streams, billed to {project}", flush=True)
    return tuple(stream.name for stream in session.streams)
