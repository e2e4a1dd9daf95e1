"""Every machine of the old table with every GPU in every number: migrated to a plan that holds, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from old_jobs import LEGACY_GPUS, TODAY, custom, migrated, old_table, refusal, texts

from gpu_pipelines.accelerators import AcceleratorPlan, Catalog, load_catalog, plan
from gpu_pipelines.accelerators.catalog.loader import PACKAGED
from gpu_pipelines.migration.old_machines import LEGACY_MACHINES

TABLE = old_table()
GPUS = ("A100", "K80", "P4", "P100", "T4", "V100")
COUNTS = (1, 2, 3, 4, 8, 16)
GONE = {"K80": 12, "P100": 16}


def holds(found: AcceleratorPlan) -> None:
    """A plan that can be planned again from what the config says of it."""
    again = plan(
        f"{found.accelerator_type}:{found.count}",
        nodes=found.nodes,
        region=found.region,
        machine_type=found.machine_type,
        today=TODAY,
    )
    assert again.spec == found.spec


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("machine", sorted({machine for machine, _ in TABLE}))
def test_every_cell_of_the_old_table_migrates_or_is_refused(machine: str, gpu: str) -> None:
    for count in COUNTS:
        job = custom(machine, gpu, count)
        if count not in TABLE[machine, gpu]:
            said = refusal(job)
            assert f"refused {count} × {gpu.lower()} on {machine}" in said
            continue
        found = migrated(job)
        (pool,) = found.config["workerPoolSpecs"]
        assert pool["machineSpec"]["acceleratorCount"] == count, "batch sizes hang on the number"
        holds(found.plans["master"])
        if gpu in GONE:
            assert found.plans["master"].gpu.memory_gb >= GONE[gpu]  # type: ignore[union-attr]
            assert f"{gpu.lower()} ({GONE[gpu]} GB) is gone" in texts(found, "changed", "acceleratorConfig")
        else:
            assert pool["machineSpec"] == {
                "machineType": machine,
                "acceleratorType": f"NVIDIA_TESLA_{gpu}",
                "acceleratorCount": count,
            }


@pytest.mark.parametrize("name", LEGACY_MACHINES)
def test_every_legacy_machine_migrates_with_the_gpus_that_it_brought(name: str) -> None:
    found = migrated(custom(name, ""))
    (pool,) = found.config["workerPoolSpecs"]
    assert name in texts(found, "changed", "masterType")
    gpu, count = LEGACY_GPUS.get(name, ("", 0))
    assert pool["machineSpec"].get("acceleratorCount", 0) == count
    if count:
        holds(found.plans["master"])
        assert (gpu in GONE) == (found.plans["master"].gpu.name == "l4")  # type: ignore[union-attr]
    else:
        assert not found.plans
        assert pool["machineSpec"]["machineType"] in load_catalog().machine_types


@pytest.mark.parametrize("name", LEGACY_MACHINES)
def test_a_legacy_machine_takes_no_accelerators_beside_its_own(name: str) -> None:
    assert f"masterType is {name}, which takes no acceleratorConfig" in refusal(custom(name, "T4"))


def test_a_refusal_names_the_nearest_that_the_table_has_and_the_limit_that_was_passed() -> None:
    said = refusal(custom("n1-standard-32", "V100", 2))
    assert "24 vCPUs" in said
    assert "n1-standard-32 with 4" in said
    assert "n1-highmem-16 with 2" in said
    assert "208 GB" in refusal(custom("n1-highmem-64", "P100", 4)), "the limit of the page's own"
    assert "n1-standard-8 with 4" in refusal(custom("n1-standard-8", "T4", 3))


def test_keep_refuses_what_is_gone_with_its_replacement() -> None:
    for gpu in GONE:
        said = refusal(custom("n1-standard-8", gpu), keep=True)
        assert f"{gpu.lower()} (" in said
        assert "l4" in said
    assert migrated(custom("n1-standard-8", "T4"), keep=True).plans["master"].spec == "t4:1"


def test_the_replacement_is_the_cheapest_with_the_memory_and_says_what_it_costs() -> None:
    from gpu_pipelines.accelerators.cost import estimate_cost

    found = migrated(custom("n1-standard-16", "P100", 4))
    chosen = found.plans["master"]
    said = texts(found, "changed", "acceleratorConfig")
    cost = estimate_cost(chosen)
    assert cost is not None
    assert cost.here is not None
    assert cost.here.on_demand is not None
    assert f"with {cost.here.on_demand:,.2f} USD per machine and hour" in said
    assert "2026-07-30" in said
    assert "300 GB/s, where p100 had 732 GB/s" in said
    # The next that it names costs more, and so does every other lasting GPU with the memory that can be had there.
    others = [gpu.name for gpu in load_catalog().gpus.values() if gpu.ends is None and gpu.memory_gb >= 16]
    assert "the next is v100:4" in said
    for name in others:
        if name in (chosen.gpu.name, "gb200") or 4 not in load_catalog().counts(name):  # type: ignore[union-attr]
            continue
        other = estimate_cost(plan(f"{name}:4", region="us-central1"))
        if other and other.here and other.here.on_demand:
            assert other.here.on_demand > cost.here.on_demand, name


def test_the_replacement_keeps_main_memory_where_its_gpu_can_have_it() -> None:
    machine = load_catalog().machine_types
    found = migrated(custom("n1-highmem-8", "K80", 1))
    assert machine[str(found.plans["master"].machine_type)].memory_gb >= 52
    found = migrated(custom("n1-highmem-32", "P100", 4))
    assert found.plans["master"].machine_type == "g2-standard-48"
    assert "192 GB, where n1-highmem-32 had 208 GB" in texts(found, "changed", "acceleratorConfig")


def test_a_cheaper_gpu_with_less_memory_is_not_taken(tmp_path: Path) -> None:
    """P4 has 8 GB and K80 had 12; it is made cheap here, where only T4 is left besides."""
    lines = (PACKAGED / "prices.csv").read_text().splitlines()
    cheap = [line if not line.startswith("p4,gpu,us-west2,") else "p4,gpu,us-west2,0.01,0.01,," for line in lines]
    assert cheap != lines
    (tmp_path / "prices.csv").write_text("\n".join(cheap) + "\n")
    found = migrated(custom("n1-standard-8", "K80", region="us-west2"), catalog=Catalog(tmp_path))
    assert found.plans["master"].spec == "t4:1"


def test_where_a_region_has_no_lasting_gpu_one_that_ends_is_taken_or_the_job_is_refused() -> None:
    found = migrated(custom("n1-standard-8", "K80", region="southamerica-east1"))
    assert found.plans["master"].spec == "t4:1"
    assert "ends on 2027-08-01" in texts(found, "warning")
    said = refusal(custom("n1-standard-8", "K80", region="europe-west9"))
    assert "europe-west9 has no l4" in said
    assert "--region europe-west1" in said


def test_gpus_of_several_types_must_share_a_zone_on_the_way_out() -> None:
    mixed = custom(
        "n1-standard-8",
        "K80",
        workerType="a2-highgpu-1g",
        workerCount=2,
        workerConfig={"acceleratorConfig": {"type": "NVIDIA_TESLA_A100", "count": 1}},
    )
    assert len(migrated({**mixed, "region": "us-central1"}).plans) == 2
    # The L4 that the K80 becomes is in us-west4-a and c, the A100 in b.
    said = refusal({**mixed, "region": "us-west4"})
    assert "No zone of us-west4 has a100 and l4" in said
    assert "They share a zone in us-" in said


def test_a2_machines_have_their_gpus_said_and_newer_ones_were_not_there() -> None:
    found = migrated(custom("a2-highgpu-4g", ""))
    assert found.config["workerPoolSpecs"][0]["machineSpec"]["acceleratorCount"] == 4
    assert "which Vertex AI wants said" in texts(found, "changed", "masterType")
    assert "did not have" in refusal(custom("a2-ultragpu-1g", ""))
    assert "did not have with GPUs" in refusal(custom("g2-standard-4", "T4"))
    assert "did not have" in refusal(custom("n1-standard-7", ""))


def test_small_machines_become_the_smallest_that_vertex_ai_takes() -> None:
    found = migrated(custom("n1-highcpu-8", ""))
    assert found.config["workerPoolSpecs"][0]["machineSpec"] == {"machineType": "n1-standard-8"}
    assert migrated(custom("e2-highcpu-16", "")).config["workerPoolSpecs"][0]["machineSpec"]["machineType"] == (
        "e2-highcpu-16"
    )
