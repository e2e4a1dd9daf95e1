"""Adding a GPU is adding rows: one for it, one for each machine type, prices and regions; and no line of code."""

from __future__ import annotations

import json
from pathlib import Path

import new_gpu
import pytest
import yaml

from gpu_pipelines.accelerators import PlanError, load_catalog, plan
from gpu_pipelines.accelerators.advice import Wishes, advise
from gpu_pipelines.accelerators.catalog import Catalog, CatalogError
from gpu_pipelines.accelerators.cost import estimate_cost
from gpu_pipelines.accelerators.device_names import catalog_names
from gpu_pipelines.accelerators.document import render
from gpu_pipelines.accelerators.listing import describe_accelerator
from gpu_pipelines.accelerators.workload import Workload
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compute_engine.formats import create_command, terraform
from gpu_pipelines.targets.compute_engine.spec import VmOptions, virtual_machine
from gpu_pipelines.targets.container import Container
from gpu_pipelines.targets.kubeflow.target import KubeflowTarget
from gpu_pipelines.targets.published import file_of, published
from gpu_pipelines.targets.vertex.placement.job_spec import JobOptions, custom_job, no_reduction_server
from gpu_pipelines.targets.vertex.target import VertexTarget

PIPELINE = "train_evaluate_upload"
PROJECT = ProjectSettings(project="my-project", region="us-central1")


@pytest.fixture(autouse=True)
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    new_gpu.add_to(tmp_path)
    monkeypatch.setenv("GPU_PIPELINES_CATALOG", str(tmp_path))
    return load_catalog()


def test_it_takes_a_row_and_one_for_each_machine_type() -> None:
    assert len(new_gpu.ROWS["gpus.csv"]) == 1
    machines = {row.partition(",")[0] for row in new_gpu.ROWS["machine_types.csv"]}
    assert machines == {machine.name for machine in load_catalog().machines_with("x900")}
    assert len(new_gpu.ROWS["machine_types.csv"]) == len(machines)
    assert set(new_gpu.ROWS) == {"gpus.csv", "machine_types.csv", "prices.csv", "availability.csv"}


def test_it_is_planned_and_priced() -> None:
    made = plan("x900:8", nodes=2, region="us-central1", hours=10)
    assert (made.machine_type, made.accelerator_type, made.precision) == ("zz9-alpha-8g", "NVIDIA_X900", "bf16")
    assert (made.boot_disk_type, made.network_gbps, made.zones) == ("hyperdisk-balanced", 6400, ("us-central1-a",))
    assert made.quota_metric == new_gpu.QUOTA.format("training")
    assert {warning.code for warning in made.warnings} == {"arm64", "cuda"}
    assert "PyTorch 3.1 or later" in str([warning.message for warning in made.warnings])
    cost = estimate_cost(made)
    assert cost is not None
    assert cost.here is not None
    assert (cost.here.on_demand, cost.here.spot) == (24, 8)
    with pytest.raises(PlanError, match="No machine has 4 × x900; training takes 1 or 8 x900"):
        plan("x900:4")
    with pytest.raises(PlanError, match="us-east1 has no x900"):
        plan("nvidia-x900-400gb:8", region="us-east1")


def test_it_is_advised_shown_and_documented(catalog: Catalog) -> None:
    advice = advise(Workload(parameters=7e9, tokens=1e9), Wishes(region="us-central1"))
    assert advice.options[0].plan.spec == "x900:1", "it is the fastest, and the cheapest"
    shown = describe_accelerator("X900")
    assert [machine["machine_type"] for machine in shown["machines"]] == ["zz9-plural-1g", "zz9-alpha-8g"]
    assert shown["zones"] == {"us-central1": ["us-central1-a"]}
    assert catalog_names("NVIDIA X900 400GB HBM5") == ["x900"]
    page = render("<!-- table: machines -->\n<!-- end -->", catalog)
    assert "| `zz9-alpha-8g` | 8 × x900 | 256 | 4096 | 16000 | 6400 | yes | yes | yes | yes |" in page


def test_it_becomes_a_custom_job() -> None:
    several = plan("x900:8", nodes=2, region="us-central1")
    pools = custom_job(several, "train", Container("us-docker.pkg.dev/p/i"), PROJECT, JobOptions())["job_spec"]
    spec = {"machine_type": "zz9-alpha-8g", "accelerator_type": "NVIDIA_X900", "accelerator_count": 8}
    assert [pool["machine_spec"] for pool in pools["worker_pool_specs"]] == [spec, spec]
    assert {pool["disk_spec"]["boot_disk_type"] for pool in pools["worker_pool_specs"]} == {"hyperdisk-balanced"}
    assert "(GPUDirect)" in str(no_reduction_server(several))
    assert no_reduction_server(plan("x900:1", nodes=2)) is None


def test_pipelines_are_compiled_for_it() -> None:
    (spot, several) = [request for request in published() if request.spec.startswith("x900")]
    assert file_of(plan("x900:1", strategy=spot.strategy)) == "x900-1-spot.yaml"
    assert (several.spec, several.nodes) == ("x900:8", 2)
    assert several in published(most_used=True)

    planned = plan("x900:8", nodes=2)
    vertex = json.dumps(yaml.safe_load(VertexTarget().text_of(PIPELINE, planned)))
    assert all(name in vertex for name in ("zz9-alpha-8g", "NVIDIA_X900", "hyperdisk-balanced"))
    assert "zz9-plural-1g" in vertex, "one of it evaluates"

    pipeline, platform = yaml.safe_load_all(KubeflowTarget().text_of(PIPELINE, planned))
    assert "gpu-pipelines-rdma" in json.dumps(pipeline), "the runtime that sets up the network of its GPUs"
    assert "nvidia-x900" in json.dumps(pipeline) + json.dumps(platform)


def test_it_becomes_a_vm(tmp_path: Path) -> None:
    alone = virtual_machine(plan("x900:1", region="us-central1"), Container("image"), PROJECT, VmOptions())
    command = create_command(alone, "startup.sh")
    assert {"--machine-type=zz9-plural-1g", "--boot-disk-type=hyperdisk-balanced"} <= set(command)
    assert any("nic-type=IDPF" in word for word in command)
    assert not any(word.startswith("--accelerator") for word in command)
    eight = plan("x900:8", region="us-central1")
    with pytest.raises(UserError, match="zz9-alpha-8g, whose hosts are arm64"):
        virtual_machine(eight, Container("image"), PROJECT, VmOptions())
    vm = virtual_machine(eight, Container("image"), PROJECT, VmOptions(image_family="f", image_project="p"))
    assert any("with 10 network interfaces" in warning for warning in vm.warnings)
    ((instance,),) = (r.values() for r in terraform(vm)["resource"].values())
    assert instance["network_interface"]["nic_type"] == "GVNIC"
    assert instance["scheduling"]["provisioning_model"] == "STANDARD"
    assert "guest_accelerator" not in instance


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("machine_types.csv", ("x900:8", "x901:8"), "gpu_counts of zz9-alpha-8g names x901"),
        ("availability.csv", ("x900,us-central1", "x900,us-nowhere1"), "region of x900 us-nowhere1 names us-nowhere1"),
        ("prices.csv", ("cyclenerd-prices", "our-contract"), "names our-contract, which"),
        ("machine_types.csv", ("x900:8", "x900"), "gpu_counts: invalid literal"),
        ("machine_types.csv", ("RDMA,yes,yes", "RDMA,perhaps,yes"), "rdma: 'perhaps' is neither yes nor no"),
        ("machine_types.csv", ("arm64", "arm"), "host_architecture is 'arm', not one of amd64, arm64"),
        ("gpus.csv", ("8-2-nodes,mfu", "8x2,mfu"), "x900 should be compiled for '8x2'"),
    ],
)
def test_a_wrong_row_is_told_with_its_column(name: str, wrong: tuple[str, str], told: str, tmp_path: Path) -> None:
    text = (tmp_path / name).read_text()
    assert wrong[0] in text
    (tmp_path / name).write_text(text.replace(*wrong))
    spoilt = Catalog(tmp_path)
    with pytest.raises(CatalogError) as caught:
        _ = (spoilt.machine_types, spoilt.availability, spoilt.prices, published(most_used=True))
    assert told in str(caught.value)
