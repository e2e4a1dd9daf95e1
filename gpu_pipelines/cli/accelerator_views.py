"""The output of the accelerators commands: each view is a document (printed by `--json`), and a table of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_pipelines.accelerators.cost import LEFT_OUT, estimate_cost
from gpu_pipelines.accelerators.plan import AcceleratorPlan, PlanError, Problem, plan_request
from gpu_pipelines.accelerators.request import STRATEGIES, PlanRequest
from gpu_pipelines.terminal import Column, Table, wrapped

CHEAPEST = 5


def plans(requests: Sequence[PlanRequest]) -> dict[str, Any]:
    """The plans of a job's worker pools, their costs, and the zones that they share.

    Raises:
        PlanError: lists all problems of all plans.
    """
    made: list[AcceleratorPlan] = []
    problems: list[Problem] = []
    for request in requests:
        try:
            made.append(plan_request(request))
        except PlanError as error:
            problems.extend(error.problems)
    if problems:
        raise PlanError(problems)
    document: dict[str, Any] = {"plans": []}
    for each in made:
        cost = estimate_cost(each)
        document["plans"].append({**each.to_json(), "cost": cost.to_json() if cost else None})
    if len(made) > 1:
        from gpu_pipelines.accelerators.together import share_zone

        placed = share_zone(made)
        document["together"] = {
            "region": placed.region,
            "zones": list(placed.zones),
            "regions": list(placed.regions),
            "warnings": [vars(warning).copy() for warning in placed.warnings],
        }
    return document


def draw_plans(document: dict[str, Any]) -> None:
    """Prints plans as text. Without rich, because this command has to be quick."""
    for each in document["plans"]:
        _draw_plan(each)
    together = document.get("together")
    if together:
        where = ", ".join(together["zones"]) or f"one zone in {', '.join(together['regions']) or 'a region'}"
        print(f"together: {where}")
        _draw_warnings(together["warnings"])


def _draw_plan(each: dict[str, Any]) -> None:
    if each["local"]:
        print(f"{each['spec']}: {each['reasons'][0]}")
        return
    total = f", {each['total_gpus']} GPUs in all" if each["nodes"] > 1 else ""
    print(f"{each['spec']}: {each['nodes']} × {each['machine_type']}{total}")
    network = f", network {each['network_gbps']:,} Gbit/s" if each["network_gbps"] else ""
    lines = {
        "GPU": f"{each['accelerator_count']} × {each['accelerator_type']}, {each['gpu_memory_gb']} GB each",
        "machine": f"{each['vcpus']} vCPUs, {each['memory_gb']:,g} GB, {each['host_architecture']}{network}",
        "boot disk": each["boot_disk_type"],
        "strategy": each["strategy"] + (f", {each['hours']:g} hours at most" if each["hours"] else ""),
        "region": _region_line(each),
        "precision": each["precision"],
        "quota": f"{each['total_gpus']} of {each['quota_metric']}",
    }
    for name, text in lines.items():
        print(wrapped(text, f"  {name:<10} "))
    for reason in each["reasons"]:
        print(wrapped(reason, f"  {'why':<10} "))
    _draw_cost(each["cost"], each["region"])
    _draw_warnings(each["warnings"])


def _region_line(each: dict[str, Any]) -> str:
    if each["region"]:
        return f"{each['region']} (zones: {', '.join(each['zones']) or 'not known'})"
    return f"open; Compute Engine has it in {', '.join(each['regions']) or 'no known region'}"


def _draw_cost(cost: dict[str, Any] | None, region: str | None) -> None:
    if cost is None:
        return
    if not cost["regions"]:
        print(f"  {'cost':<10} no price is known")
        return
    lines = [cost["here"], *cost["regions"]] if cost["here"] else cost["regions"]
    unique = {line["region"]: line for line in lines}
    print(f"  {'cost':<10} {'region':<24} {'on demand/h':>12} {'spot/h':>12}" + _total_heading(cost))
    for line in list(unique.values())[:CHEAPEST]:
        figures = "".join(f" {_usd(line[kind]):>12}" for kind in ("on_demand_per_hour", "spot_per_hour"))
        total = f" {_usd(line['total']):>14}" if cost["hours"] else ""
        print(f"  {'':<10} {line['region']:<24}{figures}{total}{'  unverified' if line['unverified'] else ''}")
    if region and not cost["here"]:
        print(f"  {'':<10} no price is known for {region}")
    undated = f" and an undated one ({', '.join(cost['undated_sources'])})" if cost["undated_sources"] else ""
    told = f"USD, list prices of {cost['as_of'] or 'unknown date'}{undated}; left out: {', '.join(LEFT_OUT)}."
    print(wrapped(told, " " * 13))


def _total_heading(cost: dict[str, Any]) -> str:
    if not cost["hours"]:
        return ""
    which = "spot" if cost["strategy"] == "spot" else "on demand"
    return f" {cost['hours']:g} h {which}".rjust(15)


def _draw_warnings(warnings: Sequence[dict[str, Any]]) -> None:
    for warning in warnings:
        print(wrapped(warning["message"], f"  {'warning':<10} "))


def draw_gpu_list(document: dict[str, Any]) -> None:
    """Prints the list of GPUs as a table."""
    table = Table(
        "GPU",
        Column("product", spare=3),
        Column.number("GB"),
        Column.number("GB/s", spare=4),
        Column.number("bf16 TFLOP/s", spare=2),
        "per machine",
        Column.number("regions", spare=1),
        Column.number("USD/GPU h"),
        Column.number("spot"),
        Column.text(""),
    )
    for gpu in document["gpus"]:
        ends = f"{'ended' if gpu['status'] == 'gone' else 'ends'} {gpu['ends']}: {' or '.join(gpu['replacements'])}"
        table.add_row(
            gpu["name"],
            gpu["product"],
            str(gpu["memory_gb"]),
            f"{gpu['memory_bandwidth_gb_s']:,}",
            f"{gpu['bf16_tflops']:,g}" if gpu["bf16_tflops"] else "–",
            ", ".join(map(str, gpu["counts"])),
            str(len(gpu["regions"])),
            _usd(gpu["cheapest_on_demand_per_gpu_hour"]),
            _usd(gpu["cheapest_spot_per_gpu_hour"]),
            ends if gpu["ends"] else "",
        )
    table.print()
    print(wrapped(f"Cheapest region, with the GPU's share of its machine. Left out: {', '.join(LEFT_OUT)}."))


def draw_gpu_details(gpu: dict[str, Any]) -> None:
    """Prints one GPU."""
    print(f"{gpu['name']}: {gpu['product']} ({gpu['accelerator_type']})")
    unverified = set(gpu["unverified"])
    facts = {
        "status": gpu["status"] + (f", {gpu['ends']}; take {' or '.join(gpu['replacements'])}" if gpu["ends"] else ""),
        "memory_gb": f"{gpu['memory_gb']} GB",
        "memory_bandwidth_gb_s": f"{gpu['memory_bandwidth_gb_s']:,} GB/s",
        "bf16_tflops": f"{gpu['bf16_tflops']:,g} TFLOP/s dense" if gpu["bf16_tflops"] else "none",
        "fp16_tflops": f"{gpu['fp16_tflops']:,g} TFLOP/s dense" if gpu["fp16_tflops"] else "no tensor cores",
        "fp32_tflops": f"{gpu['fp32_tflops']:g} TFLOP/s",
        "compute_capability": f"{gpu['compute_capability']} ({gpu['architecture']})",
        "nvlink": "yes" if gpu["nvlink"] else "no",
        "min_cuda": f"{gpu['min_cuda']} to {gpu['last_cuda'] or 'current'}",
        "pytorch": gpu["pytorch"],
        "compute_engine_name": gpu["compute_engine_name"],
        "gke_label": gpu["gke_label"],
        "training_quota": gpu["training_quota"],
        "spot_quota": gpu["spot_quota"],
    }
    renamed = {"training_quota": "training_metric", "spot_quota": "spot_metric"}
    for name, text in facts.items():
        mark = "  (unverified)" if renamed.get(name, name) in unverified else ""
        print(wrapped(f"{text}{mark}", f"  {name.replace('_', ' '):<22} "))
    _draw_machines(gpu)
    for region, zones in gpu["zones"].items():
        print(wrapped(", ".join(zones) or "zones not known", f"  {region:<24} "))
    for source in gpu["sources"]:
        print(wrapped(f"source: {source['what']}, {source['where']} ({source['as_of'] or 'no date'})", "  ", "    "))


def _draw_machines(gpu: dict[str, Any]) -> None:
    table = Table(
        "machine", "GPUs", Column.number("vCPUs"), Column.number("GB"), *STRATEGIES, Column("boot disk", spare=1)
    )
    for machine in gpu["machines"]:
        table.add_row(
            machine["machine_type"],
            ", ".join(map(str, machine["counts"])),
            str(machine["vcpus"]),
            f"{machine['memory_gb']:,g}",
            *machine["strategies"].values(),
            machine["boot_disk"],
        )
    table.print()


def draw_advice(document: dict[str, Any], top: int) -> None:
    """Prints the ranked options, the memory of the first, and why other GPUs will not do."""
    options = document["options"]
    table = Table(
        Column.number(""),
        "plan",
        Column("machine", spare=2),
        Column("precision", spare=4),
        Column("parallelism", spare=5),
        Column.number("batch"),
        Column("GB/GPU", spare=3),
        Column.number("hours"),
        Column("limit", spare=6),
        Column("region", spare=1),
        Column.number("USD"),
        Column.number("USD spot"),
        Column.text(""),
    )
    for number, option in enumerate(options[:top], 1):
        table.add_row(
            str(number),
            _spec(option),
            option["machine_type"],
            option["precision"],
            _layout(option),
            str(option["batch"] or ""),
            _memory(option),
            _hours(option["hours"]["hours"]),
            option["hours"]["limit"],
            option["region"] or "–",
            _usd(option["on_demand_usd"]),
            _usd(option["spot_usd"]),
            ", ".join(_marks(option)),
        )
    if options:
        table.print()
        _draw_memory(options[0])
        if len(options) > top:
            print(f"{len(options) - top} more will do; --top shows them.")
    else:
        print("Nothing will do.")
        sized = [option for option in document["rejected"] if isinstance(option["memory_gb"], dict)]
        if sized:
            _draw_memory(min(sized, key=lambda option: option["memory_gb"]["total"] / option["usable_gb"]))
    for option in document["rejected"]:
        print(wrapped(f"not {_spec(option)}: {'; '.join(option['reasons'])}", "  ", "    "))
    for line in (*document["remedies"], *document["assumptions"]):
        print(wrapped(line, "  ", "    "))


def _marks(option: dict[str, Any]) -> list[str]:
    marks = {
        "price unverified": option["price_unverified"],
        "may be refused": "contested" in option["warnings"],
        "network not counted": option["nodes"] > 1 and option["mfu"] and option["hours"]["network"] is None,
        "speed unverified": option["speed_unverified"],
    }
    return [mark for mark, holds in marks.items() if holds]


def _spec(option: dict[str, Any]) -> str:
    return option["spec"] + (f" × {option['nodes']} nodes" if option["nodes"] > 1 else "")


def _memory(option: dict[str, Any]) -> str:
    memory = option["memory_gb"]
    total = memory["total"] if isinstance(memory, dict) else memory
    return f"{total:.1f} of {option['usable_gb']:.1f}" if total is not None else "not known"


def _layout(option: dict[str, Any]) -> str:
    """The layout of the job: sharding and recomputation."""
    recomputed = " recompute" * bool(option["recompute"]) + " selective" * option["selective"]
    return f"{option['parallelism'] or ''}{recomputed}"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2f}"


def _draw_memory(option: dict[str, Any]) -> None:
    memory = option["memory_gb"]
    if isinstance(memory, dict):
        from gpu_pipelines.accelerators.memory_estimate import MemoryEstimate

        parts = MemoryEstimate(**{name: value for name, value in memory.items() if name != "total"})
        print(wrapped(f"Memory of one GPU on {_spec(option)}, GB: {parts.told()}.", then="  "))


def draw_quota(report: dict[str, Any]) -> None:
    """Prints a quota report."""
    print(wrapped(f"{report['metric']}: {report['needed']} needed in {report['project']}", then="  "))
    for region in report["regions"]:
        limit = "no limit" if region["limit"] < 0 else str(region["limit"])
        print(f"  {region['region']:<24} {limit:>8}  {'enough' if region['enough'] else 'not enough'}")
    if not report["enough"]:
        print(wrapped(f"Ask for more: {report['console']}", then="  ") + f"\n  {report['command']}")


def draw_refreshed(result: dict[str, Any]) -> None:
    """Prints the results of a refresh."""
    told = (
        f"{result['directory']}: {result['prices_read']} prices read, {result['prices_kept']} kept as they were, "
        f"{result['availability_read']} places of GPUs."
    )
    print(wrapped(told, then="  "))
    if result["unknown_regions"]:
        unknown = ", ".join(result["unknown_regions"])
        print(wrapped(f"Left out, for regions.csv does not have them: {unknown}.", then="  "))


def _usd(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"
