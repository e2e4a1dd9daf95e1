"""Every cell of the machine tables: a valid one plans, an invalid one is refused with alternatives that plan."""

from __future__ import annotations

import pytest
from accelerator_facts import LEGACY_DAY, TODAY, legacy_cells, read_table

from gpu_pipelines.accelerators import PlanError, load_catalog, plan, plan_request

CELLS = legacy_cells()


def test_the_table_has_all_its_cells() -> None:
    assert len({(machine, gpu) for machine, gpu, _, _ in CELLS}) == 22 * 6
    assert sum(allowed for *_, allowed in CELLS) == 185


@pytest.mark.parametrize("machine", sorted({cell[0] for cell in CELLS}))
def test_every_cell_of_the_ai_platform_table_on_a_day_when_all_were_there(machine: str) -> None:
    for name, gpu, count, allowed in CELLS:
        if name != machine:
            continue
        if allowed:
            made = plan(f"{gpu}:{count}", machine_type=name, today=LEGACY_DAY)
            assert (made.machine_type, made.gpu.name, made.count) == (name, gpu, count)
            continue
        with pytest.raises(PlanError) as caught:
            plan(f"{gpu}:{count}", machine_type=name, today=LEGACY_DAY)
        for problem in caught.value.problems:
            assert problem.alternatives, (name, gpu, count)
            for alternative in problem.alternatives:
                plan_request(alternative, today=LEGACY_DAY)


@pytest.mark.parametrize("gpu", ["k80", "p100"])
def test_what_is_gone_is_refused_in_every_cell_with_its_replacement(gpu: str) -> None:
    for name, of, count, allowed in CELLS:
        if of == gpu and allowed:
            with pytest.raises(PlanError, match="is gone: Google Cloud shut it down on 20") as caught:
                plan(f"{gpu}:{count}", machine_type=name, today=TODAY)
            (problem,) = caught.value.problems
            assert problem.alternatives[0].spec == f"l4:{count}"
            for alternative in problem.alternatives:
                plan_request(alternative, today=TODAY)


@pytest.mark.parametrize("row", read_table("machine_types.txt"), ids=lambda row: row["machine_type"])
def test_every_accelerator_optimized_machine(row: dict[str, str]) -> None:
    catalog = load_catalog()
    spec = f"{row['gpu']}:{row['gpu_count']}"
    strategy = "reservation" if row["gpu"] == "gb200" else None
    if row["training"] == "yes":
        made = plan(spec, machine_type=row["machine_type"], strategy=strategy, today=TODAY)
        assert made.machine_type == row["machine_type"]
        assert made.total_gpus == int(row["gpu_count"])
        for count in {1, 2, 3, 4, 5, 8, 16} - {int(row["gpu_count"])}:
            assert_refused_with_a_way_out(f"{row['gpu']}:{count}", row["machine_type"], strategy)
        for gpu in set(catalog.gpus) - {row["gpu"]}:
            assert_refused_with_a_way_out(f"{gpu}:{row['gpu_count']}", row["machine_type"], strategy)
    else:
        assert_refused_with_a_way_out(spec if "/" not in spec else "rtx-pro-6000:1", row["machine_type"], None)


def assert_refused_with_a_way_out(spec: str, machine_type: str, strategy: str | None) -> None:
    with pytest.raises(PlanError) as caught:
        plan(spec, machine_type=machine_type, strategy=strategy, today=TODAY)
    for problem in caught.value.problems:
        assert problem.alternatives, (spec, machine_type, problem)
        for alternative in problem.alternatives:
            plan_request(alternative, today=TODAY)
