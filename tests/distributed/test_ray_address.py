"""Addresses of Ray clusters as a user gives them."""

from __future__ import annotations

import pytest

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.distributed.executor import executor_for
from gpu_pipelines.distributed.ray_address import problems_of_ray_address, ray_endpoint
from gpu_pipelines.errors import NotFoundError, UserError

VERTEX = "vertex_ray://projects/12/locations/us-central1/persistentResources/big-one"


@pytest.mark.parametrize(
    ("address", "host", "port", "package"),
    [
        ("auto", "", 0, ""),
        ("raycluster-head-svc.ray.svc:6379", "raycluster-head-svc.ray.svc", 6379, ""),
        ("10.0.0.2:6379", "10.0.0.2", 6379, ""),
        ("[fd00::2]:6379", "fd00::2", 6379, ""),
        ("ray://head:10001", "head", 10001, ""),
        (VERTEX, "", 0, "google-cloud-aiplatform[ray]"),
        ("vertex_ray://big-one", "", 0, "google-cloud-aiplatform[ray]"),
        ("anyscale://cluster/one", "", 0, "anyscale"),
        ("anyscale://", "", 0, "anyscale"),
    ],
)
def test_addresses_that_ray_takes(address: str, host: str, port: int, package: str) -> None:
    assert problems_of_ray_address(address) == []
    found = ray_endpoint(address)
    assert (found.host, found.port, found.package) == (host, port, package)


@pytest.mark.parametrize(
    "address",
    [
        "head", "head:", "head:99999", ":6379", "head:6379/x", "he ad:6379", "ray://head", "ray://", "ray:head:10001",
        "vertex_ray://projects/p/persistentResources/n", "vertex_ray://", "vertex_ray://Big", "anyscale://a b",
        "gs://bucket/x:1", "spark://head:7077", "AUTO", " head:6379",
    ],
)  # fmt: skip
def test_addresses_that_no_cluster_has_are_refused_with_the_forms(address: str) -> None:
    (problem,) = problems_of_ray_address(address)
    assert problem.startswith(f"ray_address: {address!r} is not the address of a Ray cluster. Give HOST:PORT")
    assert "ray://HOST:10001" in problem


def test_the_address_of_a_dashboard_is_told_apart() -> None:
    (problem,) = problems_of_ray_address("http://head:8265")
    assert "the address of a dashboard" in problem


def test_an_empty_one_is_the_machines_of_the_step() -> None:
    assert problems_of_ray_address("") == []


def test_a_cluster_and_machines_of_the_step_are_not_both_taken() -> None:
    settings = PrepareSettings(source="sample:digits", ray_address="head:6379")
    (problem,) = settings.problems_on_nodes(4)
    assert (
        "by 4 machines of the step, and by the Ray cluster head:6379. Leave out ray_address or --data-nodes" in problem
    )
    assert settings.problems_on_nodes(1) == []
    (problem,) = PrepareSettings(source="bq://p.d.t", ray_address="head:6379").problems_on_nodes(1)
    assert "is read by one machine" in problem


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(NotFoundError, match=r"No Ray cluster can be used at nobody\.invalid:1"):
        executor_for("nobody.invalid:1")
    with pytest.raises(UserError, match="'nobody' is not the address of a Ray cluster"):
        executor_for("nobody")
