"""The pipelines of docs/data-prep.md compile: Google's components have these names and parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler

from gpu_pipelines.tasks.tasks import TASKS

DOCUMENT = Path(__file__).parents[2] / "docs" / "data-prep.md"


@pytest.fixture(scope="module")
def pipelines() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)):
        exec(compile(block, f"{DOCUMENT}, block {number}", "exec", dont_inherit=True), found)
    return found


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("reviews_by_sql", "bigquery-query-job"),
        ("pages_by_beam", "wait-gcp-resources"),
        ("pages_by_template", "wait-gcp-resources"),
    ],
)
def test_data_is_prepared_after_what_google_s_component_left(
    name: str, before: str, pipelines: dict[str, Any], tmp_path: Path
) -> None:
    compiler.Compiler().compile(pipelines[name], str(tmp_path / "pipeline.yaml"))
    specification = next(yaml.safe_load_all((tmp_path / "pipeline.yaml").read_text()))
    tasks = specification["root"]["dag"]["tasks"]
    assert tasks["prepare-data"]["dependentTasks"] == [before]
    caches = tasks["prepare-data"].get("cachingOptions", {}).get("enableCache", False)
    assert caches == (name != "reviews_by_sql")


def test_the_document_names_the_sample_of_each_task() -> None:
    (row,) = (line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `sample:"))
    samples = {f"sample:{name}" for task in TASKS.values() for name in task.samples}
    assert samples == set(re.findall(r"sample:\w+", row))
