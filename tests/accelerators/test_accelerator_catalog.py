"""The catalog's files are whole, agree with each other, with the SDK and with the tables they were taken from."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from accelerator_facts import read_table
from conftest import printed_by
from google.cloud.aiplatform_v1 import AcceleratorType
from google.cloud.aiplatform_v1.types import Scheduling

from gpu_pipelines.accelerators.catalog import Catalog, CatalogError, load_catalog
from gpu_pipelines.accelerators.catalog.loader import FILES, PACKAGED
from gpu_pipelines.accelerators.plan import SCHEDULING


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def rows_of(name: str) -> list[dict[str, str]]:
    with (PACKAGED / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", sorted(FILES))
def test_each_row_names_its_sources_and_what_is_unverified(name: str, catalog: Catalog) -> None:
    rows = rows_of(name)
    assert rows
    for row in rows:
        assert None not in row
        assert None not in row.values()
        assert all(value == value.strip() for value in row.values()), row
        if name != "sources.csv":
            assert row["source"].split(), row
            assert set(row["source"].split()) <= set(catalog.sources), row
            assert set(row["unverified"].split()) <= set(row) - {"source", "unverified"}, row


def test_no_file_lies_about_unread() -> None:
    assert {path.name for path in PACKAGED.glob("*.csv")} == set(FILES)


def test_sources_are_used_and_dated(catalog: Catalog) -> None:
    used = {
        source for name in FILES if name != "sources.csv" for row in rows_of(name) for source in row["source"].split()
    }
    assert used == set(catalog.sources)
    assert [source.id for source in catalog.sources.values() if source.as_of is None] == ["skypilot"]


def test_the_gpus_are_those_of_the_sdk(catalog: Catalog) -> None:
    of_the_sdk = {name for name in AcceleratorType.__members__ if name.startswith("NVIDIA_")}
    assert {gpu.enum for gpu in catalog.gpus.values()} == of_the_sdk


def test_the_strategies_are_those_of_the_sdk() -> None:
    assert set(SCHEDULING.values()) <= set(Scheduling.Strategy.__members__)


def test_every_name_finds_one_gpu(catalog: Catalog) -> None:
    names = [name for gpu in (*catalog.gpus.values(), *catalog.elsewhere.values()) for name in (gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)


def test_references_between_files_hold(catalog: Catalog) -> None:
    gpus = set(catalog.gpus)
    assert {gpu for machine in catalog.machine_types.values() for gpu in machine.gpu_counts} == gpus
    assert {gpu for gpu, _ in catalog.host_limits} <= gpus
    assert {gpu for gpu, _ in catalog.availability} == gpus - {"k80"}
    assert {region for _, region in catalog.availability} == set(catalog.regions)
    machines = (*catalog.machine_types.values(), *catalog.unusable_machine_types.values())
    families = {machine.family for machine in machines}
    for row in catalog.availability.values():
        assert set(row.machine_families) <= families
        assert all(zone.rpartition("-")[0] == row.region for zone in row.zones)
    for gpu in catalog.gpus.values():
        assert set(gpu.replacements) <= gpus
        assert (gpu.ends is None) == (not gpu.replacements)
    for other in catalog.unusable_machine_types.values():
        assert other.instead in catalog.machine_types
    for other in catalog.elsewhere.values():
        assert set(other.instead) <= gpus


def test_flex_start_of_a_gpu_and_of_its_machines_agree(catalog: Catalog) -> None:
    for gpu in catalog.gpus.values():
        sold = {machine.flex_start for machine in catalog.machines_with(gpu.name)}
        assert sold == {"yes" if gpu.flex_start else "no"}, gpu.name


def test_the_regions_of_the_ai_platform_page_are_known(catalog: Catalog) -> None:
    page = """us-west1 us-west2 us-central1 us-east1 us-east4 northamerica-northeast1 southamerica-east1 europe-west1
        europe-west2 europe-west4 asia-south1 asia-southeast1 asia-east1 asia-northeast1 asia-northeast3
        australia-southeast1"""
    with_gpus = {row.region for row in catalog.availability.values() if row.machine_families}
    assert set(page.split()) <= with_gpus


def test_no_row_is_given_twice(catalog: Catalog) -> None:
    assert len(catalog.availability) == len(rows_of("availability.csv"))
    assert len(catalog.prices) == len(rows_of("prices.csv"))
    assert len(catalog.machine_types) == len(rows_of("machine_types.csv"))


def test_prices_are_of_known_things_and_spot_is_cheaper(catalog: Catalog) -> None:
    for price in catalog.prices.values():
        known = {"machine": catalog.machine_types, "gpu": catalog.gpus, "vcpu": {"n1"}, "memory_gb": {"n1"}}[price.unit]
        assert price.item in known, price
        assert price.on_demand or price.spot, price
        for value in (price.on_demand, price.spot):
            assert value is None or 0 < value < 400, price
        if price.on_demand and price.spot:
            assert price.spot < price.on_demand, price


def test_hardware_is_in_range(catalog: Catalog) -> None:
    for gpu in catalog.gpus.values():
        assert 8 <= gpu.memory_gb <= 300
        assert 100 <= gpu.memory_bandwidth_gb_s <= 10_000
        major = int(gpu.compute_capability.partition(".")[0])
        assert gpu.supports_bf16 == (major >= 8), gpu.name
        assert (gpu.fp16_tflops is not None) == (major >= 7), gpu.name
        # The sparse figures that Google's page prints as dense are twice as large; no dense one is above 2.6 PFLOP/s.
        assert (gpu.fp16_tflops or 0) <= 2600


def test_accelerator_optimized_machines_cell_by_cell(catalog: Catalog) -> None:
    rows = read_table("machine_types.txt")
    training = {row["machine_type"] for row in rows if row["training"] == "yes"}
    assert training == {name for name in catalog.machine_types if not name.startswith("n1-")}
    assert {row["machine_type"] for row in rows} - training == set(catalog.unusable_machine_types)
    for row in rows:
        name = row["machine_type"]
        if name in catalog.unusable_machine_types:
            other = catalog.unusable_machine_types[name]
            assert (other.gpu, other.gpu_count) == (row["gpu"], row["gpu_count"])
            assert (other.vcpus, other.memory_gb) == (int(row["vcpus"]), float(row["memory_gb"]))
            continue
        machine = catalog.machine_types[name]
        count = int(row["gpu_count"])
        assert machine.gpu_counts == {row["gpu"]: (count,)}
        assert (machine.vcpus, machine.memory_gb) == (int(row["vcpus"]), float(row["memory_gb"]))
        assert machine.local_ssd_gb == int(row["local_ssd_gb"])
        assert machine.network_gbps == int(row["network_gbps"])
        assert catalog.gpus[row["gpu"]].memory_gb * count == int(row["gpu_memory_gb"])
        assert not row["boot_disk"] or machine.boot_disk == row["boot_disk"]


def test_networks_are_those_of_compute_engines_page(catalog: Catalog) -> None:
    machines = catalog.machine_types.values()
    assert {m.name: (m.gpudirect, m.interfaces) for m in machines if m.gpudirect or m.rdma or m.interfaces} == {
        "a3-highgpu-8g": ("GPUDirect-TCPX", 5),
        "a3-megagpu-8g": ("GPUDirect-TCPXO", 9),
        "a3-ultragpu-8g": ("GPUDirect-RDMA", 10),
        "a4-highgpu-8g": ("GPUDirect-RDMA", 10),
        "a4x-highgpu-4g": ("GPUDirect-RDMA with multi-node NVLink", 6),
    }
    assert {m.name for m in machines if m.rdma} == {"a3-ultragpu-8g", "a4-highgpu-8g", "a4x-highgpu-4g"}
    # The others leave it to the image.
    assert {m.name.partition("-")[0] for m in machines if m.nic == "GVNIC"} == {"a3", "a4", "a4x", "g4"}
    assert all(m.nic == "" for m in machines if m.name.startswith(("a2-", "g2-", "n1-")))
    assert catalog.machine_types["n1-highmem-96"].network_with("v100", 8) == 100
    assert catalog.machine_types["n1-highmem-96"].network_with("t4", 4) is None
    assert catalog.machine_types["a2-highgpu-8g"].network_with("a100", 8) == 100


def test_machines_without_gpus_that_training_takes(catalog: Catalog) -> None:
    taken = ("e2-standard-4", "n1-standard-4", "n1-highcpu-16", "n2-highmem-8", "c2-standard-60", "m1-ultramem-40")
    assert all(catalog.takes_without_gpus(name) for name in taken)
    refused = (
        "n1-standard-1",
        "n1-highcpu-8",
        "n1-standard-5",
        "e2-micro",
        "c3-standard-4",
        "a2-highgpu-1g",
        "n2-standard-",
    )
    assert not any(catalog.takes_without_gpus(name) for name in refused)


def test_the_n1_table_cell_by_cell(catalog: Catalog) -> None:
    for row in read_table("n1_and_a2_table.txt"):
        machine = catalog.machine_types[row["machine_type"]]
        for gpu in ("A100", "K80", "P4", "P100", "T4", "V100"):
            expected = tuple(int(count) for count in row[gpu].split(",") if count)
            assert machine.gpu_counts.get(gpu.lower(), ()) == expected, (machine.name, gpu)


def test_n1_sizes_are_those_of_compute_engine(catalog: Catalog) -> None:
    per_vcpu = {"standard": 3.75, "highmem": 6.5, "highcpu": 0.9}
    for machine in catalog.machine_types.values():
        if machine.family == "n1":
            _, kind, vcpus = machine.name.split("-")
            assert machine.vcpus == int(vcpus)
            assert machine.memory_gb == pytest.approx(per_vcpu[kind] * machine.vcpus)


def test_the_limits_of_attached_gpus_give_the_n1_table(catalog: Catalog) -> None:
    for machine in catalog.machine_types.values():
        if machine.family != "n1":
            continue
        for (gpu, count), limit in catalog.host_limits.items():
            carried = machine.vcpus <= limit.max_vcpus and machine.memory_gb <= limit.max_memory_gb
            assert machine.takes(gpu, count) == carried, (machine.name, gpu, count)


def test_the_limits_that_the_ai_platform_page_names(catalog: Catalog) -> None:
    assert catalog.host_limits["k80", 8].max_memory_gb == 208
    assert catalog.host_limits["p100", 4].max_vcpus == 64
    assert catalog.host_limits["p100", 4].max_memory_gb == 208
    assert catalog.host_limits["v100", 1].max_vcpus == 12
    assert catalog.host_limits["v100", 2].max_vcpus < 32 <= catalog.host_limits["v100", 4].max_vcpus


# Compute Engine's price list of whole N1 machines without GPUs, us-central1, 2026-07-30, USD per hour.
N1_TOTALS = {"n1-standard-32": (1.519992, 0.53608), "n1-highmem-32": (1.892848, 0.667552)}


@pytest.mark.parametrize("name", sorted(N1_TOTALS))
def test_n1_units_add_up_to_the_list_price_of_the_machine(name: str, catalog: Catalog) -> None:
    machine = catalog.machine_types[name]
    vcpu = catalog.prices["n1", "vcpu", "us-central1"]
    memory = catalog.prices["n1", "memory_gb", "us-central1"]
    on_demand, spot = N1_TOTALS[name]
    assert vcpu.on_demand * machine.vcpus + memory.on_demand * machine.memory_gb == pytest.approx(on_demand, rel=1e-3)
    assert vcpu.spot * machine.vcpus + memory.spot * machine.memory_gb == pytest.approx(spot, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("regions.csv", "region,place\n", "does not have the columns"),
        (
            "n1_limits.csv",
            "gpu,count,max_vcpus,max_memory_gb,unverified,source\nk80,one,8,52,,gce-gpus\n",
            "invalid literal",
        ),
        ("n1_limits.csv", "gpu,count,max_vcpus,max_memory_gb,unverified,source\nk80,1\n", "too few columns"),
        (
            "prices.csv",
            "item,unit,region,on_demand,spot,unverified,source\nl4,furlong,us-east1,1,1,,skypilot\n",
            "unit is 'furlong'",
        ),
    ],
)
def test_a_spoilt_file_is_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    spoilt = Catalog(tmp_path)
    with pytest.raises(CatalogError, match=message) as caught:
        _ = (spoilt.regions, spoilt.host_limits, spoilt.prices)
    assert name in str(caught.value)


def test_a_directory_takes_the_place_of_the_packaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = "item,unit,region,on_demand,spot,unverified,source\n"
    (tmp_path / "prices.csv").write_text(f"{header}g2-standard-8,machine,us-east1,9,3,,cyclenerd-prices\n")
    monkeypatch.setenv("GPU_PIPELINES_CATALOG", str(tmp_path))
    overlaid = load_catalog()
    assert len(overlaid.prices) == 1
    assert len(overlaid.gpus) == len(rows_of("gpus.csv"))
    monkeypatch.setenv("GPU_PIPELINES_CATALOG", str(tmp_path / "missing"))
    with pytest.raises(CatalogError, match="not a directory"):
        load_catalog()


def test_importing_the_package_imports_no_sdk() -> None:
    heavy = "kfp torch google.auth google.api_core google.protobuf yaml rich typer numpy"
    program = (
        "import sys, gpu_pipelines.accelerators as a\n"
        "from gpu_pipelines.accelerators import advice, cost, together\n"
        "a.plan('h100:8', region='us-central1')\n"
        f"print([name for name in {heavy.split()} if name in sys.modules])"
    )
    assert printed_by(program).strip() == "[]"
