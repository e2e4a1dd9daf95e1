"""What plans cost, checked against the list prices written out here."""

from __future__ import annotations

import pytest
from accelerator_facts import TODAY

from gpu_pipelines.accelerators import load_catalog, plan
from gpu_pipelines.accelerators.cost import LEFT_OUT, estimate_cost

# Compute Engine list prices of 2026-07-30, USD per hour: on demand, Spot.
LIST = {
    ("a100:1", "us-central1"): (3.673385, 1.92802),
    ("a100-80gb:4", "us-east5"): (22.25966, 7.11139),
    ("a100:16", "europe-west4"): (56.62656, 25.57624),
    ("h100:8", "asia-east1"): (102.35878, 47.998309),
    ("l4:8", "europe-west3"): (9.432216, 5.6592),
    ("rtx-pro-6000:4", "europe-west4"): (19.799692, 7.92),
}


@pytest.mark.parametrize(("spec", "region"), sorted(LIST))
def test_a_machine_costs_its_list_price(spec: str, region: str) -> None:
    cost = estimate_cost(plan(spec, region=region, today=TODAY))
    assert (cost.here.on_demand, cost.here.spot) == LIST[spec, region]
    assert cost.as_of.isoformat() == "2026-07-30"
    assert cost.undated == ()


@pytest.mark.parametrize(
    ("region", "on_demand", "spot"),
    [("us-central1", 0.539999, 0.24201), ("us-east4", 0.583985, 0.219155), ("asia-southeast1", 0.604386, 0.211445)],
)
def test_an_n1_machine_is_the_sum_of_its_parts(region: str, on_demand: float, spot: float) -> None:
    cost = estimate_cost(plan("t4:1", machine_type="n1-standard-4", region=region, today=TODAY))
    assert cost.here.on_demand == pytest.approx(on_demand, abs=1e-5)
    assert cost.here.spot == pytest.approx(spot, abs=1e-5)
    assert cost.undated == ("skypilot",)


def test_nodes_and_hours_multiply() -> None:
    one = estimate_cost(plan("l4:1", region="us-central1", today=TODAY), hours=1)
    many = estimate_cost(plan("l4:1", nodes=3, region="us-central1", today=TODAY), hours=10)
    assert many.here.on_demand == pytest.approx(3 * one.here.on_demand)
    assert many.total(many.here) == pytest.approx(30 * one.total(one.here))
    spot = estimate_cost(plan("l4:1", nodes=3, region="us-central1", strategy="spot", hours=10, today=TODAY))
    assert spot.total(spot.here) == pytest.approx(10 * spot.here.spot)


def test_regions_are_listed_the_cheapest_first_by_the_price_that_counts() -> None:
    for strategy in ("standard", "spot"):
        cost = estimate_cost(plan("l4:1", strategy=strategy, today=TODAY))
        prices = [cost.per_hour(price) for price in cost.regions]
        assert len(prices) > 10
        assert prices == sorted(prices)


def test_what_is_not_verified_or_not_known_says_so() -> None:
    assert estimate_cost(plan("b200:8", today=TODAY)).regions[0].unverified
    assert not estimate_cost(plan("a100:1", today=TODAY)).regions[0].unverified
    unknown = estimate_cost(plan("gb200:4", strategy="reservation", today=TODAY))
    assert unknown.regions == ()
    assert unknown.as_of is None
    assert "management fee" in " ".join(LEFT_OUT)
    assert estimate_cost(plan("cpu:2")) is None


def test_rejected_on_demand_prices_stay_unknown() -> None:
    europe = load_catalog().prices["a3-ultragpu-8g", "machine", "europe-west4"]
    assert europe.on_demand is None
    assert europe.spot
    cost = estimate_cost(plan("h200:8", region="europe-west4", hours=5, today=TODAY))
    assert cost.total(cost.here) is None
    assert cost.to_json()["here"]["on_demand_per_hour"] is None
