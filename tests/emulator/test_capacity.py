"""Machines that are there or not: stockouts, the queue of Flex-start, quotas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rehearsed_jobs import L4, PARENT, create, ended, pool

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.jobs.capacity import places_of
from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.emulator.certificates import Certificates
    from gpu_pipelines.emulator.vertex_api import VertexApi

FLEX = {"strategy": "FLEX_START"}
TWO = "us-central1:NVIDIA_L4=2"


@pytest.fixture
def two_l4(tmp_path: Path, vertex_certificates: Certificates) -> Iterator[VertexApi]:
    """An emulator of two L4."""
    with running_emulator(
        EmulatorSettings(state=tmp_path, certificates=vertex_certificates, capacity=(TWO,))
    ) as emulator:
        yield emulator


def await_state(emulator: VertexApi, name: str, state: str) -> None:
    until = time.monotonic() + 20
    while emulator.state.custom_jobs.state(name) != state:
        assert time.monotonic() < until, emulator.state.custom_jobs.state(name)
        time.sleep(0.02)


def on_l4(*command: str, count: int = 1) -> dict[str, Any]:
    return pool(*command, count=count, machine=L4)


def test_a_job_that_asks_for_more_than_is_there_fails_as_in_a_stockout(two_l4: VertexApi) -> None:
    holds = create(two_l4, on_l4("sleep", "60"))
    await_state(two_l4, holds, "JOB_STATE_RUNNING")
    assert two_l4.state.replicas.capacity.used() == {("us-central1", "NVIDIA_L4"): 1}
    job = ended(two_l4, create(two_l4, on_l4("true"), on_l4("true")))
    assert (job.state.name, job.error.code) == ("JOB_STATE_FAILED", 8)
    assert job.error.message.startswith("Resources are insufficient in region: us-central1. Try a different region")
    assert "start_time" not in job
    assert ended(two_l4, create(two_l4, on_l4("true"))).state.name == "JOB_STATE_SUCCEEDED"
    assert ended(two_l4, create(two_l4, pool("true"))).state.name == "JOB_STATE_SUCCEEDED", "no accelerator"
    two_l4.state.replicas.grace_s = 0.1
    assert two_l4.state.replicas.capacity.used() == {("us-central1", "NVIDIA_L4"): 1}


def test_flex_start_queues_and_starts_when_machines_are_given_back(two_l4: VertexApi) -> None:
    holds = create(two_l4, on_l4("sleep", "1"), on_l4("sleep", "1"))
    await_state(two_l4, holds, "JOB_STATE_RUNNING")
    first = create(two_l4, on_l4("true"), on_l4("true"), scheduling=FLEX)
    await_state(two_l4, first, "JOB_STATE_QUEUED")
    assert two_l4.state.custom_jobs.state(holds) == "JOB_STATE_RUNNING"
    ends = [ended(two_l4, name) for name in (holds, first)]
    assert [job.state.name for job in ends] == ["JOB_STATE_SUCCEEDED"] * 2
    assert ends[1].start_time >= ends[0].start_time
    assert ends[1].end_time >= ends[0].end_time
    assert not two_l4.state.replicas.capacity.used()


def test_one_that_is_first_in_the_queue_is_not_overtaken(two_l4: VertexApi) -> None:
    holds = create(two_l4, on_l4("sleep", "1.5"))
    await_state(two_l4, holds, "JOB_STATE_RUNNING")
    both = create(two_l4, on_l4("true"), on_l4("true"), scheduling=FLEX)
    await_state(two_l4, both, "JOB_STATE_QUEUED")
    one = create(two_l4, on_l4("true"), scheduling=FLEX)
    first, second = ended(two_l4, both), ended(two_l4, one)
    assert first.start_time <= second.start_time


def test_flex_start_waits_no_longer_than_it_says_and_can_be_cancelled(two_l4: VertexApi) -> None:
    create(two_l4, on_l4("sleep", "60"), on_l4("sleep", "60"))
    short = create(two_l4, on_l4("true"), scheduling={**FLEX, "maxWaitDuration": "0.5s"})
    for_ever = create(two_l4, on_l4("true"), scheduling={**FLEX, "maxWaitDuration": "0s"})
    job = ended(two_l4, short)
    assert (job.state.name, job.error.code) == ("JOB_STATE_FAILED", 8)
    from google.cloud import aiplatform_v1 as api

    assert two_l4.state.custom_jobs.state(for_ever) == "JOB_STATE_QUEUED"
    two_l4.state.custom_jobs.cancel(api.CancelCustomJobRequest(name=for_ever))
    assert ended(two_l4, for_ever).state.name == "JOB_STATE_CANCELLED"
    two_l4.state.replicas.grace_s = 0.1


def test_a_quota_is_of_all_jobs_that_have_not_ended_and_flex_start_has_that_of_spot(
    tmp_path: Path, vertex_certificates: Certificates
) -> None:
    settings = EmulatorSettings(state=tmp_path, certificates=vertex_certificates, quota=("us-central1:NVIDIA_L4=1",))
    with running_emulator(settings) as emulator:
        emulator.state.replicas.grace_s = 0.1
        create(emulator, on_l4("sleep", "60"))
        with pytest.raises(ApiError) as caught:
            create(emulator, on_l4("true"))
        assert (caught.value.code, caught.value.status) == (429, "RESOURCE_EXHAUSTED")
        metric = "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"
        assert caught.value.message == f"The following quota metrics exceed quota limits: {metric}"
        assert ended(emulator, create(emulator, on_l4("true"), scheduling=FLEX)).state.name == "JOB_STATE_SUCCEEDED"
        with pytest.raises(ApiError, match="custom_model_training_preemptible_nvidia_l4_gpus"):
            create(emulator, on_l4("true"), on_l4("true"), scheduling={"strategy": "SPOT"})
        assert len(emulator.state.custom_jobs.jobs) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("NVIDIA_L4=2", "not of the form REGION:ACCELERATOR=NUMBER"),
        ("us-central1:NVIDIA_L4", "not of the form"),
        ("us-central1:NVIDIA_L4=-1", "not of the form"),
        ("us-central1:NVIDIA_L5=2", "Vertex AI has no accelerator NVIDIA_L5"),
    ],
)
def test_what_is_wrong_with_a_declaration_is_told(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        places_of("--capacity", [text])


def test_jobs_of_another_region_have_machines_of_their_own(two_l4: VertexApi) -> None:
    assert places_of("--capacity", [TWO, "us-east1:NVIDIA_H100_80GB=0"]) == {
        ("us-central1", "NVIDIA_L4"): 2,
        ("us-east1", "NVIDIA_H100_80GB"): 0,
    }
    capacity = two_l4.state.replicas.capacity
    assert capacity.take("a", "europe-west1", {"NVIDIA_L4": 99})
    assert not capacity.take("b", PARENT.rpartition("/")[2], {"NVIDIA_L4": 3})
    assert capacity.take("b", PARENT.rpartition("/")[2], {"NVIDIA_L4": 2})
