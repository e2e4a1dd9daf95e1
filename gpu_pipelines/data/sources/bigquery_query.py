"""SQL from a file, run in BigQuery; its result is a table that is read like any other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpu_pipelines.artifacts.remote_files import is_remote, read_remote
from gpu_pipelines.data.sources.bigquery_clients import BigQuery, as_bigquery_errors
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from google.cloud.bigquery import Table

# BigQuery lists no more than 50 tables that a query reads: …/bigquery/docs/reference/rest/v2/Job#JobStatistics2.
_MOST_LISTED = 50


def read_query(source: str) -> str:
    """The query in a file.

    Raises:
        UserError: the file cannot be read or is empty.
    """
    try:
        content = read_remote(source) if is_remote(source) else Path(source).expanduser().read_bytes()
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"The source {source} does not exist.", "Give a file with a query.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"The source {source} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if not text.strip():
        raise UserError(f"The file {source} is empty.", "Write a query into it: SELECT text, label FROM ….")
    return text


def require_select(bigquery: BigQuery, source: str, text: str) -> list[str] | None:
    """Lets BigQuery check a query, which costs nothing and changes nothing.

    Args:
        bigquery: the clients.
        source: the file, named in messages.
        text: the query.

    Returns:
        The tables that it reads, `project.dataset.table`; None where BigQuery may have left some out.

    Raises:
        UserError: it is refused, or would do something else than select rows.
    """
    from google.cloud.bigquery import QueryJobConfig

    with _errors(bigquery, source):
        job = bigquery.jobs.query(text, job_config=QueryJobConfig(dry_run=True, use_query_cache=False))
    if job.statement_type != "SELECT":
        raise UserError(
            f"The query {source} is a {job.statement_type or 'statement without a result'}, not a SELECT.",
            "Give one SELECT; make tables in a step before, with BigqueryQueryJobOp.",
        )
    print(f"{source} processes {job.total_bytes_processed or 0:,} bytes", flush=True)
    read = [f"{table.project}.{table.dataset_id}.{table.table_id}" for table in job.referenced_tables]
    return read if len(read) < _MOST_LISTED else None


def run_query(bigquery: BigQuery, source: str, text: str) -> Table:
    """Runs a query and returns the table with its result, which BigQuery keeps for a day.

    Raises:
        UserError: it is refused or fails.
    """
    require_select(bigquery, source, text)
    with _errors(bigquery, source):
        job = bigquery.jobs.query(text)
        job.result(max_results=0)
        return bigquery.jobs.get_table(job.destination)


def _errors(bigquery: BigQuery, source: str) -> AbstractContextManager[None]:
    needs = (
        f"roles/bigquery.dataViewer on the tables, and roles/bigquery.jobUser in the project {bigquery.project}, which "
        "is billed (-p billing_project=… names another)"
    )
    return as_bigquery_errors(
        f"What the query {source} reads", (f"BigQuery refuses the query {source}", "Try it with bq query."), needs
    )
