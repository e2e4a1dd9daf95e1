"""Several GPU types in one job must share a zone."""

from __future__ import annotations

import pytest
from accelerator_facts import LEGACY_DAY, TODAY

from gpu_pipelines.accelerators import PlanError, load_catalog, plan
from gpu_pipelines.accelerators.together import share_zone


def test_types_that_share_a_zone_are_accepted_with_that_zone() -> None:
    placed = share_zone([plan("h100:8", region="us-central1"), plan("b200:8", region="us-central1")])
    assert placed.zones == ("us-central1-b",)
    assert placed.region == "us-central1"


def test_types_that_share_no_zone_are_refused_with_the_zones_that_would_work() -> None:
    with pytest.raises(PlanError) as caught:
        share_zone([plan("h200:8", region="asia-south1"), plan("h100:8", region="asia-south1")])
    (problem,) = caught.value.problems
    assert "No zone of asia-south1 has h100 and h200 (h100: asia-south1-c; h200: asia-south1-b)" in problem.message
    assert "europe-west1 (europe-west1-b)" in problem.message
    share_zone([plan("h200:8", region="europe-west1"), plan("h100:8", region="europe-west1")])


def test_the_case_of_the_ai_platform_page() -> None:
    pools = [plan(spec, region="us-central1", today=LEGACY_DAY) for spec in ("t4:4", "p100:4", "v100:8")]
    assert share_zone(pools).zones == ("us-central1-c", "us-central1-f")
    pools.append(plan("h200:8", region="us-central1", today=LEGACY_DAY))
    with pytest.raises(PlanError, match="No zone of us-central1 has h200 and p100 and t4 and v100"):
        share_zone(pools)


def test_every_region_that_is_offered_works() -> None:
    names = [gpu for gpu in load_catalog().gpus if gpu not in ("k80", "p100", "gb200")]
    pairs = [(a, b) for a in names for b in names if a < b]
    offered = 0
    for a, b in pairs:
        specs = [f"{name}:{load_catalog().counts(name)[0]}" for name in (a, b)]
        try:
            regions = share_zone([plan(spec, today=TODAY) for spec in specs]).regions
        except PlanError:
            continue
        for region in regions:
            offered += 1
            assert share_zone([plan(spec, region=region, today=TODAY) for spec in specs]).zones
    assert offered > 100


def test_pools_in_two_regions_are_refused() -> None:
    with pytest.raises(PlanError, match="in one region, not in us-central1 and us-east4"):
        share_zone([plan("h100:8", region="us-central1"), plan("l4:1", region="us-east4")])


def test_unknown_zones_are_warned_of() -> None:
    placed = share_zone([plan("l4:1", region="us-central1"), plan("rtx-pro-6000:1", region="us-central1")])
    assert placed.zones == ()
    assert "rtx-pro-6000 is not known" in placed.warnings[0].message
    assert "rtx-pro-6000 is not known" in share_zone([plan("l4:1"), plan("rtx-pro-6000:1")]).warnings[0].message


def test_types_that_share_no_zone_anywhere_are_refused() -> None:
    with pytest.raises(PlanError, match="No region has a100-80gb and h200 and p4 and v100 in one zone"):
        share_zone([plan(spec, today=TODAY) for spec in ("h200:8", "p4:1", "v100:1", "a100-80gb:1")])


def test_flex_start_takes_one_machine_in_every_pool() -> None:
    same = [plan("l4:4", strategy="flex-start", region="us-central1", today=TODAY)] * 2
    assert share_zone(same).zones
    with pytest.raises(PlanError, match="Flex-start needs the same machine in every pool"):
        share_zone([same[0], plan("l4:8", region="us-central1", today=TODAY)])


def test_cpu_is_no_pool_of_a_job() -> None:
    with pytest.raises(PlanError, match="this machine only"):
        share_zone([plan("cpu:2"), plan("l4:1", today=TODAY)])
    assert share_zone([plan("cpu:2")]).regions == ()
