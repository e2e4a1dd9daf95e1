"""Vertex AI's rules for custom jobs; one answer lists all violations, as in the service.

Messages are those that users have met; for other rules they follow the reference of the field:
https://cloud.google.com/vertex-ai/docs/reference/rest/v1/CustomJobSpec.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.accelerators.catalog import Catalog, Gpu, MachineType, load_catalog
from gpu_pipelines.accelerators.placement import located, usable_regions
from gpu_pipelines.emulator.api_error import ApiError

FLEX_START = api.Scheduling.Strategy.FLEX_START
LONGEST_FLEX_START = timedelta(days=7)
MOST_POOLS = 4
MOST_VARIABLES = 100
DISK_TYPES = ("pd-ssd", "pd-standard", "hyperdisk-balanced")
#: Machines without GPUs that custom training takes (page on configuring compute resources).
_CPU_MACHINES = re.compile(
    r"(e2-(standard|highmem|highcpu)|n[12]-(standard|highmem|highcpu)|c2-standard|m1-(ultramem|megamem))-\d+"
)
_TOO_SMALL = ("n1-standard-1", "n1-standard-2", "n1-highcpu-2", "n1-highcpu-4", "n1-highcpu-8")
_SMALLEST_N1 = "n1-standard-4"
_NETWORK = re.compile(r"projects/\d+/global/networks/[a-z0-9-]+")

Found = Iterator[tuple[str, str]]


def check_custom_job(job: Any, region: str) -> None:
    """Checks a CustomJob.

    Args:
        job: the job to create.
        region: its region.

    Raises:
        ApiError: lists all problems.
    """
    found = [*_check_job(job), *_check_pools(job.job_spec, region), *_check_scheduling(job.job_spec)]
    raise_found(found)


def raise_found(found: list[tuple[str, str]]) -> None:
    """Raises an error for the problems, if there are any, in Vertex AI's form."""
    if found:
        listed = "\t".join(f"{number}.Field: {name}; Message: {text}" for number, (name, text) in enumerate(found, 1))
        raise ApiError(400, f"List of found errors:\t{listed}\t")


#: `EnvVar.name`: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/EnvVar.
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


#: https://cloud.google.com/resource-manager/docs/labels-overview; the reference of Vertex AI says 64 characters.
MOST_LABELS = 64
_LONGEST_LABEL = 63
#: https://cloud.google.com/vertex-ai/docs/pipelines/machine-types: for a step that is not a custom job.
_MOST_CPUS, _MOST_MEMORY_GB = 96.0, 624.0


def check_name_and_labels(resource: Any) -> Found:
    """Problems with a resource's display name and labels."""
    if not resource.display_name:
        yield "display_name", "Display name is required."
    elif len(resource.display_name) > 128:
        yield "display_name", "The display name can be up to 128 characters long."
    yield from check_labels(resource)


def check_labels(resource: Any) -> Found:
    """Problems with a resource's labels."""
    if len(resource.labels) > MOST_LABELS:
        yield "labels", f"No more than {MOST_LABELS} labels can be associated with one resource."
    for key, value in resource.labels.items():
        if not (key and key[0].isalpha() and _is_of_a_label(key) and _is_of_a_label(value)):
            yield "labels", f"Label {key}: {value} is invalid."


def _is_of_a_label(text: str) -> bool:
    """Whether a text is short enough, of lower-case letters (in any language), digits, underscores and dashes."""
    return len(text) <= _LONGEST_LABEL and all(
        each in "_-" or each.isdigit() or (each.isalpha() and each == each.lower()) for each in text
    )


def check_steps(executors: Mapping[str, Any]) -> Found:
    """Problems with the machines of steps; texts with placeholders are ignored.

    Args:
        executors: the executors of a `PipelineDeploymentConfig`.
    """
    known = {gpu.enum for gpu in load_catalog().gpus.values()}
    for name, executor in executors.items():
        asked = executor.container.resources
        if asked.cpu_limit > _MOST_CPUS:
            yield f"{name}.resources.cpu_limit", f"A step has at most {_MOST_CPUS:.0f} vCPUs."
        if asked.memory_limit > _MOST_MEMORY_GB:
            yield f"{name}.resources.memory_limit", f"A step has at most {_MOST_MEMORY_GB:.0f} GB of memory."
        accelerator = asked.accelerator
        kind = accelerator.resource_type or accelerator.type
        if kind and "{{" not in kind and kind not in known and not kind.startswith("TPU"):
            yield f"{name}.resources.accelerator", f'Accelerator "{kind}" is not supported.'
        if asked.HasField("accelerator") and not kind:
            text = "Both `accelerator_type` and `accelerator_count` should be specified or none."
            yield f"{name}.resources.accelerator", text


def _check_job(job: Any) -> Found:
    yield from check_name_and_labels(job)
    spec = job.job_spec
    if spec.network and spec.psc_interface_config.network_attachment:
        yield "job_spec.network", "Network and psc_interface_config cannot be set together."
    if spec.network and not _NETWORK.fullmatch(spec.network):
        yield "job_spec.network", "Network must have the form projects/{project number}/global/networks/{network}."
    if spec.tensorboard and not spec.service_account:
        yield "job_spec.service_account", "A service account is required when a tensorboard is specified."
    prefix = spec.base_output_directory.output_uri_prefix
    if prefix and not prefix.startswith("gs://"):
        yield "job_spec.base_output_directory.output_uri_prefix", f"{prefix} is not a Google Cloud Storage URI."


def _check_pools(spec: Any, region: str) -> Found:
    pools = list(spec.worker_pool_specs)
    if not pools:
        yield "job_spec.worker_pool_specs", "At least one worker pool is required."
        return
    if len(pools) > MOST_POOLS:
        yield "job_spec.worker_pool_specs", f"At most {MOST_POOLS} worker pools can be specified."
    if pools[0].replica_count != 1:
        yield (
            "job_spec.worker_pool_specs[0].replica_count",
            "The primary replica's worker pool must have exactly one replica.",
        )
    for number, pool in enumerate(pools):
        # An unused pool in the middle is sent empty.
        if number == 0 or pool != api.WorkerPoolSpec():
            yield from _check_pool(f"job_spec.worker_pool_specs[{number}]", pool, region)


def _check_pool(where: str, pool: Any, region: str) -> Found:
    if pool.replica_count < 1:
        yield f"{where}.replica_count", "Replica count must be positive."
    yield from check_machine(f"{where}.machine_spec", pool.machine_spec, region)
    yield from _check_disk(f"{where}.disk_spec", pool)
    if "container_spec" in pool:
        if not pool.container_spec.image_uri:
            yield f"{where}.container_spec.image_uri", "Image URI is required."
        yield from _check_variables(f"{where}.container_spec.env", pool.container_spec.env)
    elif "python_package_spec" in pool:
        yield from _check_variables(f"{where}.python_package_spec.env", pool.python_package_spec.env)
    else:
        yield where, "One of container_spec and python_package_spec is required."


def _check_variables(where: str, variables: Any) -> Found:
    if len(variables) > MOST_VARIABLES:
        yield where, f"At most {MOST_VARIABLES} environment variables can be specified."
    for number, variable in enumerate(variables):
        if not _VARIABLE.fullmatch(variable.name):
            yield f"{where}[{number}].name", "Name is required, and must be a valid C identifier."
        if not variable.value:
            yield f"{where}[{number}].value", "Value is required."


def check_machine(where: str, spec: Any, region: str, too_small: Iterable[str] = _TOO_SMALL) -> Found:
    """Problems with a `MachineSpec`.

    Args:
        where: its field.
        spec: the machine.
        region: its region.
        too_small: machine types that are refused as too small; by default those that custom training refuses.
    """
    catalog = load_catalog()
    name, accelerator = spec.machine_type, api.AcceleratorType(spec.accelerator_type).name
    if not name:
        yield f"{where}.machine_type", "Machine type is required."
        return
    machine = catalog.machine_types.get(name)
    if machine is None and not too_small and name.startswith("n1-") and _CPU_MACHINES.fullmatch(name):
        # Predictions take smaller ones with the same GPUs.
        machine = catalog.machine_types[_SMALLEST_N1]
    if (machine is None and not _CPU_MACHINES.fullmatch(name)) or name in too_small:
        yield f"{where}.machine_type", f'Machine type "{name}" is not supported.'
        return
    if bool(spec.accelerator_type) != bool(spec.accelerator_count):
        yield (
            f"{where}.accelerator_type",
            "Both `accelerator_type` and `accelerator_count` should be specified or none.",
        )
    elif spec.accelerator_type:
        yield from _check_accelerator(where, spec, machine, accelerator, region, catalog)
    elif machine is not None and not name.startswith("n1-"):
        yield f"{where}.accelerator_type", f'Machine type "{name}" requires accelerators.'
    yield from _check_reservation(f"{where}.reservation_affinity", spec.reservation_affinity)


def _check_accelerator(
    where: str, spec: Any, machine: MachineType | None, accelerator: str, region: str, catalog: Catalog
) -> Found:
    gpu = next((gpu for gpu in catalog.gpus.values() if gpu.enum == accelerator), None)
    if gpu is None or gpu.has_ended(date.today()) or machine is None or gpu.name not in machine.gpu_counts:
        yield (
            f"{where}.accelerator_type",
            f'Accelerator "{accelerator}" is not supported for machine type "{spec.machine_type}".',
        )
    elif not machine.takes(gpu.name, spec.accelerator_count):
        yield (
            f"{where}.accelerator_count",
            f'Accelerator count {spec.accelerator_count} of "{accelerator}" is not supported for machine type '
            f'"{spec.machine_type}".',
        )
    elif spec.gpu_partition_size and spec.accelerator_count != 1:
        # Reference of `MachineSpec.gpu_partition_size`.
        yield f"{where}.accelerator_count", "Accelerator count must be 1 if gpu_partition_size is set."
    elif spec.gpu_partition_size and (gpu.name, spec.gpu_partition_size) not in catalog.partitions:
        yield f"{where}.gpu_partition_size", f'Partition size "{spec.gpu_partition_size}" is not supported.'
    elif not _is_in(gpu, machine, region, catalog):
        yield f"{where}.machine_type", f'Machine type "{spec.machine_type}" is not supported.'


def _is_in(gpu: Gpu, machine: MachineType, region: str, catalog: Catalog) -> bool:
    return not located(catalog, gpu.name) or region in usable_regions(catalog, gpu.name, [machine])


def _check_reservation(where: str, affinity: Any) -> Found:
    kinds = api.ReservationAffinity.Type
    if affinity.reservation_affinity_type == kinds.SPECIFIC_RESERVATION:
        if affinity.key != "compute.googleapis.com/reservation-name" or len(affinity.values) != 1:
            yield where, "A specific reservation needs its key and exactly one value."
    elif affinity.key or affinity.values:
        yield where, "Key and values are for SPECIFIC_RESERVATION only."


def _check_disk(where: str, pool: Any) -> Found:
    disk, machine = pool.disk_spec, load_catalog().machine_types.get(pool.machine_spec.machine_type)
    if disk.boot_disk_type and disk.boot_disk_type not in DISK_TYPES:
        yield f"{where}.boot_disk_type", f"Boot disk type {disk.boot_disk_type} is not supported."
    elif disk.boot_disk_type and machine and machine.boot_disk not in (disk.boot_disk_type, "pd-ssd"):
        # No page says that other machines refuse any of them.
        yield (
            f"{where}.boot_disk_type",
            f'Boot disk type {disk.boot_disk_type} is not supported for machine type "{machine.name}".',
        )
    if disk.boot_disk_size_gb and not 100 <= disk.boot_disk_size_gb <= 64000:
        yield f"{where}.boot_disk_size_gb", "Boot disk size must be between 100 and 64000 GB."


def _check_scheduling(spec: Any) -> Found:
    scheduling, where = spec.scheduling, "job_spec.scheduling"
    flexible = scheduling.strategy == FLEX_START
    if scheduling.timeout < timedelta(0):
        yield f"{where}.timeout", "Timeout must not be negative."
    if "max_wait_duration" in scheduling and not flexible:
        yield f"{where}.max_wait_duration", "Max wait duration can only be set with the FLEX_START strategy."
    if not flexible:
        return
    if scheduling.timeout > LONGEST_FLEX_START:
        yield f"{where}.timeout", "Timeout must be at most 604800 seconds with the FLEX_START strategy."
    machines = [pool.machine_spec for pool in spec.worker_pool_specs if pool != api.WorkerPoolSpec()]
    if any(machine != machines[0] for machine in machines):
        yield where, "FLEX_START requires the same machine configuration in all worker pools."
    gpus = {gpu.enum: gpu for gpu in load_catalog().gpus.values()}
    for machine in machines[:1]:
        gpu = gpus.get(api.AcceleratorType(machine.accelerator_type).name)
        if gpu is None or not gpu.flex_start:
            yield f"{where}.strategy", "FLEX_START is not supported for this machine and accelerator."
        kinds = api.ReservationAffinity.Type
        if machine.reservation_affinity.reservation_affinity_type in (
            kinds.ANY_RESERVATION,
            kinds.SPECIFIC_RESERVATION,
        ):
            yield f"{where}.strategy", "FLEX_START cannot be used together with reservations."
