"""Which accelerators are best for a training job, and what would help if none will do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from gpu_pipelines.accelerators.catalog import Catalog, load_catalog
from gpu_pipelines.accelerators.memory_estimate import FUSED, KEPT_WITHOUT_GATE, NORMS, RUNTIME_GB, USABLE
from gpu_pipelines.accelerators.option import Option, Wishes, counted_cost, option_of
from gpu_pipelines.accelerators.plan import AcceleratorPlan, PlanError, plan
from gpu_pipelines.accelerators.request import STRATEGIES
from gpu_pipelines.accelerators.spent import dollars
from gpu_pipelines.accelerators.time_estimate import KEPT_WHEN_DOUBLED, start_hours
from gpu_pipelines.accelerators.workload import USUAL_EXPERTS, Workload
from gpu_pipelines.errors import UserError

#: A week: the deadline if none is given. Vertex AI ends a custom job after as long by default.
USUAL_DEADLINE_HOURS = 168.0
#: Share that the ranking adds to a plan's cost for each doubling of its GPUs: more of them are harder to get. An
#: assumption, which decides between plans that cost nearly the same.
DEARER_WHEN_DOUBLED = 0.03
#: Share that the ranking adds to a plan's cost if no published training with its GPU is known. An assumption: the
#: largest difference between the estimates for the other GPUs and published figures.
DEARER_IF_UNVERIFIED = 0.25
#: Models from whose layers activations are estimated.
_DECODER = "a Llama"
_ENCODER = "a ViT or BERT"
_EXPERTS = "Mixtral or Qwen3-30B-A3B"
#: Families that keep more than the estimate if nothing is recomputed, counted with fake tensors: their name, whose
#: layers the estimate uses, and how much more.
MORE_IF_KEPT = {
    "deberta-v2": ("DeBERTa-v3", _ENCODER, "3 to 4 times as much"),
    "gemma2": ("Gemma 2", _DECODER, "4.4 times as much at 4,096 tokens"),
    "gpt_oss": ("gpt-oss", _EXPERTS, "3.6 times as much at 4,096 tokens"),
    "modernbert": ("ModernBERT", _ENCODER, "1.2 times as much"),
}
#: Most options to show.
_MOST_SHOWN = 5


@dataclass(frozen=True, repr=False)
class Advice:
    """Every option for a job.

    Attributes:
        workload: the job.
        options: plans that will do, the best first: those with a verified price that the service surely sells, by cost;
            of two that cost nearly the same the smaller.
        rejected: for each GPU of which no plan will do, the nearest plan, with the reasons.
        assumptions: what the figures are based on.
        remedies: if no plan will do, changes to the job with which one would.
    """

    workload: Workload
    options: tuple[Option, ...]
    rejected: tuple[Option, ...]
    assumptions: tuple[str, ...]
    remedies: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shown = self.options[:_MOST_SHOWN]
        more = len(self.options) - len(shown)
        lines = [
            f"Advice: {len(self.options)} options, the best first",
            *(_in_one_line(option) for option in shown),
            *([f"and {more} more"] if more else []),
            *self.remedies,
        ]
        return "\n  ".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The advice as a JSON object."""
        return {
            "workload": self.workload.to_json(),
            "options": [option.to_json() for option in self.options],
            "rejected": [option.to_json() for option in self.rejected],
            "assumptions": list(self.assumptions),
            "remedies": list(self.remedies),
        }


def _in_one_line(option: Option) -> str:
    costs = (("on demand", option.on_demand), ("on Spot", option.spot))
    told = [f"{dollars(usd)} {how}" for how, usd in costs if usd is not None]
    nodes = f"{option.plan.nodes} × " if option.plan.nodes > 1 else ""
    return ", ".join([f"{nodes}{option.plan.spec}: {option.hours():.1f} h", *told])


def advise(
    workload: Workload, wishes: Wishes | None = None, *, catalog: Catalog | None = None, today: date | None = None
) -> Advice:
    """Ranks the accelerators for a job by memory, time and cost, as `gpu-pipelines accelerators advise`.

    Args:
        workload: the job: how large its model is and how much it trains on, or what a trial has measured.
        wishes: limits and choices, such as a deadline in hours or a budget in USD; None for none.
        catalog: the facts; None takes those of the package.
        today: the day that ended GPUs are judged by; None takes today.

    Returns:
        The plans that will do, the best first, and for each other GPU the reasons why none will.

    Raises:
        UserError: if a wish is out of range, or a specification is wrong.
    """
    facts, asked, day = catalog or load_catalog(), wishes or Wishes(), today or date.today()
    _check_wishes(asked, facts)
    measured = plan(workload.measured_on, catalog=facts, today=day) if workload.measured_on is not None else None
    if measured is not None and measured.gpu is None:
        raise UserError("A trial on CPU processes says nothing about GPUs.", "Measure on a GPU, for example l4:1.")
    options: list[Option] = []
    rejected: dict[str, Option] = {}
    for each in _candidates(asked, facts, day):
        option = option_of(each, workload, asked, measured, facts)
        name = each.gpu.name if each.gpu else ""
        if not option.reasons:
            options.append(option)
        elif name not in rejected or len(option.reasons) <= len(rejected[name].reasons):
            rejected[name] = option
    good = {option.plan.gpu.name for option in options if option.plan.gpu}
    return Advice(
        workload,
        tuple(sorted(options, key=lambda option: _rank(option, asked))),
        tuple(option for name, option in rejected.items() if name not in good),
        _assumptions(workload, asked),
        () if options or measured is not None else _remedies(workload, asked, facts, day),
    )


def _remedies(workload: Workload, wishes: Wishes, catalog: Catalog, today: date) -> tuple[str, ...]:
    """Changes that would help a job for which no plan will do, each with the first plan that would do then."""
    more = replace(wishes, max_nodes=64)
    tries = [
        ("recomputed activations (--recompute)", replace(workload, recompute=None), wishes),
        ("a smaller batch of each GPU (--batch 1)", replace(workload, batch=None), wishes),
        (
            "recomputed activations and a smaller batch (--recompute, --batch 1)",
            replace(workload, recompute=None, batch=None),
            wishes,
        ),
        ("LoRA (--lora-rank 16)", replace(workload, lora_rank=workload.lora_rank or 16), wishes),
        ("more nodes (--max-nodes 64)", workload, more),
        ("no deadline", workload, replace(wishes, deadline_hours=None)),
        ("no budget", workload, replace(wishes, budget_usd=None)),
    ]
    found = []
    tried: list[tuple[Workload, Wishes]] = [(workload, wishes)]
    for what, job, asked in tries:
        if (job, asked) in tried:
            continue
        tried.append((job, asked))
        options = [
            option
            for each in _candidates(asked, catalog, today)
            if not (option := option_of(each, job, asked, None, catalog)).reasons
        ]
        if options:
            best = min(options, key=lambda option: _rank(option, asked))
            nodes = f" × {best.plan.nodes} nodes" if best.plan.nodes > 1 else ""
            found.append(f"With {what}, {best.plan.spec}{nodes} would do.")
    return tuple(found)


def _check_wishes(wishes: Wishes, catalog: Catalog) -> None:
    problems = []
    for name, value in (("deadline", wishes.deadline_hours), ("budget", wishes.budget_usd)):
        if value is not None and not 0 < value < float("inf"):
            problems.append(f"The {name} is {value:g}; it must be more than 0.")
    if wishes.mfu is not None and not 0 < wishes.mfu <= 1:
        problems.append(f"The MFU is {wishes.mfu:g}; it is more than 0 and at most 1.")
    if not 1 <= wishes.max_nodes <= 64:
        problems.append(f"{wishes.max_nodes} nodes are too few or too many; give 1 to 64.")
    if wishes.region is not None and wishes.region not in catalog.regions:
        problems.append(f"There is no region {wishes.region[:40]!r} with GPUs.")
    if wishes.strategy not in (None, *STRATEGIES):
        problems.append(f"There is no strategy {str(wishes.strategy)[:40]!r}.")
    if problems:
        raise UserError.of_all(problems)


def _candidates(wishes: Wishes, catalog: Catalog, today: date) -> Iterator[AcceleratorPlan]:
    """Every GPU in every number on one machine, and in the largest on 2, 4, 8 … machines; or the requested one."""
    if wishes.accelerator is not None:
        for number in (2**power for power in range(7) if 2**power <= wishes.max_nodes):
            yield plan(
                wishes.accelerator,
                nodes=number,
                region=wishes.region,
                strategy=wishes.strategy,
                catalog=catalog,
                today=today,
            )
        return
    for gpu in catalog.gpus.values():
        counts = catalog.counts(gpu.name)
        nodes = [2**power for power in range(7) if 2**power <= wishes.max_nodes]
        for count, number in [*((count, 1) for count in counts), *((counts[-1], number) for number in nodes[1:])]:
            for strategy in (wishes.strategy, "reservation"):
                try:
                    yield plan(
                        f"{gpu.name}:{count}",
                        nodes=number,
                        region=wishes.region,
                        strategy=strategy,
                        catalog=catalog,
                        today=today,
                    )
                    break
                except PlanError:
                    if wishes.strategy is not None:
                        break


def _rank(option: Option, wishes: Wishes) -> tuple[bool, bool, float, int]:
    """First plans that are surely available in a usual time, then by cost, the smaller of two at nearly one cost."""
    cost = counted_cost(option, wishes)
    too_long = option.hours(wishes.strategy == "spot") > (wishes.deadline_hours or USUAL_DEADLINE_HOURS)
    dearer = 1 + DEARER_WHEN_DOUBLED * math.log2(option.plan.total_gpus)
    dearer += DEARER_IF_UNVERIFIED if option.is_speed_unverified else 0.0
    return (too_long, option.is_uncertain, math.inf if cost is None else cost * dearer, option.plan.total_gpus)


def _assumptions(workload: Workload, wishes: Wishes) -> tuple[str, ...]:
    prices = (
        "USD of the whole pipeline, CPU steps too; Spot with one interruption a day of each machine (assumed); without "
        "Vertex AI's management fee."
    )
    start = f"Hours are of the training, with {start_hours(1) * 60:.0f} minutes to start a machine (assumed)."
    if workload.is_measured:
        return (
            f"Projected from {workload.measured_samples_per_second:g} samples/s on {workload.measured_on}: between the "
            "ratio of peak and that of memory bandwidth; the smaller gain is shown.",
            f"On twice as many GPUs, each keeps {KEPT_WHEN_DOUBLED:g} of its throughput (assumed).",
            start,
            prices,
        )
    mfu = f"MFU {wishes.mfu:g} (given)" if wishes.mfu else "MFU of published trainings on each GPU (--mfu for your own)"
    found = [
        f"{mfu}; a step takes its longest part (computation, memory, links, network) and a tenth of the others.",
        f"{RUNTIME_GB:g} GB for CUDA and NCCL, and {USABLE:.0%} of each GPU's memory usable (assumed).",
        start,
        prices,
    ]
    if workload.is_transformer and workload.activation_bytes_per_sample is None:
        found.insert(1, _likeness(workload))
    if not workload.is_transformer and workload.activation_bytes_per_sample is None:
        found.insert(
            1,
            "Activations by a rule of thumb for convolutions, which is an upper bound; --activations-per-sample or a "
            "trial says more.",
        )
    if not workload.is_transformer and not wishes.mfu:
        found.insert(
            1,
            "The MFU is that of vision transformers. Convolutions are slower: a ResNet-50 reached 0.12 on an H200, a "
            "ConvNeXt-T 0.10 (--mfu).",
        )
    return tuple(found)


def _likeness(workload: Workload) -> str:
    """The layers from which activations are estimated, and how much more others keep, counted with fake tensors."""
    if workload.family in (*NORMS, *FUSED, *KEPT_WITHOUT_GATE):
        return f"Activations as of the layers of {workload.family}."
    like = _EXPERTS if workload.active_parameters else _DECODER if workload.predicts_words else _ENCODER
    layers = f"Activations as of the layers of {like}"
    if workload.active_parameters:
        experts = workload.experts_per_token or USUAL_EXPERTS
        told = "" if workload.experts_per_token else " (--experts-per-token for your model's own)"
        layers += f", with {experts} experts for each token{told}"
    if workload.family:
        name, _, more = MORE_IF_KEPT.get(workload.family, ("", "", ""))
        return f"{layers}." + (more and f" {name} keeps {more} where nothing is recomputed (a trial says).")
    others = ", ".join(f"{name} {more}" for name, kind, more in MORE_IF_KEPT.values() if kind == like)
    return (
        f"{layers}. Others keep more where nothing is recomputed: {others}; --family, --activations-per-sample or a "
        "trial says."
    )
