"""A job from flags, or from a file for `gcloud ai custom-jobs create --config`, over which flags win.

A flag wins over the file, and the file over the project's settings. Values that no flag or rule changes stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.accelerators.plan import plan_request
from gpu_pipelines.accelerators.request import PlanRequest, require_gpu
from gpu_pipelines.accelerators.together import share_zone
from gpu_pipelines.artifacts.remote_files import problems_of_place
from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.machine_spec import machine_spec
from gpu_pipelines.project_settings import ProjectSettings, flag_of
from gpu_pipelines.targets.container import Container
from gpu_pipelines.targets.vertex.jobs.request import PreparedJob, checked_name, default_name, image_of
from gpu_pipelines.targets.vertex.jobs.spec_file import read_job_file
from gpu_pipelines.targets.vertex.options import JobFlags
from gpu_pipelines.targets.vertex.placement.job_spec import (
    custom_job,
    environment_variables,
    fill_spec,
    job_of,
    max_wait,
    no_reduction_server,
    reduction_pool,
    require_job,
    timeout,
)
from gpu_pipelines.targets.vertex.placement.machines import spec_of
from gpu_pipelines.yaml_output import is_utf8

#: ON_DEMAND and LOW_COST are the deprecated names of STANDARD and SPOT.
_STRATEGIES = {"SPOT": "spot", "LOW_COST": "spot", "FLEX_START": "flex-start"}
#: Pools of a CustomJob by their position: rank 0, the other machines, servers, evaluators.
_TRAINING, _SERVERS = (0, 1), 2
_CONTAINERS = ("container_spec", "python_package_spec")
_REDUCTION_SERVER = "/training/reductionserver"

Pool = dict[str, Any]


def prepare_job(flags: JobFlags, settings: ProjectSettings, file: Path | None = None) -> PreparedJob:
    """Checks the request, and builds the job.

    Args:
        flags: the flags; they win over the file.
        settings: settings of the project; the file wins over them, unless they were given as flags.
        file: a file for `gcloud ai custom-jobs create --config`.

    Raises:
        UserError: something is wrong, or missing.
        PlanError: the accelerator is not available like that.
    """
    _require_output(flags.output_dir)
    _require_text(flags)
    if flags.accelerator is not None:
        require_gpu(flags.accelerator, "Vertex AI")
    if file is not None:
        return _prepare_from_file(file, flags, settings)
    if flags.accelerator is None:
        raise UserError("There is no accelerator.", "Give --accelerator NAME:COUNT, such as l4:1, or --config FILE.")
    settings.require("image")
    plan = plan_request(
        PlanRequest(
            spec=flags.accelerator,
            nodes=1 if flags.nodes is None else flags.nodes,
            region=settings.region,
            strategy=flags.strategy,
            machine_type=flags.machine_type,
            reservation=flags.reservation,
            hours=flags.hours,
        )
    )
    container = Container(str(settings.image), flags.words, flags.arguments)
    name = checked_name(flags.name or default_name(plan, container.image))
    job = custom_job(plan, name, container, settings, flags.job, flags.output_dir)
    return PreparedJob(job, (plan,), settings.project, plan.region)


def _prepare_from_file(path: Path, flags: JobFlags, settings: ProjectSettings) -> PreparedJob:
    """The job of a file, with the changes by flags.

    Raises:
        UserError: the file is not what gcloud takes, or something in it is wrong.
        PlanError: its accelerator is not available like that.
    """
    spec, hints = read_job_file(path)
    effective = _settings_over(spec, settings)
    pools: list[Pool] = spec["worker_pool_specs"]
    _set_pools(pools, flags)
    planned = {index: plan_request(request) for index, request in _requests(spec, flags, effective.region).items()}
    plans = tuple(planned.values())
    if len(plans) > 1:
        share_zone(plans)
    problems = _set_machines(pools, planned, flags)
    problems += _set_containers(pools, flags, _flag_value(settings, "image"))
    problems += _incomplete(pools)
    if plans:
        problems += _set_for_gpus(spec, plans[0], effective, flags)
    else:
        hints.append(f"No pool of {path} has a GPU, so its machines and their price were not checked.")
        problems += _for_gpus_alone(flags)
    if problems:
        raise UserError.of_all(problems)
    mounts = flags.job.lustre_mounts
    for pool in pools if mounts else ():
        if pool and image_of(pool) and _REDUCTION_SERVER not in image_of(pool):
            pool["lustre_mounts"] = [dict(each) for each in mounts]
    fill_spec(spec, effective, flags.output_dir, web_access=flags.web_access, dns_peerings=flags.job.dns_peerings)
    name = checked_name(flags.name or default_name(plans[0] if plans else None, image_of(pools[0])))
    region = plans[0].region if plans else effective.region
    return PreparedJob(job_of(name, spec, settings), plans, settings.project, region, tuple(hints))


def _set_for_gpus(spec: dict[str, Any], plan: AcceleratorPlan, settings: ProjectSettings, flags: JobFlags) -> list[str]:
    """Sets what depends on the machines with GPUs: how they are bought, and their other options."""
    require_job(plan, settings, flags.job)
    problems = _set_scheduling(spec.setdefault("scheduling", {}), plan, flags)
    problems += _set_reduction_servers(spec["worker_pool_specs"], plan, flags)
    return problems + _mixed_flex_start(spec["worker_pool_specs"], plan)


def _for_gpus_alone(flags: JobFlags) -> list[str]:
    """Why flags cannot be used in a job without GPUs."""
    names = ("nodes", "machine_type", "strategy", "reservation", "hours", "max_wait", "boot_disk_gb")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(flags, name) is not None]
    given += ["--reduction-server"] if flags.reduction_server else []
    if not given:
        return []
    return [f"No pool of the file has a GPU, and {', '.join(given)} are for machines with GPUs. Give --accelerator."]


def _incomplete(pools: list[Pool]) -> list[str]:
    """What a used pool lacks of what the service needs."""
    problems = [] if pools[0] else ["The first pool is empty; rank 0 is there."]
    for index, pool in enumerate(pools):
        if not pool:
            continue
        if not pool.get("machine_spec", {}).get("machine_type"):
            problems.append(f"Pool {index} has no machineSpec.machineType.")
        if not image_of(pool):
            problems.append(f"Pool {index} has no image: neither containerSpec nor pythonPackageSpec. Give --image.")
        pool.setdefault("replica_count", 1)
    return problems


def _settings_over(spec: Mapping[str, Any], settings: ProjectSettings) -> ProjectSettings:
    """The effective settings: from a flag, else from the file, else from the project."""
    of_file: dict[str, Any] = {
        name: spec[name]
        for name in ("service_account", "network", "tensorboard")
        if spec.get(name) and _flag_value(settings, name) is None
    }
    if spec.get("persistent_resource_id") and _flag_value(settings, "persistent_resource") is None:
        of_file["persistent_resource"] = spec["persistent_resource_id"]
    in_a_network = spec.get("psc_interface_config") or spec.get("network")
    if in_a_network and _flag_value(settings, "network_attachment") is None:
        of_file["network_attachment"] = None
    return replace(settings, **of_file)


def _flag_value(settings: ProjectSettings, name: str) -> str | None:
    """A setting that was given as a flag; None if it came from elsewhere."""
    value: str | None = getattr(settings, name) if settings.origins.get(name) == flag_of(name) else None
    return value


def _set_pools(pools: list[Pool], flags: JobFlags) -> None:
    """Sets the replicas of the second pool to the number of `--nodes`."""
    if flags.nodes is None:
        return
    while len(pools) < 2:
        pools.append({})
    others = flags.nodes - 1
    pools[1] = {**(pools[1] or pools[0]), "replica_count": others} if others > 0 else {}
    while not pools[-1]:
        pools.pop()


def _requests(spec: Mapping[str, Any], flags: JobFlags, region: str | None) -> dict[int, PlanRequest]:
    """The request of each pool with GPUs, by its position; a pool like the first one is counted as part of that."""
    scheduling = spec.get("scheduling", {})
    requests: dict[int, PlanRequest] = {}
    for index, pool in enumerate(spec["worker_pool_specs"]):
        own = flags if index in _TRAINING else JobFlags(strategy=flags.strategy, hours=flags.hours)
        request = _request(pool, scheduling, own, region) if pool else None
        if request is None:
            continue
        if index == 1 and 0 in requests and replace(request, nodes=1) == requests[0]:
            requests[0] = replace(request, nodes=request.nodes + 1)
        else:
            requests[index] = request
    if flags.nodes is not None and flags.nodes < 1 and 0 in requests:
        # Left to the plan, which reports it.
        requests[0] = replace(requests[0], nodes=flags.nodes)
    return requests


def _request(pool: Pool, scheduling: Mapping[str, Any], flags: JobFlags, region: str | None) -> PlanRequest | None:
    machine = pool.get("machine_spec", {})
    kind = machine.get("accelerator_type")
    if flags.accelerator is None and not kind:
        _require_no_gpus(machine)
        return None
    strategy = flags.strategy or _strategy(machine, scheduling, flags)
    named = machine.get("reservation_affinity", {}).get("values", [None])[0]
    return PlanRequest(
        spec=flags.accelerator or spec_of(machine),
        nodes=pool.get("replica_count", 1),
        region=region,
        strategy=strategy,
        # Another accelerator brings its own machine.
        machine_type=flags.machine_type or (machine.get("machine_type") if flags.accelerator is None else None),
        reservation=flags.reservation or (named if strategy == "reservation" else None),
        hours=flags.hours if flags.hours is not None else _hours(scheduling.get("timeout")),
    )


def _require_no_gpus(machine: Mapping[str, Any]) -> None:
    """Refuses a machine with GPUs but without `acceleratorType`, as the service does.

    Raises:
        UserError: the machine has GPUs, or a number of them is given.
    """
    name, catalog = machine.get("machine_type", ""), load_catalog()
    known = catalog.machine_types.get(name)
    if known is not None and not known.attached:
        gpu, counts = next(iter(known.gpu_counts.items()))
        raise UserError(
            f"{name} has {counts[0]} × {gpu}, which the request must name.",
            f"Write acceleratorType: {catalog.gpus[gpu].enum} and acceleratorCount: {counts[0]} beside machineType.",
        )
    if count := machine.get("accelerator_count"):
        raise UserError(f"acceleratorCount is {count}, and there is no acceleratorType.", "Give both or none of them.")


def _strategy(machine: Mapping[str, Any], scheduling: Mapping[str, Any], flags: JobFlags) -> str:
    affinity = machine.get("reservation_affinity", {}).get("reservation_affinity_type")
    if flags.reservation or affinity in ("ANY_RESERVATION", "SPECIFIC_RESERVATION"):
        return "reservation"
    return _STRATEGIES.get(scheduling.get("strategy", ""), "standard")


def _hours(duration: str | None) -> float | None:
    """Hours of a JSON duration, such as `3600s`."""
    return float(duration.removesuffix("s")) / 3600 if duration else None


def _set_machines(pools: list[Pool], planned: Mapping[int, AcceleratorPlan], flags: JobFlags) -> list[str]:
    problems = []
    for index, pool in enumerate(pools):
        has_gpu = bool(pool.get("machine_spec", {}).get("accelerator_type"))
        plan = planned.get(index) or (planned[0] if index == 1 and has_gpu else None)
        if plan is None:
            continue
        pool["machine_spec"] = {**pool.get("machine_spec", {}), **machine_spec(plan)}
        if not plan.partition:
            pool["machine_spec"].pop("gpu_partition_size", None)
        if plan.reservation_affinity is None:
            pool["machine_spec"].pop("reservation_affinity", None)
        pool.setdefault("replica_count", 1)
        problems += _set_disk(pool, plan, flags)
    return problems


def _set_disk(pool: Pool, plan: AcceleratorPlan, flags: JobFlags) -> list[str]:
    disk = pool.get("disk_spec", {})
    changed = flags.accelerator is not None or flags.machine_type is not None
    if not disk and flags.boot_disk_gb is None:
        # The service's own default is right for every machine.
        return []
    kind = disk.get("boot_disk_type", plan.boot_disk_type)
    fits = kind == plan.boot_disk_type or {kind, plan.boot_disk_type} == {"pd-ssd", "pd-standard"}
    if not fits and not changed:
        return [f"The boot disk is {kind}, and {plan.machine_type} starts from {plan.boot_disk_type}."]
    size = flags.boot_disk_gb or disk.get("boot_disk_size_gb") or flags.job.boot_disk_gb
    pool["disk_spec"] = {"boot_disk_type": kind if fits else plan.boot_disk_type, "boot_disk_size_gb": size}
    return []


def _set_scheduling(scheduling: dict[str, Any], plan: AcceleratorPlan, flags: JobFlags) -> list[str]:
    scheduling["strategy"] = plan.scheduling_strategy
    if flags.hours is not None:
        scheduling["timeout"] = timeout(plan)
    if flags.max_wait is not None:
        scheduling["max_wait_duration"] = max_wait(flags.job)
    elif plan.strategy != "flex-start" and scheduling.get("max_wait_duration"):
        if flags.strategy is None:
            return [f"maxWaitDuration is for FLEX_START; the strategy is {plan.scheduling_strategy}."]
        del scheduling["max_wait_duration"]
    return []


def _set_containers(pools: list[Pool], flags: JobFlags, image: str | None) -> list[str]:
    problems = []
    for index in _TRAINING:
        if index >= len(pools) or not pools[index]:
            continue
        # Copies of pools may share their parts.
        pool = pools[index] = {**pools[index]}
        if image:
            before = pool.pop("python_package_spec", {})
            kept = {name: value for name, value in before.items() if name in ("args", "env")}
            pool["container_spec"] = {**kept, **pool.get("container_spec", {}), "image_uri": image}
        kind = next((kind for kind in _CONTAINERS if pool.get(kind)), None)
        if kind is None:
            continue
        if flags.words and kind == "python_package_spec":
            problems.append(f"Pool {index} runs a Python package, which takes no --command. Give --image as well.")
        pool[kind] = _container(pool[kind], flags)
    return problems


def _container(before: Mapping[str, Any], flags: JobFlags) -> dict[str, Any]:
    container = dict(before)
    if flags.words:
        container["command"] = flags.words
    if flags.arguments:
        container["args"] = list(flags.arguments)
    if flags.environment:
        variables = {each["name"]: each.get("value", "") for each in before.get("env", [])}
        container["env"] = environment_variables({**variables, **flags.environment})
    return container


def _set_reduction_servers(pools: list[Pool], plan: AcceleratorPlan, flags: JobFlags) -> list[str]:
    """As many as the machines need; those of the file stay if no flag has changed the machines."""
    before = pools[_SERVERS] if len(pools) > _SERVERS else {}
    in_file = _REDUCTION_SERVER in image_of(before)
    machines_changed = any(flag is not None for flag in (flags.nodes, flags.accelerator, flags.machine_type))
    if not flags.reduction_server and not (in_file and machines_changed):
        return []
    if before and not in_file:
        return ["The file has another third pool, where reduction servers would be. Leave one of them out."]
    if reason := no_reduction_server(plan):
        return [f"The reduction servers of the file cannot stay: {reason}"]
    pools[_SERVERS : _SERVERS + 1] = [reduction_pool(plan, image_of(pools[0]))]
    return []


def _mixed_flex_start(pools: list[Pool], plan: AcceleratorPlan) -> list[str]:
    if plan.strategy != "flex-start":
        return []
    others = {
        machine
        for pool in pools
        if pool and (machine := pool.get("machine_spec", {}).get("machine_type")) != plan.machine_type
    }
    if not others:
        return []
    listed = ", ".join(sorted(map(str, others)))
    return [f"flex-start takes the same machine in every pool; beside {plan.machine_type}, there is {listed}."]


def _require_text(flags: JobFlags) -> None:
    for text in (*flags.words, *flags.arguments):
        if not is_utf8(text):
            raise UserError(f"{text[:80]!a} is not UTF-8; the request has to be UTF-8.")


def _require_output(directory: str | None) -> None:
    if directory is not None and not directory.startswith("gs://"):
        raise UserError(f"--output-dir is {directory[:100]!r}.", "Give a place in Cloud Storage, gs://BUCKET/FOLDER.")
    if directory is not None and (problems := problems_of_place("--output-dir", directory)):
        raise UserError.of_all(problems)
