"""From a plan to the CustomJobSpec: pools, scheduling, reservations, reduction servers."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_pipelines.accelerators import plan
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.container import Container
from gpu_pipelines.targets.vertex.placement.job_spec import (
    JobOptions,
    custom_job,
    no_reduction_server,
    reduction_pool,
    reduction_servers,
    scheduling,
    worker_pool_specs,
)

CONTAINER = Container("us-docker.pkg.dev/p/r/i", ["python"], ["-m", "t"])


def spec_of(planned: Any, settings: ProjectSettings | None = None, **options: Any) -> dict[str, Any]:
    job = custom_job(planned, "try", CONTAINER, settings or ProjectSettings(), JobOptions(**options))
    spec: dict[str, Any] = job["job_spec"]
    return spec


def test_one_machine_is_one_pool() -> None:
    (pool,) = spec_of(plan("h100:8"), boot_disk_gb=300, environment={"A": "1"})["worker_pool_specs"]
    assert pool["machine_spec"] == {
        "machine_type": "a3-highgpu-8g",
        "accelerator_type": "NVIDIA_H100_80GB",
        "accelerator_count": 8,
    }
    assert pool["replica_count"] == 1
    assert pool["disk_spec"] == {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 300}
    assert pool["container_spec"]["env"] == [{"name": "A", "value": "1"}]


@pytest.mark.parametrize("nodes", [2, 5, 64])
def test_several_machines_are_rank_0_and_a_pool_of_the_others(nodes: int) -> None:
    rank_0, others = spec_of(plan("h100:8", nodes=nodes))["worker_pool_specs"]
    assert (rank_0["replica_count"], others["replica_count"]) == (1, nodes - 1)
    assert {**rank_0, "replica_count": 0} == {**others, "replica_count": 0}


@pytest.mark.parametrize(
    ("chosen", "wait", "wanted"),
    [
        ({}, None, {"strategy": "STANDARD", "timeout": "604800s"}),
        ({"strategy": "spot", "hours": 1.5}, None, {"strategy": "SPOT", "timeout": "5400s"}),
        (
            {"strategy": "flex-start"},
            None,
            {"strategy": "FLEX_START", "timeout": "604800s", "max_wait_duration": "86400s"},
        ),
        (
            {"strategy": "flex-start", "hours": 2},
            0,
            {"strategy": "FLEX_START", "timeout": "7200s", "max_wait_duration": "0s"},
        ),
        ({"strategy": "reservation"}, None, {"strategy": "STANDARD", "timeout": "604800s"}),
        (
            {"nodes": 2},
            None,
            {"strategy": "STANDARD", "timeout": "604800s", "restart_job_on_worker_restart": True},
        ),
    ],
)
def test_scheduling(chosen: dict[str, Any], wait: float | None, wanted: dict[str, Any]) -> None:
    assert scheduling(plan("h100:8", **chosen), JobOptions(max_wait_hours=wait)) == wanted


def test_a_reservation_is_in_the_machines_and_not_in_the_reduction_servers() -> None:
    name = "projects/p/zones/us-central1-a/reservations/r"
    pools = spec_of(plan("a100:8", nodes=2, reservation=name), reduction_server=True)["worker_pool_specs"]
    wanted = {
        "reservation_affinity_type": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [name],
    }
    assert [pool["machine_spec"].get("reservation_affinity") for pool in pools] == [wanted, wanted, None]


@pytest.mark.parametrize(
    ("spec", "nodes", "machine", "servers"),
    [
        # The examples of Google's page on distributed training.
        ("v100:8", 5, "n1-highmem-96", 16),
        ("a100:16", 8, "a2-megagpu-16g", 25),
    ],
)
def test_there_are_as_many_reduction_servers_as_google_says(spec: str, nodes: int, machine: str, servers: int) -> None:
    planned = plan(spec, nodes=nodes, machine_type=machine)
    assert reduction_servers(planned) == servers
    pool = spec_of(planned, reduction_server=True)["worker_pool_specs"][2]
    assert pool["replica_count"] == servers
    assert pool["machine_spec"] == {"machine_type": "n1-highcpu-16"}


@pytest.mark.parametrize(
    ("image", "place"),
    [
        ("europe-west4-docker.pkg.dev/p/r/i", "europe"),
        ("asia-docker.pkg.dev/p/r/i", "asia"),
        ("us-central1-docker.pkg.dev/p/r/i", "us"),
        ("example.com/i", "us"),
    ],
)
def test_reduction_servers_come_from_the_registry_nearest_to_the_image(image: str, place: str) -> None:
    pool = reduction_pool(plan("a100:8", nodes=2), image)
    assert pool["container_spec"]["image_uri"].startswith(f"{place}-docker.pkg.dev/vertex-ai-restricted/")


@pytest.mark.parametrize(
    ("spec", "chosen", "why"),
    [
        ("a100:8", {}, "there is one machine"),
        ("a100:8", {"nodes": 2, "strategy": "flex-start"}, "the same machine in every pool"),
        ("h100:8", {"nodes": 2}, "GPUDirect"),
        ("b200:8", {"nodes": 2, "strategy": "spot"}, "GPUDirect"),
        ("v100:8", {"nodes": 2, "machine_type": "n1-highmem-32"}, "is not known"),
    ],
)
def test_why_there_are_no_reduction_servers(spec: str, chosen: dict[str, Any], why: str) -> None:
    planned = plan(spec, **chosen)
    assert why in str(no_reduction_server(planned))
    with pytest.raises(UserError, match="reduction server cannot be used"):
        spec_of(planned, reduction_server=True)


def test_all_that_is_wrong_is_told_at_once() -> None:
    settings = ProjectSettings(tensorboard="projects/p/locations/l/tensorboards/1")
    with pytest.raises(UserError) as caught:
        spec_of(plan("l4:1"), settings, boot_disk_gb=99, max_wait_hours=1, environment={"A": ""})
    for said in ("99 GB", "Only flex-start waits", "service account of its own", "A is empty"):
        assert said in str(caught.value)


def test_pools_alone_are_checked_as_those_of_a_job() -> None:
    assert worker_pool_specs(plan("l4:2", nodes=3), CONTAINER) == spec_of(plan("l4:2", nodes=3))["worker_pool_specs"]
    with pytest.raises(UserError, match="is for this machine"):
        worker_pool_specs(plan("cpu:2"), CONTAINER)
    with pytest.raises(UserError, match="there is one machine"):
        worker_pool_specs(plan("a100:8"), CONTAINER, JobOptions(reduction_server=True))


def test_what_a_job_uses_is_in_its_region() -> None:
    """The service says so when the step begins, after the data was prepared."""
    tensorboard = "projects/p/locations/europe-west4/tensorboards/1"
    settings = ProjectSettings(region="us-central1", service_account="me@p", tensorboard=tensorboard)
    with pytest.raises(UserError, match="A job in us-central1 cannot use it: tensorboard is in europe-west4: projects"):
        spec_of(plan("l4:1"), settings)
    spec_of(plan("l4:1", region="europe-west4"), settings)


def test_settings_are_where_the_api_has_them() -> None:
    network, tensorboard = "projects/1/global/networks/n", "projects/p/locations/l/tensorboards/1"
    key = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
    settings = ProjectSettings(
        service_account="me@p", network=network, tensorboard=tensorboard, encryption_key=key, labels={"a": "b"}
    )
    job = custom_job(plan("l4:1"), "try", CONTAINER, settings, JobOptions(web_access=True), "gs://b/out")
    assert job["labels"] == {"a": "b"}
    assert job["encryption_spec"] == {"kms_key_name": key}
    spec = job["job_spec"]
    assert spec["service_account"] == "me@p"
    assert spec["base_output_directory"] == {"output_uri_prefix": "gs://b/out"}
    assert spec["enable_web_access"] is True
    assert (spec["network"], spec["tensorboard"]) == (network, tensorboard)
