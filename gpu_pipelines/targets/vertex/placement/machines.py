"""The machines in a compiled pipeline for Vertex AI, as plans, so that they can be checked and priced again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan, load_catalog
from gpu_pipelines.accelerators.one_gpu import evaluation_memory_gb
from gpu_pipelines.accelerators.plan import SCHEDULING, PlanError, plan_request
from gpu_pipelines.accelerators.request import PlanRequest
from gpu_pipelines.dag.placement import EVALUATES, FINISHES_STUDY, PREPARES
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.compiled import steps_of
from gpu_pipelines.targets.own.steps import Step, steps_in
from gpu_pipelines.targets.plan_lines import told_limit, told_machines, told_price, told_warnings
from gpu_pipelines.targets.vertex.placement.job_spec import DEFAULT_HOURS
from gpu_pipelines.tasks.model_sizes import parameters_of_model

#: Input of GCPC's CustomJob components that holds the machines.
_POOLS = "worker_pool_specs"
#: Prefixes of Vertex AI's accelerators: GPUs; and TPUs and none, of which the catalog has nothing.
_GPUS, _NO_GPUS = "NVIDIA_", ("TPU_", "ACCELERATOR_TYPE_UNSPECIFIED")
#: The program of a component of GCPC, and the beginnings of the names of its inputs for machines of predictions.
_OF_GCPC = "google_cloud_pipeline_components.container."
_OF_PREDICTIONS = ("", "dedicated_resources_")
#: Numbers of a worker pool, by the part of it that has them.
_COUNTS = {"": "replica_count", "machine_spec": "accelerator_count", "disk_spec": "boot_disk_size_gb"}
_STRATEGIES = {enum: name for name, enum in SCHEDULING.items() if name != "reservation"}


@dataclass(frozen=True)
class StepMachines:
    """The machines of a step.

    Attributes:
        step: name of the task.
        plan: the accelerators.
        persistent_resource: id of the persistent resource that has them; empty if the step gets its own.
    """

    step: str
    plan: AcceleratorPlan
    persistent_resource: str = ""


def machines_of(spec: Mapping[str, Any], region: str | None) -> list[StepMachines]:
    """The GPUs of the steps that are CustomJobs, in the order of the steps; those of other steps are only checked.

    Args:
        spec: a compiled pipeline.
        region: its region; None to leave that open.

    Raises:
        UserError: lists what is not available there.
    """
    if malformed := dict.fromkeys(_malformed(spec)):
        raise UserError.of_all(list(malformed))
    found, problems = [], list(_misnamed(spec))
    jobs = _requests(spec, region)
    others = [*_of_kfp(spec, region), *_of_predictions(spec)]
    for step, request in [*((step, request) for step, (request, _) in jobs.items()), *others]:
        try:
            plan = plan_request(request)
        except PlanError as error:
            problems.append(f"{step}: {error}")
            continue
        if step in jobs:
            found.append(StepMachines(step, plan, jobs[step][1]))
    if problems:
        raise UserError.of_all(problems)
    order = list(steps_of(spec))
    return sorted(found, key=lambda each: order.index(each.step) if each.step in order else 0)


def told_unknown(spec: Mapping[str, Any]) -> list[str]:
    """Warnings about machines without accelerators that are not in the catalog, which need not have the newest."""
    catalog, found = load_catalog(), dict[str, None]()
    for step, values in _custom_jobs(spec).items():
        for machine in (_part(pool, "machine_spec") for pool in values[_POOLS]):
            name = str(machine.get("machine_type", "{{$"))
            if not ("{{$" in name or machine.get("accelerator_type") or catalog.takes_without_gpus(name)):
                found[f"warning: {step}: {name[:60]!r} is not known as a machine of custom jobs without GPUs."] = None
    return list(found)


def told_cost(machines: Sequence[StepMachines], spec: Mapping[str, Any], region: str | None) -> list[str]:
    """The cost of the steps' machines and warnings about them, line by line.

    Args:
        machines: machines of the steps.
        spec: the pipeline.
        region: its region.
    """
    several = of_several_jobs(spec)
    told = (_cost(each, region, each.step not in several) for each in machines)
    return [*told, *told_warnings(each.plan for each in machines)]


def _cost(each: StepMachines, region: str | None, is_one_job: bool) -> str:
    (what,) = told_machines({each.step: each.plan})
    if each.persistent_resource:
        of = f"of the persistent resource {each.persistent_resource}, which costs as long as it exists"
        return f"{what}, {of}{told_limit(each.plan)}"
    return f"{what}{told_price(each.plan, region, is_one_job)}"


def of_several_jobs(spec: Mapping[str, Any]) -> set[str]:
    """The components that have their machines more than once: for each turn of a loop, or each trial of a search."""
    return searching(spec) | {_component_of(step) for step in steps_in(spec) if step.in_loop}


def searching(spec: Mapping[str, Any]) -> set[str]:
    """The components of a search, which has one budget: its trials, and the longer training of the best one."""
    components = {key.removeprefix("comp-"): each for key, each in spec["components"].items()}
    return {
        name
        for name, each in components.items()
        if name == FINISHES_STUDY or "max_trial_count" in each.get("inputDefinitions", {}).get("parameters", {})
    }


def _component_of(step: Step) -> str:
    return str(step.task["componentRef"]["name"]).removeprefix("comp-")


def not_evaluated(spec: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the machine of a compiled pipeline's evaluation: too little memory for the model.

    Args:
        spec: a compiled pipeline.
        arguments: its parameters; `model` may give the size of the model.
    """
    size = parameters_of_model(str(arguments.get("model", "")), str(arguments.get("recipe") or ""))
    on, _ = _requests(spec, None).get(EVALUATES, (None, ""))
    if size is None or on is None:
        return []
    plan, needed = plan_request(on), evaluation_memory_gb(size, models=1)
    if plan.gpu is None or plan.gpu.memory_gb >= needed:
        return []
    return [
        f"{arguments['model']} has {size / 1e9:g} billion parameters, by its name, and each GPU of {EVALUATES} holds "
        f"the whole of it: about {needed:.0f} GB. It has {plan.spec}, with {plan.gpu.memory_gb} GB. Name another with "
        "--evaluation-accelerator."
    ]


def trainings_without_gpus(spec: Mapping[str, Any]) -> list[str]:
    """The steps of a compiled pipeline that train with this project's components, as plain tasks without a GPU."""
    return [step.name for step in steps_in(spec) if step.trains and not step.has_accelerators]


def data_nodes_of(spec: Mapping[str, Any]) -> int:
    """The number of machines on which a compiled pipeline prepares its data."""
    job = _custom_jobs(spec).get(PREPARES)
    return sum(int(pool.get("replica_count", 1)) for pool in job[_POOLS]) if job else 1


def jobs_by_resource(spec: Mapping[str, Any]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The worker pools of the jobs that run on persistent resources, by resource and step."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for step, values in _custom_jobs(spec).items():
        resource = str(values.get("persistent_resource_id") or "")
        if resource and not resource.startswith("{{"):
            found.setdefault(resource, {})[step] = values[_POOLS]
    return found


def _custom_jobs(spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The inputs that are known before a run, for each step that is a CustomJob, by the name of the step."""
    found = {}
    for step in steps_in(spec):
        values = _values(step)
        pools = values.get(_POOLS)
        # An output of another step may stand for a pool.
        if isinstance(pools, list) and pools and all(isinstance(pool, Mapping) for pool in pools):
            found[step.name] = values
    return found


def _values(step: Step) -> dict[str, Any]:
    """The inputs of a step with their defaults; None for those that are not known before a run."""
    inputs = step.spec.get("inputDefinitions", {}).get("parameters", {})
    given = {name: value.get("runtimeValue", {}).get("constant") for name, value in step.inputs.items()}
    return {name: definition.get("defaultValue") for name, definition in inputs.items()} | given


def _misnamed(spec: Mapping[str, Any]) -> Iterator[str]:
    """Fields of machines by their names in gcloud's files, which GCPC's launcher refuses when the step runs."""
    for step, values in _custom_jobs(spec).items():
        if names := sorted({name for pool in values[_POOLS] for name in pool if name != name.lower()}):
            pythonic = [re.sub("([A-Z])", r"_\1", name).lower() for name in names]
            yield f"{step}: {_POOLS} has {', '.join(names)}. Its names are those of Python: {', '.join(pythonic)}."


def _malformed(spec: Mapping[str, Any]) -> Iterator[str]:
    """Parts of machines that are no fields, and numbers that are texts; GCPC's launcher refuses both in the run."""
    for step, values in _custom_jobs(spec).items():
        for pool in values[_POOLS]:
            for part, name in _COUNTS.items():
                whole, given = pool.get(part) if part else pool, _part(pool, part).get(name)
                if whole and not isinstance(whole, Mapping) and "{{$" not in str(whole):
                    yield f"{step}: {part} in {_POOLS} is {str(whole)[:40]!r}. Give its fields, such as {name}."
                # A placeholder gets the type of what it stands for.
                if isinstance(given, str) and "{{$" not in given:
                    yield f"{step}: {name} in {_POOLS} is the text {given[:40]!r}. Give a number, without quotes."


def _part(pool: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a worker pool, such as its machine; empty if an output of another step stands for it."""
    found = pool.get(name) if name else pool
    return found if isinstance(found, Mapping) else {}


def _requests(spec: Mapping[str, Any], region: str | None) -> dict[str, tuple[PlanRequest, str]]:
    """The request of each CustomJob step with GPUs, and its persistent resource."""
    found = {}
    for step, values in _custom_jobs(spec).items():
        pools = values[_POOLS]
        machine = _part(pools[0], "machine_spec")
        known = [{**pool, "container_spec": None} for pool in pools]
        if not _names_gpu(machine.get("accelerator_type")) or "{{$" in json.dumps(known):
            continue
        location = str(values.get("location") or "{{$")
        training = [pool for pool in pools if _part(pool, "machine_spec").get("accelerator_type")]
        request = PlanRequest(
            spec=spec_of(machine),
            nodes=sum(int(pool.get("replica_count", 1)) for pool in training),
            region=region if "{{$" in location else location,
            machine_type=machine.get("machine_type"),
            hours=_hours(values.get("timeout")),
            **_bought(machine, values.get("strategy")),
        )
        resource = str(values.get("persistent_resource_id") or "")
        found[step] = (request, "" if resource.startswith("{{") else resource)
    return found


def _of_kfp(spec: Mapping[str, Any], region: str | None) -> Iterator[tuple[str, PlanRequest]]:
    """The GPUs of the steps with KFP's own `set_accelerator_type`; Vertex AI chooses their machines."""
    for step in steps_in(spec):
        wanted = step.container.get("resources", {}).get("accelerator", {})
        kind, count = str(wanted.get("resourceType", wanted.get("type"))), str(wanted.get("resourceCount", "1"))
        if kind.startswith(_GPUS) and count.isdigit():
            yield step.name, PlanRequest(spec=f"{kind}:{count}", region=region)


def _of_predictions(spec: Mapping[str, Any]) -> Iterator[tuple[str, PlanRequest]]:
    """The GPUs of GCPC's steps that deploy a model or predict a batch.

    In any region, and on any machine of N1: the catalog has what training takes, which is less there.
    """
    for step in steps_in(spec):
        if _OF_GCPC not in " ".join(step.container.get("command", [])):
            continue
        values = _values(step)
        for prefix in _OF_PREDICTIONS:
            machine = {name: values.get(prefix + name) for name in ("machine_type", "accelerator_type")}
            count = values.get(f"{prefix}accelerator_count")
            is_known = all(machine.values()) and count and "{{$" not in json.dumps(machine)
            if is_known and _names_gpu(machine["accelerator_type"]):
                name = str(machine["machine_type"])
                wanted = spec_of({**machine, "accelerator_count": count})
                yield step.name, PlanRequest(wanted, machine_type=None if name.startswith("n1-") else name)


def _names_gpu(accelerator: Any) -> bool:
    """Whether an accelerator of a machine is a GPU, known or not."""
    return bool(accelerator) and not str(accelerator).startswith(_NO_GPUS)


def spec_of(machine: Mapping[str, Any]) -> str:
    """The specification of a `MachineSpec` with GPUs."""
    partition = f"/{size}" if (size := machine.get("gpu_partition_size")) else ""
    return f"{machine['accelerator_type']}{partition}:{int(machine.get('accelerator_count', 1))}"


def _bought(machine: Mapping[str, Any], strategy: Any) -> dict[str, Any]:
    affinity = machine.get("reservation_affinity") or {}
    kind = affinity.get("reservation_affinity_type", "")
    if kind == "SPECIFIC_RESERVATION":
        return {"strategy": "reservation", "reservation": next(iter(affinity.get("values", [])), None)}
    if kind == "ANY_RESERVATION":
        return {"strategy": "reservation"}
    return {"strategy": _STRATEGIES.get(str(strategy), "standard")}


def _hours(timeout: Any) -> float | None:
    match = re.fullmatch(r"([0-9]+)s", str(timeout))
    hours = int(match[1]) / 3600 if match else None
    return None if hours == DEFAULT_HOURS else hours
