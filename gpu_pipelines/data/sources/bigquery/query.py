"""A file with a query for BigQuery, `NAME.sql`; its result is a table that is read like any other."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.artifacts.remote_files import is_remote, problems_of_place, read_remote
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.bigquery.clients import BigQuery, as_bigquery_errors
from gpu_pipelines.data.sources.bigquery.read_session import BigQueryRows
from gpu_pipelines.data.sources.bigquery.table import state_of_table, table_errors
from gpu_pipelines.data.sources.file_source import READ_ANYWHERE
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from google.cloud.bigquery import Table

_SUFFIX = ".sql"
# BigQuery lists no more than 50 tables that a query reads: …/bigquery/docs/reference/rest/v2/Job#JobStatistics2.
_MOST_LISTED = 50
#: What gives other rows although no table has changed.
_CHANGING = re.compile(r"\b(CURRENT_\w+|RAND|GENERATE_UUID|SESSION_USER|EXTERNAL_QUERY|TABLESAMPLE)\b", re.I)


class BigQueryQueries(BigQueryRows):
    """One SELECT in a file, on this machine or in a bucket."""

    instead_of_filter = "write it into the WHERE of the query"

    def matches(self, uri: str) -> bool:
        return uri.lower().endswith(_SUFFIX)

    def problems(self, settings: PrepareSettings) -> list[str]:
        return problems_of_place("source", settings.source)

    def is_read_anywhere(self, uri: str) -> bool:
        return uri.startswith(READ_ANYWHERE)

    def require_readable(self, settings: PrepareSettings) -> None:
        """Has BigQuery check the query, which costs nothing."""
        _require_select(BigQuery(settings.billing_project), settings.source, _read(settings.source))

    def open(self, settings: PrepareSettings, scratch: Path) -> SourceFiles:
        bigquery = BigQuery(settings.billing_project)
        table = _result_of(bigquery, settings.source, _read(settings.source))
        with table_errors(bigquery, settings.source):
            return self.opened(bigquery, table, settings.source.rpartition("/")[2], settings)

    def state(self, uri: str, billing_project: str) -> list[Any]:
        """The query, and the states of the tables that it reads."""
        bigquery, text = BigQuery(billing_project), _read(uri)
        read = _require_select(bigquery, uri, text)
        if read is None or _CHANGING.search(text):
            return [uuid.uuid4().hex]
        return [text, *(part for name in read for part in state_of_table(bigquery, name))]


def _read(uri: str) -> str:
    """The query in a file.

    Raises:
        UserError: the file cannot be read or is empty.
    """
    try:
        content = read_remote(uri) if is_remote(uri) else Path(uri).expanduser().read_bytes()
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"The source {uri} does not exist.", "Give a file with a query.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"The source {uri} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if not text.strip():
        raise UserError(f"The file {uri} is empty.", "Write a query into it: SELECT text, label FROM ….")
    return text


def _require_select(bigquery: BigQuery, uri: str, text: str) -> list[str] | None:
    """Lets BigQuery check a query, which costs nothing and changes nothing.

    Args:
        bigquery: the clients.
        uri: the file, named in messages.
        text: the query.

    Returns:
        The tables that it reads, `project.dataset.table`; None where BigQuery may have left some out.

    Raises:
        UserError: it is refused, or would do something else than select rows.
    """
    from google.cloud.bigquery import QueryJobConfig

    with _errors(bigquery, uri):
        job = bigquery.jobs.query(text, job_config=QueryJobConfig(dry_run=True, use_query_cache=False))
    if job.statement_type != "SELECT":
        raise UserError(
            f"The query {uri} is a {job.statement_type or 'statement without a result'}, not a SELECT.",
            "Give one SELECT; create tables in an earlier step, with BigqueryQueryJobOp.",
        )
    print(f"{uri} processes {job.total_bytes_processed or 0:,} bytes", flush=True)
    read = [f"{table.project}.{table.dataset_id}.{table.table_id}" for table in job.referenced_tables]
    return read if len(read) < _MOST_LISTED else None


def _result_of(bigquery: BigQuery, uri: str, text: str) -> Table:
    """Runs a query and returns the table with its result, which BigQuery keeps for a day.

    Raises:
        UserError: it is refused or fails.
    """
    _require_select(bigquery, uri, text)
    with _errors(bigquery, uri):
        job = bigquery.jobs.query(text)
        job.result(max_results=0)
        return bigquery.jobs.get_table(job.destination)


def _errors(bigquery: BigQuery, uri: str) -> AbstractContextManager[None]:
    needs = (
        f"roles/bigquery.dataViewer on the tables, and roles/bigquery.jobUser in the project {bigquery.project}, which "
        "is billed (-p billing_project=… names another)"
    )
    return as_bigquery_errors(
        f"What the query {uri} reads", (f"BigQuery refuses the query {uri}", "Try it with bq query."), needs
    )
