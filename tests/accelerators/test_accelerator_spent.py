"""What machines that ran have cost, by the catalog's own prices."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.accelerators.spent import Billed, MachineTime, Planned, dollars, spent_on

L4 = MachineTime("train-model", "1", "g2-standard-8", "l4", 1, 1, 3600.0, "standard", "us-central1")


def price(machine: str, region: str, kind: str) -> float:
    return float(getattr(load_catalog().prices[(machine, "machine", region)], kind))


def test_hours_times_prices_of_how_they_were_bought_over_tries_and_machines() -> None:
    tries = [
        replace(L4, seconds=1800.0, strategy="spot", machines=4),
        replace(L4, seconds=900.0, strategy="standard", machines=4),
        replace(L4, seconds=0.0),
    ]
    spent = spent_on(tries)
    hour = price("g2-standard-8", "us-central1", "spot"), price("g2-standard-8", "us-central1", "on_demand")
    assert spent.usd == pytest.approx(4 * (0.5 * hour[0] + 0.25 * hour[1]))
    assert hour[0] < hour[1]
    assert spent.hours == pytest.approx(3.0)
    assert len(spent.lines) == 2, "one that never ran has cost nothing"
    assert spent.as_of.startswith("2026-")
    assert spent.told.startswith(f"cost: {dollars(spent.usd)} for 3.00 machine hours (list prices of 2026-")


def test_a_machine_with_attached_gpus_is_the_sum_of_its_parts() -> None:
    catalog = load_catalog()
    per_hour = (
        8 * catalog.prices[("n1", "vcpu", "us-central1")].on_demand
        + 30 * catalog.prices[("n1", "memory_gb", "us-central1")].on_demand
        + 2 * catalog.prices[("t4", "gpu", "us-central1")].on_demand
    )
    spent = spent_on([replace(L4, machine="n1-standard-8", gpu="t4", gpus=2)])
    assert spent.usd == pytest.approx(per_hour)


def test_what_has_no_price_is_said_and_never_counted_as_nothing() -> None:
    unknown = replace(L4, step="prepare-data", machine="e2-standard-4", gpu="", gpus=0)
    spent = spent_on([L4, unknown, replace(unknown, step="upload-model", machine="")])
    assert spent.without_price == ["prepare-data", "upload-model"]
    assert "cost: at least $0.85 for 3.00 machine hours" in spent.told
    assert "without prepare-data, upload-model, of unknown price" in spent.told
    assert [line.usd for line in spent.lines][1:] == [None, None]
    assert spent_on([replace(L4, region="mars-east1")]).lines[0].why == "no price is known in mars-east1"


def test_machines_that_are_paid_otherwise_say_so() -> None:
    free, flex, reserved = spent_on(
        [
            replace(L4, free="of the persistent resource pool-1"),
            *(replace(L4, strategy=s) for s in ("flex-start", "reservation")),
        ]
    ).lines
    assert (free.usd, free.why) == (0.0, "of the persistent resource pool-1")
    assert flex.usd == pytest.approx(price("g2-standard-8", "us-central1", "on_demand"))
    assert "which Flex-start is below" in flex.why
    assert "whether it is used or not" in reserved.why


def test_it_stands_beside_what_was_planned_and_what_was_billed() -> None:
    spent = replace(spent_on([L4], planned={"train-model": Planned(0.85, 12.0)}), billed=Billed(0.61, "EUR", "", "a=b"))
    assert spent.told.endswith("; $10.20 at most was planned")
    figures = spent.figures()
    assert figures["planned_usd_at_most"] == 10.2
    assert figures["billed_eur"] == 0.61
    assert json.loads(json.dumps(spent.to_json()))["planned"]["train-model"]["at_most"] == pytest.approx(10.2)
    assert replace(spent, planned={"train-model": Planned(0.85, None)}).at_most is None
    assert spent.billed
    assert "nothing yet for a=b" in spent.billed.told


def test_tries_in_several_regions_add_up() -> None:
    regions = ("us-central1", "europe-west4")
    whole = spent_on([replace(L4, region=region) for region in regions])
    assert whole.usd == pytest.approx(sum(spent_on([replace(L4, region=region)]).usd for region in regions))


def test_little_is_not_nothing() -> None:
    assert [dollars(each) for each in (0.0, 0.0123, 0.1, 1234.5)] == ["$0.00", "$0.0123", "$0.10", "$1,234.50"]
