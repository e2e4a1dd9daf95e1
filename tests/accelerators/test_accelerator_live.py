"""`accelerators quota` and `accelerators catalog refresh` through Google's client libraries against a local server."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import new_gpu
import pytest
from command_line import command
from conftest import GPU_PIPELINES
from google.cloud import billing_v1, cloudquotas_v1, compute_v1
from google_api_server import GoogleApis, serving

from gpu_pipelines import check_quota, refresh_catalog
from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.accelerators.catalog import Catalog
from gpu_pipelines.accelerators.cost import estimate_cost
from gpu_pipelines.accelerators.plan import plan

METRIC = "aiplatform.googleapis.com/custom_model_training_nvidia_h100_gpus"
SPOT_METRIC = "aiplatform.googleapis.com/custom_model_training_preemptible_nvidia_h100_gpus"
APIS = ("CLOUDQUOTAS", "CLOUDBILLING", "COMPUTE")


@pytest.fixture
def apis(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleApis]:
    known = GoogleApis()
    with serving(known) as address:
        for api in APIS:
            monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}", f"{address}/")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("GPU_PIPELINES_CATALOG", raising=False)
        yield known


def quota(metric: str, quota_id: str, **limits: int) -> cloudquotas_v1.QuotaInfo:
    dimensions = [
        cloudquotas_v1.DimensionsInfo(
            dimensions={"region": region.replace("_", "-")} if region != "default" else {},
            details=cloudquotas_v1.QuotaDetails(value=value),
            applicable_locations=["us-east4", "us-west1"] if region == "default" else [region.replace("_", "-")],
        )
        for region, value in limits.items()
    ]
    return cloudquotas_v1.QuotaInfo(metric=metric, quota_id=quota_id, dimensions_infos=dimensions)


@pytest.fixture
def quotas(apis: GoogleApis) -> GoogleApis:
    apis.quotas = [
        quota("aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus", "L4", us_central1=4),
        quota(SPOT_METRIC, "CustomModelTrainingPreemptibleH100GPUsPerProjectPerRegion", us_central1=-1),
        # On the second page.
        quota(METRIC, "CustomModelTrainingH100GPUsPerProjectPerRegion", us_central1=16, europe_west4=8, default=0),
    ]
    return apis


def run(*arguments: str, columns: int = 0) -> tuple[int, str, str]:
    result = command("accelerators", *arguments, columns=columns)
    return result.status, result.out, result.err


def test_quota_that_is_enough(quotas: GoogleApis) -> None:
    status, out, _ = run("quota", "h100:8", "--nodes", "2", "--region", "us-central1", "--project", "my-project")
    assert status == 0
    assert f"{METRIC}: 16 needed in my-project" in out
    assert "us-central1" in out
    assert "enough" in out
    assert quotas.requests[0].parent == "projects/my-project/locations/global/services/aiplatform.googleapis.com"
    assert len(quotas.requests) == 2


def test_a_program_checks_quota_as_the_command_does(quotas: GoogleApis) -> None:
    for region, enough in (("us-central1", True), ("europe-west4", False)):
        _, printed, _ = run("quota", "h100:8", "--nodes", "2", "--region", region, "--project", "p", "--json")
        found = check_quota(plan("h100:8", nodes=2, region=region), "p")
        assert (found.enough, found.to_json()) == (enough, json.loads(printed))


def test_quota_that_is_too_little_exits_1_and_says_what_to_ask_for(quotas: GoogleApis) -> None:
    arguments = ("quota", "h100:8", "--nodes", "4", "--region", "europe-west4", "--project", "my-project")
    status, out, _ = run(*arguments, "--json")
    report = json.loads(out)
    assert status == 1
    assert report["regions"] == [{"region": "europe-west4", "limit": 8, "enough": False}]
    assert report["command"] == (
        "gcloud beta quotas preferences create --service=aiplatform.googleapis.com "
        "--quota-id=CustomModelTrainingH100GPUsPerProjectPerRegion --preferred-value=32 "
        "--dimensions=region=europe-west4 --project=my-project"
    )
    assert report["command"] in run(*arguments)[1]


def test_what_is_told_of_quota_and_refresh_is_wrapped_between_words(
    quotas: GoogleApis, compute_engine: GoogleApis, tmp_path: Path
) -> None:
    _, asked, _ = run(
        "quota", "h100:8", "--nodes", "4", "--region", "europe-west4", "--project", "my-project", columns=80
    )
    _, made, _ = run("catalog", "refresh", "--project", "p", "--output", str(tmp_path), columns=80)
    # What is pasted is one line, however long.
    lines = [line for line in (asked + made).splitlines() if not line.startswith("  gcloud ")]
    assert not [line for line in lines if len(line) > 80 and len(line.split()) > 1]
    assert METRIC in asked
    assert str(tmp_path) in made
    assert "moon-north1" in made


def test_a_region_without_a_row_of_its_own_has_the_default(quotas: GoogleApis) -> None:
    status, out, _ = run("quota", "h100:8", "--region", "us-east4", "--project", "p", "--json")
    assert status == 1
    assert json.loads(out)["regions"][0]["limit"] == 0


def test_without_a_region_the_best_come_first(quotas: GoogleApis) -> None:
    _, out, _ = run("quota", "h100:8", "--project", "p", "--json")
    assert [region["region"] for region in json.loads(out)["regions"][:2]] == ["us-central1", "europe-west4"]


def test_spot_draws_on_its_own_quota_and_minus_one_is_no_limit(quotas: GoogleApis) -> None:
    status, out, _ = run(
        "quota", "h100:8", "--nodes", "64", "--strategy", "spot", "--region", "us-central1", "--project", "p"
    )
    assert status == 0
    assert "no limit" in out
    assert SPOT_METRIC in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quota", "h100:3", "--project", "p"], "No machine has 3 × h100"),
        (["quota", "cpu:2", "--project", "p"], "needs no quota"),
        (["quota", "h100:8", "--project", "projects/p"], "Give the id alone"),
        (
            ["quota", "a100:8", "--project", "p"],
            "has no quota metric aiplatform.googleapis.com/custom_model_training_nvidia_a100",
        ),
    ],
)
def test_what_has_no_quota_exits_2(quotas: GoogleApis, arguments: list[str], message: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_a_metric_that_is_not_there_is_no_api_that_is_off(quotas: GoogleApis) -> None:
    _, _, err = run("quota", "a100:8", "--project", "p")
    assert "It may have another name by now; https://console.cloud.google.com/iam-admin/quotas?project=p lists" in err
    quotas.quotas = []
    _, _, err = run("quota", "a100:8", "--project", "p")
    assert "Enable the Vertex AI API: gcloud services enable aiplatform.googleapis.com --project=p" in err


@pytest.mark.parametrize("command", [["quota", "h100:8"], ["catalog", "refresh"]])
@pytest.mark.parametrize(
    ("status", "message"), [(403, "may not be read"), (401, "could not be read"), (404, "could not")]
)
def test_a_refusal_of_the_api_exits_2(apis: GoogleApis, command: list[str], status: int, message: str) -> None:
    apis.denied = status
    exit_status, out, err = run(*command, "--project", "p")
    assert (exit_status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [["quota", "h100:8", "--project", "p"], ["quota", "l4:1"], ["catalog", "refresh"]])
def test_without_credentials_they_say_what_is_missing(command: list[str], tmp_path: Path) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GOOGLE_", "CLOUDSDK_", "GPU_PIPELINES_"))
    }
    environment |= {"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path), "NO_GCE_CHECK": "true"}
    done = subprocess.run(
        [str(GPU_PIPELINES), "accelerators", *command],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "gcloud auth application-default login" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_libraries_they_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    status, _, err = run("quota", "h100:8", "--project", "p")
    assert status == 2
    assert "pip install 'gpu-pipelines[live]'" in err


def test_the_server_refuses_what_the_api_does_not_have(apis: GoogleApis) -> None:
    address = os.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBILLING"]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(f"{address}v1/services/6F81-5844-456A/skus?pagesize_=3")


def sku(description: str, usd: float, unit: str = "h", usage: str = "OnDemand", *regions: str) -> billing_v1.Sku:
    units = int(usd)
    rate = {"unit_price": {"currency_code": "USD", "units": units, "nanos": round((usd - units) * 1e9)}}
    return billing_v1.Sku(
        description=description,
        category={"resource_family": "Compute", "usage_type": usage},
        service_regions=regions or ["us-central1"],
        pricing_info=[{"pricing_expression": {"usage_unit": unit, "tiered_rates": [rate]}}],
    )


def machine(name: str, gpu: str, count: int) -> compute_v1.MachineType:
    return compute_v1.MachineType(
        name=name, accelerators=[{"guest_accelerator_type": gpu, "guest_accelerator_count": count}]
    )


@pytest.fixture
def compute_engine(apis: GoogleApis) -> GoogleApis:
    both = ("us-central1", "us-east1")
    apis.skus = [
        sku("N1 Predefined Instance Core running in Americas", 0.03, "h", "OnDemand", *both),
        sku("N1 Predefined Instance Ram running in Americas", 0.004, "GiBy.h", "OnDemand", *both),
        sku("Spot Preemptible N1 Predefined Instance Core running in Americas", 0.01, "h", "Preemptible", *both),
        sku("Nvidia Tesla T4 GPU running in Americas", 0.35, "h", "OnDemand", *both),
        sku(
            "Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas", 0.11, "h", "Preemptible", *both
        ),
        sku("Commitment v1: Nvidia Tesla T4 GPU running in Americas for 1 Year", 0.2, "h", "Commit1Yr"),
        sku("A3 Instance Core running in Iowa", 0.03),
        sku("A3 Instance Ram running in Iowa", 0.003, "GiBy.h"),
        sku("Nvidia H100 80GB GPU running in Iowa", 9.5),
        sku("SSD backed Local Storage", 0.073, "GiBy.mo"),
        sku("SSD backed Local Storage in Netherlands", 0.08, "GiBy.mo", "OnDemand", "europe-west4"),
        # G2 has no price of its memory here: no total may be made of the rest.
        sku("G2 Instance Core running in Iowa", 0.02),
        sku("Nvidia L4 GPU running in Iowa", 0.56),
        sku("A4 Nvidia B200 (1 gpu slice) running in Iowa", 11),
        sku("Cloud TPU running in Iowa", 99),
    ]
    apis.accelerators = {
        "us-central1-a": ["nvidia-tesla-t4", "nvidia-tesla-t4-vws", "nvidia-h100-80gb"],
        "us-central1-f": ["nvidia-tesla-t4"],
        "us-east1-b": ["nvidia-tesla-t4", "nvidia-h100-80gb"],
        "moon-north1-a": ["nvidia-tesla-t4"],
    }
    apis.machines = {
        "us-central1-a": [
            machine("a3-highgpu-8g", "nvidia-h100-80gb", 8),
            machine("a3-edgegpu-8g", "nvidia-h100-80gb", 8),
        ],
        "us-central1-b": [machine("a3-edgegpu-8g", "nvidia-h100-80gb", 8), machine("e2-standard-4", "nvidia-l4", 1)],
        "us-central1-c": [machine("a4-highgpu-8g", "nvidia-b200", 8)],
    }
    return apis


def test_refresh_rebuilds_prices_and_places_in_the_same_form(
    compute_engine: GoogleApis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = run("catalog", "refresh", "--project", "p", "--output", str(tmp_path), "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert result["unknown_regions"] == ["moon-north1"]
    assert refresh_catalog(tmp_path / "again", project="p").to_json() == {
        **result,
        "directory": f"{tmp_path / 'again'}",
    }
    made = Catalog(tmp_path)
    # 208 vCPUs, 1872 GB, 6000 GB of SSD at 0.073 for a month of 730 hours, 8 GPUs.
    h100 = made.prices["a3-highgpu-8g", "machine", "us-central1"]
    assert h100.on_demand == pytest.approx(208 * 0.03 + 1872 * 0.003 + 6000 * 0.0001 + 8 * 9.5)
    assert h100.sources == ("cloud-billing-api",)
    assert made.prices["a4-highgpu-8g", "machine", "us-central1"].on_demand == 88
    assert made.prices["n1", "vcpu", "us-east1"].spot == 0.01
    assert (made.prices["t4", "gpu", "us-east1"].on_demand, made.prices["t4", "gpu", "us-east1"].spot) == (0.35, 0.11)
    packaged = Catalog()
    for name in ("g2-standard-8", "a2-highgpu-1g"):
        assert made.prices[name, "machine", "us-central1"] == packaged.prices[name, "machine", "us-central1"]
    assert result["prices_read"] + result["prices_kept"] == len(made.prices)
    assert made.availability["t4", "us-central1"].zones == ("us-central1-a", "us-central1-f")
    # The zone that has only the edge machine is none where training runs.
    assert made.availability["h100", "us-central1"].zones == ("us-central1-a",)
    assert set(made.availability["h100", "us-central1"].machine_families) == {"a3-edgegpu", "a3-highgpu"}
    assert made.availability["h100", "us-east1"].machine_families == ()
    regions = {gpu: {region for of, region in made.availability if of == gpu} for gpu in ("t4", "h100", "b200", "l4")}
    assert regions == {
        "t4": {"us-central1", "us-east1"},
        "h100": {"us-central1", "us-east1"},
        "b200": {"us-central1"},
        "l4": set(),
    }

    monkeypatch.setenv("GPU_PIPELINES_CATALOG", str(tmp_path))
    chosen = plan("h100:8", region="us-central1", catalog=load_catalog())
    assert chosen.regions == ("us-central1",)
    assert estimate_cost(chosen, catalog=load_catalog()).here.on_demand == h100.on_demand
    assert run("plan", "h100:8", "--region", "us-east1")[0] == 2


def test_refresh_finds_the_machines_that_were_added_to_the_catalog_and_no_others(
    compute_engine: GoogleApis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_gpu.add_to(tmp_path)
    monkeypatch.setenv("GPU_PIPELINES_CATALOG", str(tmp_path))
    compute_engine.machines["us-central1-c"] = [
        machine("zz9-alpha-8g", "nvidia-x900-400gb", 8),
        machine("zz9-beta-8g", "nvidia-x900-400gb", 8),
    ]
    assert run("catalog", "refresh", "--project", "p")[0] == 0
    found = Catalog(tmp_path).availability["x900", "us-central1"]
    assert (found.zones, found.machine_families) == (("us-central1-c",), ("zz9-alpha",))


def test_a_refreshed_file_reads_back_and_writes_the_same_bytes(compute_engine: GoogleApis, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        assert run("catalog", "refresh", "--project", "p", "--output", str(directory))[0] == 0
    for name in ("prices.csv", "availability.csv", "sources.csv"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
        with (first / name).open(newline="") as file:
            assert len(list(csv.reader(file))) > 2
    assert len(compute_engine.requests) > 10


def test_an_empty_answer_writes_nothing(apis: GoogleApis, tmp_path: Path) -> None:
    status, _, err = run("catalog", "refresh", "--project", "p", "--output", str(tmp_path))
    assert status == 2
    assert "nothing was written" in err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(compute_engine: GoogleApis, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, _, err = run("catalog", "refresh", "--project", "p", "--output", str(tmp_path / "file"))
    assert status == 2
    assert "GPU_PIPELINES_CATALOG" in err


def test_writing_the_packaged_facts_gives_their_own_bytes(tmp_path: Path) -> None:
    from gpu_pipelines.accelerators.catalog.loader import PACKAGED
    from gpu_pipelines.accelerators.live.refresh import write_availability, write_prices, write_sources

    packaged = Catalog()
    write_prices(tmp_path, packaged.prices.values())
    write_availability(tmp_path, packaged.availability.values(), packaged.gpus)
    write_sources(tmp_path, packaged, [])
    for name in ("prices.csv", "availability.csv", "sources.csv"):
        assert (tmp_path / name).read_bytes() == (PACKAGED / name).read_bytes(), name
