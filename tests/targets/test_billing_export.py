"""What was billed for a run, asked of BigQuery."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from billing_export.server import BillingExport, serving

from gpu_pipelines.accelerators.spent import Billed
from gpu_pipelines.errors import AccessDeniedError, NotFoundError, UnavailableError, UserError
from gpu_pipelines.google_cloud import billing_export
from gpu_pipelines.google_cloud.billing_export import billed_for
from gpu_pipelines.project_settings import load_project_settings

BEGAN = datetime(2026, 11, 20, 8, 30, tzinfo=timezone.utc)
HOUR = ("2026-11-20T08:00:00", "2026-11-20T09:00:00")


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> Iterator[BillingExport]:
    with serving() as api:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_BIGQUERY", f"{api.address}/bigquery/v2/")
        yield api


def asked(export: BillingExport, value: str = "run-1", table: str = "") -> Billed:
    ended = BEGAN + timedelta(hours=2)
    return billed_for("run", value, BEGAN, ended, table or export.table, "example-project")


def test_the_usage_of_the_runs_label_after_credits_and_nothing_else(export: BillingExport) -> None:
    export.add("L4 GPU", 2.0, HOUR, credit=0.5, run="run-1", team="vision")
    export.add("L4 GPU", 1.0, ("2026-11-20T09:00:00", "2026-11-20T10:00:00"), run="run-1")
    export.add("G2 Core", 0.25, HOUR, run="run-1")
    export.add("L4 GPU", 100.0, HOUR, run="run-10")
    export.add("L4 GPU", 100.0, HOUR, other="run-1")
    export.add("Storage", 100.0, ("2026-12-20T08:00:00", "2026-12-20T09:00:00"), run="run-1")
    found = asked(export)
    assert found.amount == pytest.approx(2.75)
    assert dict(found.by_sku) == pytest.approx({"L4 GPU": 2.5, "G2 Core": 0.25})
    assert list(found.by_sku) == ["L4 GPU", "G2 Core"]
    assert found.told == "billed: 2.75 EUR after credits, usage until 2026-11-20T10:00 UTC"


def test_a_label_is_a_parameter_and_never_part_of_the_query(export: BillingExport) -> None:
    asked(export, "' OR '1'='1")
    [request] = export.requests
    assert "OR '1'" not in request["query"]
    assert {"value": "' OR '1'='1"} in [each["parameterValue"] for each in request["queryParameters"]]


def test_a_query_that_takes_long_is_waited_for_and_not_for_ever(
    export: BillingExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    export.add("L4 GPU", 2.0, HOUR, run="run-1")
    export.looks = 2
    assert asked(export).amount == 2.0
    monkeypatch.setattr(billing_export, "_LONGEST", 0.0)
    export.looks = 1000
    with pytest.raises(UnavailableError, match="takes longer"):
        asked(export)


def test_nothing_yet_is_no_error(export: BillingExport) -> None:
    assert asked(export).told == "billed: nothing yet for run=run-1; billing export is hours to a day behind"


def test_what_is_wrong_is_told_with_the_remedy(export: BillingExport, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="Billing > Billing export names it"):
        asked(export, table="billing-project.export.other")
    export.refusal = 403
    with pytest.raises(AccessDeniedError, match=r"BigQuery Data Viewer on billing-project\.export,"):
        asked(export)
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_BIGQUERY", "http://127.0.0.1:9/bigquery/v2/")
    with pytest.raises(UnavailableError, match="cannot be reached"):
        asked(export)


@pytest.mark.parametrize("table", ["export.table", "p`; DROP TABLE x; --.d.t", "project-1.data set.t"])
def test_a_table_that_is_none_is_refused(table: str) -> None:
    with pytest.raises(UserError, match=r"billing_table .* takes a table of billing export"):
        load_project_settings({"billing_table": table})
