"""Where a step trains: where its target placed it, else on all GPUs, else on two CPU processes."""

from __future__ import annotations

import pytest

from gpu_pipelines.errors import UserError
from gpu_pipelines.training.machine.local_devices import Devices, local_devices


@pytest.mark.parametrize(
    ("gpus", "devices"), [(0, Devices("cpu", 2)), (1, Devices("cuda", 1)), (8, Devices("cuda", 8))]
)
def test_a_step_that_was_not_placed_takes_what_is_there(
    monkeypatch: pytest.MonkeyPatch, gpus: int, devices: Devices
) -> None:
    monkeypatch.delenv("GPU_PIPELINES_ACCELERATOR", raising=False)
    assert local_devices(gpus) == devices


@pytest.mark.parametrize(
    ("placed", "gpus", "devices"),
    [("cpu:3", 0, Devices("cpu", 3)), ("cpu:1", 8, Devices("cpu", 1)), ("h100:8", 8, Devices("cuda", 8))],
)
def test_a_step_trains_where_it_was_placed(
    monkeypatch: pytest.MonkeyPatch, placed: str, gpus: int, devices: Devices
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", placed)
    assert local_devices(gpus) == devices


@pytest.mark.parametrize("gpus", [0, 4, 16])
def test_other_gpus_than_the_step_was_placed_on_are_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "h100:8")
    with pytest.raises(UserError, match=f"placed on h100:8, but PyTorch sees {gpus} GPUs"):
        local_devices(gpus)


@pytest.mark.parametrize("cluster", ["CLOUD_ML_PROJECT_ID", "KFP_POD_NAME"])
def test_a_step_of_a_cluster_whose_accelerators_were_passed_over_does_not_train_on_cpus(
    monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    monkeypatch.delenv("GPU_PIPELINES_ACCELERATOR", raising=False)
    monkeypatch.setenv("GPU_PIPELINES_WISH", '{"spec": "l4:4", "nodes": 1}')
    assert local_devices(0) == Devices("cpu", 2)
    monkeypatch.setenv(cluster, "example")
    with pytest.raises(UserError, match="asked for l4:4 for this step, and it has none"):
        local_devices(0)
    assert local_devices(1) == Devices("cuda", 1)
