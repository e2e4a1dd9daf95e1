"""Writes a table in BigQuery by one load job, which replaces all of its rows or none."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.data.sources.bigquery.clients import BigQuery, as_bigquery_errors

if TYPE_CHECKING:
    from gpu_pipelines.data.units.unfinished_work import UnfinishedWork

_SCHEME = "bq://"
_JOB = "load-job"
#: https://cloud.google.com/bigquery/docs/labels-intro#requirements
_LABEL = re.compile(r"[^a-z0-9_-]")
_LONGEST_LABEL = 63


def load_table(file: Path, uri: str, billing_project: str, labels: Mapping[str, Any], work: UnfinishedWork) -> None:
    """Replaces the rows of a table by those of a Parquet file; the table is made if there is none.

    The id of the job is kept before it is sent: an attempt that was cut off while it waited finds the job again, and
    does not send another. Whoever reads the table sees all rows of before, or all of now.

    Args:
        file: the rows.
        uri: `bq://PROJECT.DATASET.TABLE`.
        billing_project: that runs the job; empty for that of the environment or of the credentials.
        labels: what the table's labels say, by name.
        work: where the id is kept.

    Raises:
        UserError: BigQuery refuses it.
    """
    from google.api_core.exceptions import Conflict
    from google.cloud.bigquery import LoadJobConfig, ParquetOptions, SourceFormat, WriteDisposition

    bigquery, table = BigQuery(billing_project), uri.removeprefix(_SCHEME)
    kept = work.find(_JOB)
    if kept is None or kept["table"] != table:
        work.begin(_JOB)
        work.commit(_JOB, {"table": table, "id": f"gpu-pipelines-{uuid.uuid4().hex}"})
        kept = work.find(_JOB)
        assert kept is not None
    lists = ParquetOptions()
    lists.enable_list_inference = True
    configuration = LoadJobConfig(
        source_format=SourceFormat.PARQUET, write_disposition=WriteDisposition.WRITE_TRUNCATE, parquet_options=lists
    )
    with _errors(bigquery, uri):
        job: Any
        try:
            with file.open("rb") as content:
                job = bigquery.jobs.load_table_from_file(content, table, job_id=kept["id"], job_config=configuration)
        except Conflict:
            job = bigquery.jobs.get_job(kept["id"])
        job.result()
        made = bigquery.jobs.get_table(table)
        made.labels = {**made.labels, **{name: _label(value) for name, value in labels.items() if _label(value)}}
        bigquery.jobs.update_table(made, ["labels"])
    print(f"{made.num_rows:,} rows are in {uri}", flush=True)


def require_dataset(uri: str, billing_project: str) -> None:
    """Checks that the dataset of a table is there. Raises `UserError`."""
    bigquery = BigQuery(billing_project)
    with _errors(bigquery, uri):
        bigquery.jobs.get_dataset(uri.removeprefix(_SCHEME).rpartition(".")[0])


def _label(value: Any) -> str:
    return _LABEL.sub("-", str(value).lower())[:_LONGEST_LABEL] if isinstance(value, (str, int)) else ""


def _errors(bigquery: BigQuery, uri: str) -> Any:
    needs = (
        f"roles/bigquery.dataEditor on the dataset, and roles/bigquery.jobUser in the project {bigquery.project}, "
        "which is billed (-p billing_project=… names another)"
    )
    return as_bigquery_errors(f"The table {uri}", (f"BigQuery refuses to write {uri}", ""), needs, "written")
