"""A local server in place of BigQuery, for the one query of billing export: it takes requests as jobs.query does.

https://cloud.google.com/bigquery/docs/reference/rest/v2/jobs/query. What the query says is not carried out: the rows
that it must ask for are picked by its parameters, from rows with the fields of the export.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of

#: Fields of `QueryRequest` that a client may send.
_FIELDS = {"query", "useLegacySql", "parameterMode", "queryParameters", "timeoutMs", "location", "maxResults"}
_PARAMETERS = {"since": "TIMESTAMP", "before": "TIMESTAMP", "label_key": "STRING", "label_value": "STRING"}


class BillingExport:
    """What the server holds and was sent.

    Attributes:
        address: where it listens.
        table: the one that there is.
        rows: those of the export.
        requests: the bodies that it was sent.
        refusal: status to answer with; 0 for none.
        looks: how many times the query is not complete yet.
    """

    table = "billing-project.export.gcp_billing_export_resource_v1_0A0A0A_1B1B1B_2C2C2C"

    def __init__(self) -> None:
        self.address = ""
        self.rows: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.refusal, self.looks = 0, 0

    def add(self, sku: str, cost: float, hours: tuple[str, str], credit: float = 0.0, **labels: str) -> None:
        """Adds a row of usage; `hours` are its begin and end, ISO 8601, UTC."""
        credits = [{"name": "committed use", "amount": -credit}] if credit else []
        pairs = [{"key": key, "value": value} for key, value in labels.items()]
        row = {"sku": {"description": sku}, "cost": cost, "currency": "EUR", "credits": credits, "labels": pairs}
        self.rows.append({**row, "usage_start_time": hours[0], "usage_end_time": hours[1]})

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        if self.refusal:
            return self.refusal, {"error": {"code": self.refusal, "message": "Access Denied: no bigquery.jobs.create"}}
        if method == "POST" and re.fullmatch(r"/bigquery/v2/projects/[^/]+/queries", path):
            if problem := self._problem(body):
                return 400, {"error": {"code": 400, "message": problem}}
            self.requests.append(body)
            if f"`{self.table}`" not in body["query"]:
                return 404, {"error": {"code": 404, "message": "Not found: Table was not found in location EU"}}
        elif path != "/bigquery/v2/projects/example-project/queries/job_1" or query.get("location") != "EU":
            return 404, {"error": {"code": 404, "message": f"There is no {method} {path} {query}"}}
        self.looks -= 1
        reference = {"projectId": "example-project", "jobId": "job_1", "location": "EU"}
        told = {"kind": "bigquery#queryResponse", "jobReference": reference, "jobComplete": self.looks < 0}
        return 200, {**told, **({"rows": self._found()} if self.looks < 0 else {})}

    @staticmethod
    def _problem(body: dict[str, Any]) -> str:
        if unknown := body.keys() - _FIELDS:
            return f"Unknown name {sorted(unknown)}"
        given = {each["name"]: each["parameterType"]["type"] for each in body.get("queryParameters", [])}
        used = set(re.findall(r"@(\w+)", body["query"]))
        if body.get("useLegacySql") is not False or body.get("parameterMode") != "NAMED" or used != given.keys():
            return f"Query parameters {used ^ given.keys()} do not fit"
        return "" if given == _PARAMETERS else f"The parameters are of {given}"

    def _found(self) -> list[dict[str, Any]]:
        given = {each["name"]: each["parameterValue"]["value"] for each in self.requests[-1]["queryParameters"]}
        since, before = (datetime.fromisoformat(given[name]) for name in ("since", "before"))
        wanted = {"key": given["label_key"], "value": given["label_value"]}
        sums: dict[str, tuple[float, str]] = {}
        for row in self.rows:
            if wanted not in row["labels"] or not since <= _moment(row["usage_start_time"]) < before:
                continue
            amount, until = sums.get(row["sku"]["description"], (0.0, ""))
            amount += row["cost"] + sum(each["amount"] for each in row["credits"])
            sums[row["sku"]["description"]] = amount, max(until, row["usage_end_time"])
        ordered = sorted(sums.items(), key=lambda each: -each[1][0])
        return [{"f": [{"v": v} for v in (sku, "EUR", str(amount), until)]} for sku, (amount, until) in ordered]


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


@contextmanager
def serving() -> Iterator[BillingExport]:
    """Serves one on a free port."""
    export = BillingExport()

    class Handler(JsonHandler):
        def _answer(self) -> None:
            where = urlsplit(self.path)
            body = json.loads(self.body() or b"{}")
            self.send(*export.answer(self.command, where.path, dict(parse_qsl(where.query)), body))

        do_GET = do_POST = _answer

    with answering(server_of(Handler)) as export.address:
        yield export
