"""A table in BigQuery, `bq://PROJECT.DATASET.TABLE`."""

from __future__ import annotations

import re
import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.bigquery.clients import BigQuery, as_bigquery_errors
from gpu_pipelines.data.sources.bigquery.read_session import BigQueryRows, names_of
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from google.cloud.bigquery import Table

_SCHEME = "bq://"
# https://cloud.google.com/bigquery/docs/tables#table_naming and …/datasets#dataset-naming; old projects have a domain.
_NAME = re.compile(r"([a-z0-9.-]+:)?[a-z0-9-]+\.\w+\.[^./:*$@`]+")
_VIEWS = ("VIEW", "MATERIALIZED_VIEW")
#: Tables whose `etag` and time of modification change with their rows; those of views and external tables do not.
_TOLD = ("TABLE", "SNAPSHOT", "CLONE")


class BigQueryTables(BigQueryRows):
    """Tables; a view is read by a query."""

    scheme = _SCHEME
    form = (
        _NAME,
        "a table is bq://PROJECT.DATASET.TABLE. For a partition give row_filter, for several tables a file with a "
        "query, NAME.sql.",
    )
    parameters = ("row_filter",)

    def require_readable(self, settings: PrepareSettings) -> None:
        """Asks BigQuery for the table's description, which costs nothing."""
        described = _readable(BigQuery(settings.billing_project), settings)
        settings.columns_of(names_of(described))

    def open(self, settings: PrepareSettings, scratch: Path) -> SourceFiles:
        bigquery = BigQuery(settings.billing_project)
        table = _readable(bigquery, settings)
        with table_errors(bigquery, settings.source, settings.row_filter):
            return self.opened(bigquery, table, settings.source.removeprefix(_SCHEME), settings)

    def state(self, uri: str, billing_project: str) -> list[Any]:
        return state_of_table(BigQuery(billing_project), uri.removeprefix(_SCHEME))


def _readable(bigquery: BigQuery, settings: PrepareSettings) -> Table:
    """A table as BigQuery describes it; raises `UserError` where it would not be read so."""
    table = _described(bigquery, settings.source)
    if table.require_partition_filter and not settings.row_filter:
        raise UserError(
            f"{settings.source} can only be read with a filter on its partitions.",
            "Give one: -p row_filter=\"day >= '2026-01-01'\", with the column that it is partitioned by.",
        )
    return table


def state_of_table(bigquery: BigQuery, name: str) -> list[str]:
    """What tells one version of a table from another.

    Where BigQuery does not tell (views, external tables, rows that are still being streamed in), it is never the same.
    """
    uri = f"{_SCHEME}{name}"
    table = _described(bigquery, uri)
    if table.table_type not in _TOLD or table.streaming_buffer:
        return [uuid.uuid4().hex]
    return [uri, str(table.etag), str(table.modified), str(table.num_rows)]


def _described(bigquery: BigQuery, uri: str) -> Table:
    """A table as BigQuery describes it.

    Raises:
        UserError: there is no such table, it may not be read, or it is a view.
    """
    with table_errors(bigquery, uri):
        table = bigquery.jobs.get_table(uri.removeprefix(_SCHEME))
    if table.table_type in _VIEWS:
        raise UserError(
            f"{uri} is a view, which the Storage Read API does not read.",
            "Write a query that selects from it into a file NAME.sql, and give that as the source.",
        )
    return table


def table_errors(bigquery: BigQuery, uri: str, row_filter: str = "") -> AbstractContextManager[None]:
    """Turns what BigQuery says of a table into what a user can do about it; see `as_bigquery_errors`."""
    wrong = (f"BigQuery refuses to read {uri}", "")
    if row_filter:
        remedy = "It takes the WHERE clause of a query, without aggregates and sub-queries: lang = 'en'."
        wrong = (f"BigQuery refuses row_filter={row_filter[:200]!r}", remedy)
    needs = (
        f"roles/bigquery.dataViewer on it, and roles/bigquery.readSessionUser in the project {bigquery.project}, which "
        "is billed (-p billing_project=… names another)"
    )
    return as_bigquery_errors(f"The table {uri}", wrong, needs)
