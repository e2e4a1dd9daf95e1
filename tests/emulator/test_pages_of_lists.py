"""The pages of lists of resources."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from google.cloud.aiplatform_v1 import PipelineJob

from gpu_pipelines.emulator import names
from gpu_pipelines.emulator.names import page

PARENT = "projects/1/locations/us-central1"
BEGAN = datetime(2026, 11, 22, tzinfo=timezone.utc)


@pytest.mark.parametrize(("sizes", "wanted"), [([4, 4, 2], ""), ([4, 1], 'labels.team="a"')])
def test_all_pages_of_a_list_look_at_each_resource_once_for_its_filter(
    sizes: list[int], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of pipeline jobs, each of which takes milliseconds, are told in pages of a hundred."""
    looked: list[str] = []
    jobs = [
        PipelineJob(name=f"{PARENT}/pipelineJobs/{number}", create_time=BEGAN + timedelta(hours=number))
        for number in range(10)
    ]

    def as_json(job: PipelineJob) -> dict[str, object]:
        looked.append(job.name)
        return {"labels": {"team": "ab"[int(job.name[-1]) % 2]}}

    monkeypatch.setattr(names, "as_json", as_json)
    found: list[str] = []
    pages: list[int] = []
    token = ""
    while not pages or token:
        listed, token = page(jobs, PARENT, SimpleNamespace(filter=wanted, page_token=token, page_size=0), 4)
        found += [job.name[-1] for job in listed]
        pages.append(len(listed))
    assert pages == sizes
    assert found == list("86420" if wanted else "9876543210")
    # The one that begins the second page also ends the first one.
    assert len(looked) == (11 if wanted else 0)
