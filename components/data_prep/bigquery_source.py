"""BigQuery as a source: which table, which of its columns and rows, and whether it has changed."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

from gpu_pipelines.components.data_prep.bigquery_clients import BigQuery, as_bigquery_errors
from gpu_pipelines.components.data_prep.bigquery_query import read_query, require_select, run_query
from gpu_pipelines.components.data_prep.parallel import cores
from gpu_pipelines.components.data_prep.source_files import Source
from gpu_pipelines.components.data_prep.source_names import TABLE_SCHEME, is_query
from gpu_pipelines.components.data_prep.task_columns import columns_of_task
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from google.cloud.bigquery import Table

    from gpu_pipelines.components.data_prep.settings import PrepareSettings

#: Of each stream a page of at most 10 MiB is in memory and another one on its way.
MOST_STREAMS = 16
_VIEWS = ("VIEW", "MATERIALIZED_VIEW")
#: Tables whose `etag` and time of modification change with their rows; those of views and external tables do not.
_TOLD = ("TABLE", "SNAPSHOT", "CLONE")


def require_readable(settings: PrepareSettings) -> None:
    """Checks a table or a query without reading any rows, and without cost.

    Raises:
        UserError: there is no such table, it lacks a column, the query is refused, or either may not be read.
    """
    bigquery = BigQuery(settings.billing_project)
    if is_query(settings.source):
        require_select(bigquery, settings.source, read_query(settings.source))
    else:
        columns_of_task(settings, _names(_described(bigquery, settings.source)))


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
        table = _described(bigquery, settings.source)
        shown = settings.source.removeprefix(TABLE_SCHEME)
    columns = columns_of_task(settings, _names(table))
    streams = _streams(bigquery, table, columns, settings)
    return Source("bigquery", f"{TABLE_SCHEME}{shown}/", streams, columns=columns)


def table_state(source: str, billing_project: str) -> list[str]:
    """What tells one version of a table, or of a query and the tables it reads, from another.

    Where BigQuery does not tell (views, external tables, rows that are still being streamed in, a query that asks for
    the time or a random number), it is never the same.
    """
    bigquery = BigQuery(billing_project)
    if not source.startswith(TABLE_SCHEME):
        text = read_query(source)
        read = require_select(bigquery, source, text)
        changes = re.search(r"\b(CURRENT_\w+|RAND|GENERATE_UUID|SESSION_USER|EXTERNAL_QUERY|TABLESAMPLE)\b", text, re.I)
        if changes or read is None:
            return [uuid.uuid4().hex]
        return [text, *(part for name in read for part in _state(bigquery, f"{TABLE_SCHEME}{name}"))]
    return _state(bigquery, source)


def _state(bigquery: BigQuery, source: str) -> list[str]:
    table = _described(bigquery, source)
    if table.table_type not in _TOLD or table.streaming_buffer:
        return [uuid.uuid4().hex]
    return [source, str(table.etag), str(table.modified), str(table.num_rows)]


def _described(bigquery: BigQuery, source: str) -> Table:
    with _errors(bigquery, source):
        table = bigquery.jobs.get_table(source.removeprefix(TABLE_SCHEME))
    if table.table_type in _VIEWS:
        raise UserError(
            f"{source} is a view, which the Storage Read API does not read.",
            "Write a query that selects from it into a file NAME.sql, and give that as the source.",
        )
    return table


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
    with _errors(bigquery, settings.source, settings.row_filter):
        session: Any = reading.create_read_session(
            parent=f"projects/{project}", read_session=wanted, max_stream_count=streams
        )
    print(f"{session.name}: {len(session.streams)} streams, billed to {project}", flush=True)
    return tuple(stream.name for stream in session.streams)


def _errors(bigquery: BigQuery, source: str, row_filter: str = "") -> Any:
    wrong = (f"BigQuery refuses to read {source}", "")
    if row_filter:
        remedy = "It takes what stands after WHERE in a query, without aggregates and sub-queries: lang = 'en'."
        wrong = (f"BigQuery refuses row_filter={row_filter[:200]!r}", remedy)
    needs = (
        f"roles/bigquery.dataViewer on it, and roles/bigquery.readSessionUser in the project {bigquery.project}, which "
        "is billed (-p billing_project=… names another)"
    )
    return as_bigquery_errors(f"The table {source}", wrong, needs)
