"""Properties: no accepted plan breaks a rule, and every alternative that an error offers is accepted."""

from __future__ import annotations

import csv
from dataclasses import replace

from accelerator_facts import LEGACY_DAY, TODAY, legacy_cells, read_table
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_pipelines.accelerators import PlanError, PlanRequest, plan_request
from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.accelerators.catalog.loader import PACKAGED

CATALOG = load_catalog()
VALID_CELLS = {(machine, gpu, count) for machine, gpu, count, allowed in legacy_cells() if allowed} | {
    (row["machine_type"], row["gpu"], int(row["gpu_count"]))
    for row in read_table("machine_types.txt")
    if row["training"] == "yes"
}
FLEX_START = {"l4", "a100", "a100-80gb", "h100", "h100-mega", "h200", "b200"}

names = st.sampled_from(
    [*CATALOG.gpus, "NVIDIA_L4", "nvidia-tesla-t4", "rtx-4090", "rtx-5090", "gb300", "cpu", "h10", "x"]
)
specs = st.builds("{}:{}".format, names, st.one_of(st.sampled_from([1, 2, 4, 8, 16]), st.integers(-2, 40)))
regions = st.one_of(st.none(), st.sampled_from([*CATALOG.regions, "us-centra1", "mars"]))
zones = st.sampled_from(
    ["us-central1-a", "us-central1-f", "europe-west4-b", "europe-west2-a", "nowhere1-a", "us-east1-b"]
)
requests = st.builds(
    PlanRequest,
    spec=st.one_of(specs, specs, specs, st.text(max_size=12)),
    nodes=st.one_of(st.just(1), st.integers(-1, 1100)),
    region=regions,
    strategy=st.one_of(st.none(), st.sampled_from(["standard", "spot", "flex-start", "reservation", "flex", ""])),
    machine_type=st.one_of(
        st.none(),
        st.none(),
        st.sampled_from([*CATALOG.machine_types, *CATALOG.unusable_machine_types, "n1-standard-5"]),
    ),
    reservation=st.one_of(
        st.none(), st.none(), st.just("r"), st.builds("projects/p/zones/{}/reservations/r".format, zones)
    ),
    hours=st.one_of(st.none(), st.floats(-1, 9000), st.just(float("nan"))),
    memory_gb=st.one_of(st.none(), st.none(), st.floats(-1, 5000)),
)
days = st.sampled_from([TODAY, LEGACY_DAY])


def availability() -> dict[tuple[str, str], dict[str, str]]:
    with (PACKAGED / "availability.csv").open(newline="") as file:
        return {(row["gpu"], row["region"]): row for row in csv.DictReader(file)}


WHERE = availability()


def refusal(request: PlanRequest, day: object) -> PlanError | None:
    try:
        plan_request(request, today=day)  # type: ignore[arg-type]
    except PlanError as error:
        return error
    return None


def breaks(request: PlanRequest, day: object) -> list[str]:
    """The rules that an accepted request breaks, judged without the code that accepted it."""
    made = plan_request(request, today=day)  # type: ignore[arg-type]
    if made.is_local:
        return [] if made.nodes == 1 and 1 <= made.count <= 256 and not made.region else ["local"]
    gpu, count, machine = made.gpu.name, made.count, made.machine_type
    family = "n1" if machine.startswith("n1-") else "-".join(machine.split("-")[:2])
    broken = {
        "cell": (machine, gpu, count) not in VALID_CELLS,
        "count": made.count != int(request.spec.rpartition(":")[2]),
        "asked machine": request.machine_type not in (None, machine),
        "gone": (gpu == "k80" and day == TODAY) or (gpu == "p100" and day == TODAY),
        "nodes": not 1 <= made.nodes <= 1024,
        "memory": request.memory_gb is not None and made.machine.memory_gb < request.memory_gb,
        "flex-start": made.strategy == "flex-start" and (gpu not in FLEX_START or (made.hours or 0) > 168),
        "gb200": gpu == "gb200" and made.strategy != "reservation",
        "hours": made.hours is not None and not 1 / 3600 <= made.hours <= 8784,
        "reservation": made.reservation is not None and made.strategy != "reservation",
    }
    if made.region is not None and gpu != "k80":
        row = WHERE.get((gpu, made.region), {"machine_families": "", "zones": ""})
        broken["region"] = family not in row["machine_families"].split() or made.region == "europe-west10"
        broken["zones"] = not set(made.zones) <= set(row["zones"].split() or made.zones)
    return [rule for rule, is_broken in broken.items() if is_broken]


@settings(max_examples=400, deadline=None)
@given(request=requests, day=days)
def test_an_accepted_plan_keeps_every_rule_and_a_refusal_offers_what_is_accepted(
    request: PlanRequest, day: object
) -> None:
    error = refusal(request, day)
    if error is None:
        assert breaks(request, day) == []
        return
    assert error.problems
    for problem in error.problems:
        assert len(problem.message) < 400
        for alternative in problem.alternatives:
            assert breaks(alternative, day) == []


@settings(max_examples=200, deadline=None)
@given(cell=st.sampled_from(sorted(VALID_CELLS)), request=requests)
def test_one_wrong_field_always_has_a_way_out(cell: tuple[str, str, int], request: PlanRequest) -> None:
    machine, gpu, count = cell
    strategy = "reservation" if gpu == "gb200" else None
    valid = PlanRequest(f"{gpu}:{count}", machine_type=machine, strategy=strategy)
    for name in ("nodes", "region", "strategy", "hours", "memory_gb", "reservation"):
        spoilt = replace(valid, **{name: getattr(request, name)})
        error = refusal(spoilt, LEGACY_DAY)
        assert error is None or all(problem.alternatives for problem in error.problems), (spoilt, error)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_is_planned_or_refused(text: str) -> None:
    error = refusal(PlanRequest(text), TODAY)
    assert error is None or len(str(error)) < 500
