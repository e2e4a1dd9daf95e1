"""What BigQuery says of a table: whether it is there, its columns, and whether it has changed."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

from gpu_pipelines.data.sources.bigquery_clients import BigQuery, as_bigquery_errors
from gpu_pipelines.data.sources.bigquery_query import read_query, require_select
from gpu_pipelines.data.sources.names import TABLE_SCHEME
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from google.cloud.bigquery import Table

_VIEWS = ("VIEW", "MATERIALIZED_VIEW")
#: Tables whose `etag` and time of modification change with their rows; those of views and external tables do not.
_TOLD = ("TABLE", "SNAPSHOT", "CLONE")


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
    table = described(bigquery, source)
    if table.table_type not in _TOLD or table.streaming_buffer:
        return [uuid.uuid4().hex]
    return [source, str(table.etag), str(table.modified), str(table.num_rows)]


def described(bigquery: BigQuery, source: str) -> Table:
    """A table as BigQuery describes it.

    Raises:
        UserError: there is no such table, it may not be read, or it is a view.
    """
    with table_errors(bigquery, source):
        table = bigquery.jobs.get_table(source.removeprefix(TABLE_SCHEME))
    if table.table_type in _VIEWS:
        raise UserError(
            f"{source} is a view, which the Storage Read API does not read.",
            "Write a query that selects from it into a file NAME.sql, and give that as the source.",
        )
    return table


def table_errors(bigquery: BigQuery, source: str, row_filter: str = "") -> AbstractContextManager[None]:
    """Turns what BigQuery says of a table into what a user can do about it; see `as_bigquery_errors`."""
    wrong = (f"BigQuery refuses to read {source}", "")
    if row_filter:
        remedy = "It takes what stands after WHERE in a query, without aggregates and sub-queries: lang = 'en'."
        wrong = (f"BigQuery refuses row_filter={row_filter[:200]!r}", remedy)
    needs = (
        f"roles/bigquery.dataViewer on it, and roles/bigquery.readSessionUser in the project {bigquery.project}, which "
        "is billed (-p billing_project=… names another)"
    )
    return as_bigquery_errors(f"The table {source}", wrong, needs)
