"""Google Cloud's bill for the resources with a label, as billing export writes it into BigQuery.

https://cloud.google.com/billing/docs/how-to/export-data-bigquery-tables/standard-usage. The project's own views of such
a table, which that page advises, work as well: all columns that are read are in both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from gpu_pipelines.accelerators.spent import Billed
from gpu_pipelines.errors import UnavailableError
from gpu_pipelines.google_cloud.connection import credentials
from gpu_pipelines.google_cloud.rest import Answer, Rest, UnreachableError, endpoint
from gpu_pipelines.network_errors import error_of_status

_SERVICE = "bigquery"
#: Usage is reported by the hour, and that of a run may arrive for a while after its end.
_BEFORE, _AFTER = timedelta(hours=1), timedelta(days=1)
#: Milliseconds that one request waits for the query, less than the client's own limit; seconds for the whole query.
_WAIT_MS, _LONGEST = 5_000, 60.0
_QUERY = """
SELECT
  sku.description AS sku_name,
  currency,
  SUM(cost) + SUM(IFNULL((SELECT SUM(credit.amount) FROM UNNEST(credits) AS credit), 0)) AS amount,
  FORMAT_TIMESTAMP('%FT%T', MAX(usage_end_time)) AS used_until
FROM `{table}`
WHERE usage_start_time >= @since AND usage_start_time < @before
  AND EXISTS (SELECT 1 FROM UNNEST(labels) AS label WHERE label.key = @label_key AND label.value = @label_value)
GROUP BY sku_name, currency
ORDER BY amount DESC
"""


def billed_for(key: str, value: str, began: datetime, ended: datetime | None, table: str, project: str) -> Billed:
    """The bill for all resources with a label, after credits.

    Args:
        key: of the label.
        value: of the label.
        began: start of the first of them.
        ended: end of the last of them; None while it runs.
        table: of billing export, or a view of it: PROJECT.DATASET.TABLE.
        project: project that runs the query and pays for it.

    Raises:
        UserError: the table cannot be read, or BigQuery cannot be reached.
    """
    until = (ended or datetime.now(timezone.utc)) + _AFTER
    body = {
        "query": _QUERY.format(table=table),
        "useLegacySql": False,
        "parameterMode": "NAMED",
        "queryParameters": [
            _parameter("since", "TIMESTAMP", _stamp(began - _BEFORE)),
            _parameter("before", "TIMESTAMP", _stamp(until)),
            _parameter("label_key", "STRING", key),
            _parameter("label_value", "STRING", value),
        ],
        "timeoutMs": _WAIT_MS,
    }
    rows = _rows(project, body, table)
    by_sku = {name: float(amount) for name, _, amount, _ in rows}
    return Billed(
        amount=sum(by_sku.values()),
        currency=rows[0][1] if rows else "USD",
        until=max((until for *_, until in rows), default=""),
        label=f"{key}={value}",
        by_sku=by_sku,
    )


def _parameter(name: str, kind: str, value: str) -> dict[str, Any]:
    return {"name": name, "parameterType": {"type": kind}, "parameterValue": {"value": value}}


def _stamp(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S+00:00")


def _rows(project: str, body: Mapping[str, Any], table: str) -> Sequence[Sequence[str]]:
    """The rows of a query, as text; it has one for each SKU, so they fit in one page."""
    rest = Rest(credentials(endpoint(_SERVICE)))
    path = f"/bigquery/v2/projects/{project}/queries"
    deadline = time.monotonic() + _LONGEST
    try:
        answer = rest.post(_SERVICE, path, body)
        while answer.ok and not answer.content.get("jobComplete"):
            if time.monotonic() > deadline:
                raise UnavailableError(f"Reading {table} takes longer than {_LONGEST:g} s.", "Try again later.")
            job = answer.content["jobReference"]
            where = {"timeoutMs": _WAIT_MS, **({"location": job["location"]} if job.get("location") else {})}
            answer = rest.get(_SERVICE, f"{path}/{job['jobId']}", where)
    except UnreachableError as error:
        raise UnavailableError(f"Billing export cannot be read: {error}.", "Check your network.") from error
    if not answer.ok:
        raise error_of_status(answer.status, f"Billing export cannot be read: {answer.message}", _remedy(answer, table))
    return [[str(cell["v"]) for cell in row["f"]] for row in answer.content.get("rows", [])]


def _remedy(answer: Answer, table: str) -> str:
    if answer.status == 404:
        return f"Look at billing_table, {table}: the console's page Billing > Billing export names it."
    if answer.status in (401, 403):
        dataset = table.rpartition(".")[0]
        return f"Ask for BigQuery Data Viewer on {dataset}, and BigQuery Job User on the project."
    return ""
