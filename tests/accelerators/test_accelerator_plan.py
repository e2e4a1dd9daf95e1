"""What plan() chooses, refuses, explains and warns of."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from datetime import date

import pytest
from accelerator_facts import TODAY

from gpu_pipelines.accelerators import AcceleratorPlan, PlanError, plan, plan_request
from gpu_pipelines.errors import UserError

RESERVATION = "projects/my-project/zones/us-central1-a/reservations/training"


def refused(*args: object, **kwargs: object) -> PlanError:
    with pytest.raises(PlanError) as caught:
        plan(*args, today=TODAY, **kwargs)  # type: ignore[arg-type]
    for problem in caught.value.problems:
        for alternative in problem.alternatives:
            plan_request(alternative, today=TODAY)
    return caught.value


def codes(made: AcceleratorPlan) -> set[str]:
    return {warning.code for warning in made.warnings}


@pytest.mark.parametrize(
    ("spec", "machine"),
    [
        ("h100:8", "a3-highgpu-8g"),
        ("h100:1", "a3-highgpu-1g"),
        ("h100-mega:8", "a3-megagpu-8g"),
        ("h200:8", "a3-ultragpu-8g"),
        ("b200:8", "a4-highgpu-8g"),
        ("a100:16", "a2-megagpu-16g"),
        ("a100-80gb:4", "a2-ultragpu-4g"),
        ("rtx-pro-6000:2", "g4-standard-96"),
        # Main memory as large as the GPUs', and two vCPUs for each: not simply the smallest that has the GPUs.
        ("l4:1", "g2-standard-8"),
        ("l4:4", "g2-standard-48"),
        ("t4:1", "n1-highmem-4"),
        ("t4:4", "n1-highmem-16"),
        ("v100:8", "n1-highmem-32"),
        ("p4:1", "n1-highmem-2"),
    ],
)
def test_the_smallest_machine_that_fits_is_taken_and_explained(spec: str, machine: str) -> None:
    made = plan(spec, today=TODAY)
    assert made.machine_type == machine
    assert machine in made.reasons[0]


def test_more_main_memory_takes_a_larger_machine() -> None:
    made = plan("l4:1", memory_gb=100, today=TODAY)
    assert made.machine_type == "g2-standard-32"
    assert "as asked" in made.reasons[0]
    # With less memory asked for, each GPU still gets two vCPUs.
    assert plan("p4:4", memory_gb=10, today=TODAY).machine_type == "n1-standard-8"
    assert refused("l4:1", memory_gb=1000).problems[0].field == "memory_gb"


@pytest.mark.parametrize("name", ["h100", "H100", "NVIDIA_H100_80GB", "nvidia-h100-80gb", "h100-80gb", " h100 "])
def test_a_gpu_has_several_names(name: str) -> None:
    assert plan(f"{name}:8", today=TODAY).accelerator_type == "NVIDIA_H100_80GB"


def test_a_plan_says_what_is_to_be_rendered() -> None:
    made = plan("h100:8", nodes=4, region="us-central1", strategy="spot", hours=24, today=TODAY)
    assert made.to_json() == {
        "spec": "h100:8",
        "nodes": 4,
        "total_gpus": 32,
        "local": False,
        "machine_type": "a3-highgpu-8g",
        "accelerator_type": "NVIDIA_H100_80GB",
        "accelerator_count": 8,
        "vcpus": 208,
        "memory_gb": 1872.0,
        "gpu_memory_gb": 80,
        "local_ssd_gb": 6000,
        "network_gbps": 1000,
        "host_architecture": "amd64",
        "boot_disk_type": "pd-ssd",
        "strategy": "spot",
        "scheduling_strategy": "SPOT",
        "reservation_affinity": None,
        "region": "us-central1",
        "zones": ["us-central1-a", "us-central1-b", "us-central1-c"],
        "regions": list(made.regions),
        "hours": 24,
        "max_hours": None,
        "quota_metric": "aiplatform.googleapis.com/custom_model_training_preemptible_nvidia_h100_gpus",
        "compute_engine_name": "nvidia-h100-80gb",
        "gke_label": "nvidia-h100-80gb",
        "precision": "bf16",
        "reasons": ["a3-highgpu-8g is the machine with 8 × h100."],
        "warnings": [],
    }
    assert "us-central1" in made.regions
    assert "europe-west2" not in made.regions
    assert len({made, plan("h100:8", nodes=4, region="us-central1", strategy="spot", hours=24, today=TODAY)}) == 1
    with pytest.raises(FrozenInstanceError):
        made.nodes = 5  # type: ignore[misc]


def test_flex_start_draws_on_the_quota_of_spot_and_ends_after_seven_days() -> None:
    made = plan("l4:4", strategy="flex-start", today=TODAY)
    assert made.scheduling_strategy == "FLEX_START"
    assert made.quota_metric == "aiplatform.googleapis.com/custom_model_training_preemptible_nvidia_l4_gpus"
    assert made.max_hours == 168
    assert plan("l4:4", today=TODAY).quota_metric == "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"


@pytest.mark.parametrize("gpu", ["t4:4", "v100:8", "p4:1", "rtx-pro-6000:1", "gb200:4"])
def test_flex_start_does_not_take_every_gpu(gpu: str) -> None:
    (problem,) = refused(gpu, strategy="flex-start").problems
    assert problem.field == "strategy"
    assert "Flex-start takes b200, h200, h100-mega, h100, a100-80gb, a100 or l4" in problem.message
    assert problem.alternatives


@pytest.mark.parametrize("gpu", ["b200:8", "h200:8", "h100-mega:8", "h100:8", "a100-80gb:1", "a100:16", "l4:1"])
def test_flex_start_takes_these(gpu: str) -> None:
    assert plan(gpu, strategy="flex-start", today=TODAY).strategy == "flex-start"


def test_flex_start_is_not_for_more_than_a_week() -> None:
    (problem,) = refused("l4:1", strategy="flex-start", hours=169).problems
    assert problem.field == "hours"
    assert plan("l4:1", strategy="flex-start", hours=168, today=TODAY).hours == 168


def test_a_named_reservation_is_the_strategy_and_the_place() -> None:
    made = plan("h100:8", reservation=RESERVATION, today=TODAY)
    assert (made.strategy, made.region, made.zones) == ("reservation", "us-central1", ("us-central1-a",))
    assert made.scheduling_strategy == "STANDARD"
    assert made.reservation_affinity == {
        "reservationAffinityType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [RESERVATION],
    }
    anything = plan("h100:8", strategy="reservation", today=TODAY)
    assert anything.reservation_affinity == {"reservationAffinityType": "ANY_RESERVATION"}


@pytest.mark.parametrize("strategy", ["spot", "flex-start", "standard"])
def test_a_reservation_goes_with_no_other_strategy(strategy: str) -> None:
    (problem,) = refused("h100:8", reservation=RESERVATION, strategy=strategy).problems
    assert problem.field == "strategy"
    assert {a.chosen_strategy for a in problem.alternatives} >= {"reservation", strategy}


@pytest.mark.parametrize(
    ("reservation", "message"),
    [
        ("training", "not the full name"),
        ("projects/p/zones/us-central1/reservations/r", "not the full name"),
        ("projects/p/zones/us-central1-f/reservations/r", "us-central1-f has no h100"),
        ("projects/p/zones/europe-west2-a/reservations/r", "europe-west2 has h100 only on a3-edgegpu"),
        ("projects/p/zones/mars-north1-a/reservations/r", "No region 'mars-north1'"),
    ],
)
def test_a_wrong_reservation_is_refused(reservation: str, message: str) -> None:
    error = refused("h100:8", reservation=reservation)
    assert message in str(error)
    assert all(problem.alternatives for problem in error.problems)


def test_a_reservation_in_another_region_is_refused() -> None:
    (problem,) = refused("h100:8", reservation=RESERVATION, region="europe-west4").problems
    assert "is in us-central1-a, not in the region 'europe-west4'" in problem.message
    assert problem.alternatives[0].region == "us-central1"


def test_gb200_is_had_by_reservation_only_and_needs_an_arm_image() -> None:
    (problem,) = refused("gb200:4").problems
    assert [alternative.command() for alternative in problem.alternatives] == ["gb200:4 --strategy reservation"]
    made = plan("gb200:4", strategy="reservation", today=TODAY)
    assert made.machine.host_architecture == "arm64"
    assert {"arm64", "cuda", "unverified"} <= codes(made)


@pytest.mark.parametrize("spec", ["h100:1", "h100:2", "h100:4", "h200:8", "b200:8"])
def test_what_compute_engine_does_not_sell_on_demand_is_warned_of_not_refused(spec: str) -> None:
    assert "contested" in codes(plan(spec, today=TODAY))
    assert "contested" not in codes(plan(spec, strategy="spot", today=TODAY))


@pytest.mark.parametrize("spec", ["h200:8", "b200:8", "gb200:4"])
def test_hyperdisk_machines_do_not_get_pd_ssd(spec: str) -> None:
    made = plan(spec, strategy="reservation", today=TODAY)
    assert made.boot_disk_type == "hyperdisk-balanced"
    assert any("hyperdisk-balanced" in reason for reason in made.reasons)


def test_the_end_of_a_gpu_is_warned_of_and_then_holds() -> None:
    made = plan("t4:1", today=TODAY)
    assert "Support of t4 ends on 2027-08-01, in 254 days" in " ".join(w.message for w in made.warnings)
    plan("t4:1", today=date(2027, 7, 31))
    with pytest.raises(PlanError, match=r"t4 .* is gone") as caught:
        plan("t4:1", today=date(2027, 8, 1))
    assert caught.value.problems[0].alternatives[0].spec == "l4:1"


@pytest.mark.parametrize(
    ("spec", "precision", "warned"),
    [
        ("l4:1", "bf16", set()),
        ("v100:1", "fp16", {"bf16", "cuda"}),
        ("t4:1", "fp16", {"bf16"}),
        ("p4:1", "fp32", {"bf16", "cuda"}),
    ],
)
def test_precision_and_software_of_older_gpus(spec: str, precision: str, warned: set[str]) -> None:
    made = plan(spec, today=TODAY)
    assert made.precision == precision
    assert codes(made) & {"bf16", "cuda"} == warned


@pytest.mark.parametrize("name", ["rtx4090", "RTX 4090", "geforce-rtx-4090", "4090"])
def test_a_consumer_card_gets_what_to_take_side_by_side(name: str) -> None:
    error = refused(f"{name}:4")
    (problem,) = error.problems
    assert [alternative.command() for alternative in problem.alternatives] == ["l4:4", "a100:4"]
    assert [(line.name, line.memory_gb, line.memory_bandwidth_gb_s) for line in problem.comparison] == [
        ("rtx-4090", 24, 1008),
        ("l4", 24, 300),
        ("a100", 40, 1555),
    ]
    for figure in ("24 GB", "1008 GB/s", "165.2 bf16 TFLOP/s", "121 bf16 TFLOP/s", "less bandwidth and bf16 speed"):
        assert figure in str(error)


@pytest.mark.parametrize("name", ["rtx-5090", "rtx-3090", "rtx-4080", "a6000", "l40s", "a10g", "gb300"])
def test_other_cards_have_a_substitute_too(name: str) -> None:
    (problem,) = refused(f"{name}:1").problems
    assert problem.alternatives
    asked, *instead = problem.comparison
    assert instead
    if name != "gb300":
        assert all(line.memory_gb >= asked.memory_gb for line in instead)
        assert instead[-1].why == "at least its memory, bandwidth and bf16 speed"


@pytest.mark.parametrize(
    "said", ["8xh100", "8 x H100", "8h100", "h100x8", "h100-8", "h100 8", "h100,8", "nvidia-h100-80gb=8"]
)
def test_another_form_of_a_specification_is_understood(said: str) -> None:
    (problem,) = refused(said).problems
    assert problem.alternatives[0].spec == "h100:8"


def test_a_name_that_ends_in_a_number_is_no_other_form() -> None:
    assert refused("a100-80").problems[0].alternatives[0].spec == "a100-80gb:1"


def test_all_problems_are_reported_at_once() -> None:
    error = refused("h100:3", region="europe-west2", strategy="flexstart", nodes=0, hours=-1)
    assert [problem.field for problem in error.problems] == ["count", "nodes", "hours", "strategy", "region"]
    assert all(problem.alternatives for problem in error.problems)
    assert isinstance(error, UserError)


def test_a_refusal_comes_whole_from_another_process() -> None:
    error = refused("h1000:8", nodes=0)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (PlanError, str(error))
    assert (again.problems, again.request) == (error.problems, error.request)


def test_more_than_a_machine_has_becomes_several_machines() -> None:
    (problem,) = refused("h100:16").problems
    assert problem.alternatives[0].command() == "h100:8 --nodes 2"


@pytest.mark.parametrize(
    ("spec", "region", "nearest"),
    [
        ("h100:8", "europe-west2", "europe-west1"),
        ("a100:16", "us-east1", "us-central1"),
        ("b200:8", "asia-northeast3", "asia-northeast1"),
    ],
)
def test_a_region_without_the_gpu_gets_the_nearest_with_it(spec: str, region: str, nearest: str) -> None:
    (problem,) = refused(spec, region=region).problems
    assert problem.field == "region"
    assert problem.alternatives[0].region == nearest


def test_regions_of_vertex_training_are_checked() -> None:
    (problem,) = refused("rtx-pro-6000:1", region="europe-west10").problems
    assert "Vertex AI training does not run in europe-west10" in problem.message
    assert "unverified" in codes(plan("h100:8", region="asia-south2", today=TODAY))
    (problem,) = refused("l4:1", region="us-centrall1").problems
    assert "Did you mean 'us-central1'?" in problem.message


def test_an_alternative_can_be_pasted_into_a_shell() -> None:
    (problem,) = refused("rtx pro 6000 : 2", region="europe-west10").problems
    assert problem.alternatives[0].command() == "'rtx pro 6000 : 2' --region europe-west4"
    assert len(str(refused("cpu:2", region="x" * 10_000))) < 300


def test_cpu_is_for_this_machine_only() -> None:
    made = plan("cpu:2")
    assert made.is_local
    assert made.total_gpus == 0
    assert made.to_json()["machine_type"] is None
    error = refused("cpu:2", nodes=2, region="us-central1", strategy="spot", machine_type="g2-standard-8")
    assert [problem.field for problem in error.problems] == ["nodes", "region", "strategy", "machine_type"]
    assert refused("cpu:0").problems[0].alternatives[0].spec == "cpu:1"


@pytest.mark.parametrize(
    "spec",
    [
        "banana:3",
        "h100:-1",
        "h100:9999999999",
        "",
        "h" * 10_000,
        "h100:" + "8" * 10_000,
        "h100:8:8",
        ":",
        "h100:",
        ":8",
    ],
)
def test_nonsense_gets_one_short_message(spec: str) -> None:
    error = refused(spec)
    assert len(error.problems) == 1
    assert len(str(error)) < 400
    assert "\n" not in error.problems[0].message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodes", 0),
        ("nodes", -3),
        ("nodes", 10**9),
        ("hours", 0.0),
        ("hours", 0.0001),
        ("hours", float("nan")),
        ("hours", float("inf")),
        ("memory_gb", -1.0),
        ("memory_gb", float("nan")),
        ("strategy", "x" * 5000),
        ("region", "x" * 5000),
        ("machine_type", "x" * 5000),
        ("reservation", "x" * 5000),
    ],
)
def test_nonsense_in_a_field_is_refused_shortly(field: str, value: object) -> None:
    error = refused("l4:1", **{field: value})
    assert [problem.field for problem in error.problems] == [field]
    assert error.problems[0].alternatives
    assert len(str(error)) < 400
