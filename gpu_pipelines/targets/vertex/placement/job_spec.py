"""From a plan to the specification of a Vertex AI CustomJob, as plain data with the API's own field names.

Fields: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/CustomJobSpec.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan, load_catalog
from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.machine_spec import machine_spec
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.step_environment import problems_of_variables
from gpu_pipelines.targets.container import Container

#: Vertex AI's default limit of a job's hours (`Scheduling.timeout`: seven days).
DEFAULT_HOURS = 168.0
#: The default time limit of a pipeline's step. A step that hangs would cost seven times as much until the service
#: ends it.
STEP_HOURS = 24.0
#: Flex-start's default waiting time for machines (`Scheduling.max_wait_duration`: one day).
DEFAULT_MAX_WAIT_HOURS = 24.0
#: Sizes that the API allows for `DiskSpec.boot_disk_size_gb`.
DISK_GB = (100, 64000)
#: Most variables of one container.
MAX_VARIABLES = 100

#: A reduction server: https://cloud.google.com/vertex-ai/docs/training/distributed-training (page on Reduction Server).
REDUCTION_MACHINE = "n1-highcpu-16"
_REDUCTION_GBPS = 32
_REDUCTION_IMAGE = "{}-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
_REDUCTION_REGISTRIES = ("us", "europe", "asia")


@dataclass(frozen=True)
class JobOptions:
    """The options of a job besides its plan and the project's settings.

    Attributes:
        boot_disk_gb: size of each machine's boot disk, GB.
        max_wait_hours: how long to wait for machines with Flex-start, hours; 0 for ever, None for the service's day.
        reduction_server: add a pool of reduction servers, which sum up the gradients of several machines.
        web_access: allow an interactive shell in the containers.
        environment: variables of the containers, by name.
        lustre_mounts: Lustre file systems of each machine, as `LustreMount`.
        dns_peerings: domains that a network resolves for the job, as `DnsPeeringConfig`.
    """

    boot_disk_gb: int = 200
    max_wait_hours: float | None = None
    reduction_server: bool = False
    web_access: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    lustre_mounts: Sequence[Mapping[str, str]] = ()
    dns_peerings: Sequence[Mapping[str, str]] = ()


def require_job(plan: AcceleratorPlan, settings: ProjectSettings, options: JobOptions) -> None:
    """Checks the combination of plan, settings and options.

    Raises:
        UserError: lists everything that is wrong.
    """
    problems = _problems_of_pools(plan, options)
    wait = options.max_wait_hours
    if wait is not None and plan.strategy != "flex-start":
        problems.append(f"Only flex-start waits for machines; the strategy is {plan.strategy}. Leave --max-wait out.")
    elif wait is not None and not (wait == 0 or (math.isfinite(wait) and wait * 3600 >= 1)):
        # In whole seconds anything less is 0.
        problems.append(f"A job cannot wait {wait:g} hours; 0 waits for ever, and a second is the least besides.")
    if settings.tensorboard and not settings.service_account:
        problems.append("A job that writes to Vertex AI TensorBoard needs a service account of its own. Give one.")
    if region := settings.region and (plan.region or settings.region):
        elsewhere = in_another_region(settings, region)
        problems += [f"A job in {region} cannot use it: {reason}." for reason in elsewhere]
    problems += _without_a_network(settings, options)
    if settings.persistent_resource:
        problems += _not_on_a_persistent_resource(plan, options)
    if problems:
        raise UserError.of_all(problems)


def _problems_of_pools(plan: AcceleratorPlan, options: JobOptions) -> list[str]:
    """What is wrong with the worker pools of a job, whatever the project's settings are.

    Raises:
        UserError: the plan is for this machine.
    """
    if plan.is_local:
        raise UserError(
            f"{plan.spec} is for this machine; Vertex AI has no such machine.", "Choose a GPU, such as l4:1."
        )
    problems = []
    low, high = DISK_GB
    if not low <= options.boot_disk_gb <= high:
        problems.append(f"A boot disk cannot have {options.boot_disk_gb} GB; give {low} to {high} GB.")
    if len(options.environment) > MAX_VARIABLES:
        problems.append(f"A container takes {MAX_VARIABLES} variables, not {len(options.environment)}.")
    problems += problems_of_variables(options.environment)
    problems += [f"The variable {name} is empty, which Vertex AI refuses." for name in _empty(options.environment)]
    if options.reduction_server and (reason := no_reduction_server(plan)):
        problems.append(f"A reduction server cannot be used: {reason}")
    return problems


def in_another_region(settings: ProjectSettings, region: str) -> list[str]:
    """The settings that a job in a region cannot use, because they are in another region."""
    found = []
    for name in ("encryption_key", "network_attachment", "tensorboard"):
        value = getattr(settings, name)
        parts = str(value or "").split("/")
        place = parts[3] if len(parts) > 3 else region
        if place not in (region, "global"):
            found.append(f"{name} is in {place}: {value}")
    return found


def _not_on_a_persistent_resource(plan: AcceleratorPlan, options: JobOptions) -> list[str]:
    """What does not go together with the existing machines of a persistent resource."""
    found = []
    if plan.strategy != "standard":
        found.append(
            f"A job on a persistent resource runs on its machines; {plan.strategy} is a way to get others. "
            "Leave --strategy and --reservation, or --persistent-resource, out."
        )
    if options.reduction_server:
        found.append(
            "The machines of a persistent resource cannot be joined by reduction servers. Leave one of them out."
        )
    return found


def _without_a_network(settings: ProjectSettings, options: JobOptions) -> list[str]:
    """Options that need a network, if there is none."""
    found = []
    if options.lustre_mounts and not (settings.network or settings.network_attachment):
        found.append("A Lustre file system is in a VPC network, and the job reaches none. Give --network-attachment.")
    if options.dns_peerings and not settings.network_attachment:
        found.append(
            "Names are resolved through a network attachment (Private Service Connect). Give --network-attachment."
        )
    return found


def _empty(environment: Mapping[str, str]) -> list[str]:
    return [name for name, value in environment.items() if not value]


def no_reduction_server(plan: AcceleratorPlan) -> str | None:
    """Why a plan cannot have reduction servers; None if it can."""
    if plan.nodes < 2:
        return "there is one machine, and nothing to exchange with another. Leave it out, or give --nodes."
    if plan.strategy == "flex-start":
        return "flex-start takes the same machine in every pool, and reduction servers have no GPU."
    machine, gpu = plan.machine, plan.gpu
    if machine is None or gpu is None or machine.gpudirect:
        return f"{plan.machine_type} exchanges gradients past the processor (GPUDirect), faster than any server could."
    if not plan.network_gbps:
        carriers = load_catalog().machines_with(gpu.name, plan.count)
        known = [other.name for other in carriers if other.network_with(gpu.name, plan.count)]
        other = f"Give --machine-type {known[0]}" if known else "Leave it out, or train on other GPUs, such as a100:8"
        return f"the network bandwidth of {machine.name}, by which the pool is sized, is not known. {other}."
    return None


def reduction_servers(plan: AcceleratorPlan) -> int:
    """How many reduction servers a plan needs: the bandwidth of all its machines over that of one server, 32 Gbit/s.

    The formula is that of Google's page on distributed training.
    """
    return math.ceil((plan.network_gbps or 0) * plan.nodes / _REDUCTION_GBPS)


def custom_job(
    plan: AcceleratorPlan,
    name: str,
    container: Container,
    settings: ProjectSettings,
    options: JobOptions,
    output_directory: str | None = None,
) -> dict[str, Any]:
    """A `CustomJob` with the field names of the API's protobuf types.

    Args:
        plan: its machines.
        name: its display name.
        container: container of each replica.
        settings: service account, network, key, TensorBoard and labels.
        options: disk, waiting, reduction servers and variables.
        output_directory: `gs://…`, from which Vertex AI makes AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and
            AIP_TENSORBOARD_LOG_DIR; None for none.

    Raises:
        UserError: plan, settings and options do not go together.
    """
    require_job(plan, settings, options)
    pools = worker_pool_specs(plan, container, options)
    return job_around(pools, scheduling(plan, options), name, settings, options, output_directory)


def job_around(
    pools: list[dict[str, Any]],
    scheduling: dict[str, Any],
    name: str,
    settings: ProjectSettings,
    options: JobOptions,
    output_directory: str | None = None,
) -> dict[str, Any]:
    """As `custom_job`, for worker pools of any kind."""
    spec: dict[str, Any] = {"worker_pool_specs": pools, "scheduling": scheduling}
    fill_spec(spec, settings, output_directory, web_access=options.web_access, dns_peerings=options.dns_peerings)
    return job_of(name, spec, settings)


def fill_spec(
    spec: dict[str, Any],
    settings: ProjectSettings,
    output_directory: str | None,
    *,
    web_access: bool,
    dns_peerings: Sequence[Mapping[str, str]] = (),
) -> None:
    """Sets the given fields of a `CustomJobSpec` besides pools and scheduling; others stay."""
    for name in ("service_account", "network", "tensorboard"):
        if value := getattr(settings, name):
            spec[name] = value
    if settings.network_attachment:
        spec["psc_interface_config"] = {"network_attachment": settings.network_attachment}
        if dns_peerings:
            spec["psc_interface_config"]["dns_peering_configs"] = [dict(each) for each in dns_peerings]
    if settings.persistent_resource:
        spec["persistent_resource_id"] = settings.persistent_resource
    if output_directory:
        spec["base_output_directory"] = {"output_uri_prefix": output_directory}
    if web_access:
        spec["enable_web_access"] = True


def job_of(name: str, spec: dict[str, Any], settings: ProjectSettings) -> dict[str, Any]:
    """The `CustomJob` of a `CustomJobSpec`, with the labels and the key of the settings."""
    job: dict[str, Any] = {"display_name": name, "job_spec": spec}
    if settings.labels:
        job["labels"] = dict(settings.labels)
    if settings.encryption_key:
        job["encryption_spec"] = {"kms_key_name": settings.encryption_key}
    return job


def worker_pool_specs(
    plan: AcceleratorPlan, container: Container, options: JobOptions | None = None
) -> list[dict[str, Any]]:
    """The worker pools of a job, as `aiplatform.CustomJob(worker_pool_specs=…)` takes them.

    Rank 0 is alone in the first pool, the other machines are in the second, and reduction servers, if requested, in the
    third. The way to buy the machines is not part of the pools; see `AcceleratorPlan.scheduling_strategy`.

    Args:
        plan: machines of the job.
        container: container of each machine.
        options: disk, variables, reduction servers and mounts; left out, the defaults.

    Raises:
        UserError: the plan is for this machine, or plan and options do not go together.
    """
    options = options or JobOptions()
    if problems := _problems_of_pools(plan, options):
        raise UserError.of_all(problems)
    pools = worker_pools(machine_spec(plan), plan.nodes, plan.boot_disk_type, container, options)
    return [*pools, reduction_pool(plan, container.image)] if options.reduction_server else pools


def worker_pools(
    machine: dict[str, Any], nodes: int, boot_disk_type: str | None, container: Container, options: JobOptions
) -> list[dict[str, Any]]:
    """The pools of machines with the same container: rank 0 alone, then the others.

    Args:
        machine: `MachineSpec` of each.
        nodes: number of machines.
        boot_disk_type: type of the boot disk, such as pd-ssd.
        container: container of each.
        options: disk and variables.
    """
    container_spec: dict[str, Any] = {"image_uri": container.image}
    if container.command:
        container_spec["command"] = list(container.command)
    if container.arguments:
        container_spec["args"] = list(container.arguments)
    if options.environment:
        container_spec["env"] = environment_variables(options.environment)
    pool = {
        "machine_spec": machine,
        "replica_count": 1,
        "disk_spec": {"boot_disk_type": boot_disk_type, "boot_disk_size_gb": options.boot_disk_gb},
        "container_spec": container_spec,
        **({"lustre_mounts": [dict(each) for each in options.lustre_mounts]} if options.lustre_mounts else {}),
    }
    return [pool] + ([{**pool, "replica_count": nodes - 1}] if nodes > 1 else [])


def environment_variables(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Variables in the form of `ContainerSpec.env`."""
    return [{"name": name, "value": value} for name, value in environment.items()]


def scheduling(plan: AcceleratorPlan, options: JobOptions) -> dict[str, Any]:
    """`Scheduling` of a plan."""
    found: dict[str, Any] = {"strategy": plan.scheduling_strategy, "timeout": timeout(plan)}
    if plan.strategy == "flex-start":
        found["max_wait_duration"] = max_wait(options)
    if plan.nodes > 1:
        found["restart_job_on_worker_restart"] = True
    return found


def timeout(plan: AcceleratorPlan) -> str:
    """The time limit of the job, as the API writes durations."""
    return seconds_of(plan.hours or DEFAULT_HOURS)


def max_wait(options: JobOptions) -> str:
    """The longest wait of a Flex-start job for machines, as the API writes durations."""
    return seconds_of(DEFAULT_MAX_WAIT_HOURS if options.max_wait_hours is None else options.max_wait_hours)


def seconds_of(hours: float) -> str:
    """Hours as the API writes durations."""
    return f"{round(hours * 3600)}s"


def reduction_pool(plan: AcceleratorPlan, image: str) -> dict[str, Any]:
    """The pool of reduction servers, from the registry nearest to that of the image."""
    place = next((place for place in _REDUCTION_REGISTRIES if image.startswith(place)), "us")
    return {
        "machine_spec": {"machine_type": REDUCTION_MACHINE},
        "replica_count": reduction_servers(plan),
        "container_spec": {"image_uri": _REDUCTION_IMAGE.format(place)},
    }
