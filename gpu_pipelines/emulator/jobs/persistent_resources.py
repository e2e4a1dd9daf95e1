"""Persistent resources: machines that stay between jobs, and the jobs that name them."""

from __future__ import annotations

import re
from typing import Any

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.jobs.job_states import now
from gpu_pipelines.emulator.jobs.rules import check_labels, check_machine, raise_found
from gpu_pipelines.emulator.names import Names, Resources, region_of
from gpu_pipelines.emulator.operations import Operations
from gpu_pipelines.emulator.state_folder import StateFolder

#: Reference of `CreatePersistentResourceRequest.persistent_resource_id`.
_ID = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_STATES: Any = api.PersistentResource.State


class PersistentResources(Resources):
    """The persistent resources of all projects."""

    def __init__(self, names: Names, operations: Operations, page_size: int, state: StateFolder) -> None:
        super().__init__(names, api.ListPersistentResourcesResponse, page_size, state)
        self._operations = operations

    def create(self, request: Any) -> Any:
        """CreatePersistentResource; its machines exist at once."""
        parent, key = self._names.number(request.parent), request.persistent_resource_id
        made = api.PersistentResource(request.persistent_resource)
        if not _ID.fullmatch(key):
            raise ApiError(400, f"The persistent resource id {key!r} does not match {_ID.pattern}.")
        if not made.resource_pools:
            raise ApiError(400, "At least one resource pool is required.")
        if "ray_spec" in made.resource_runtime_spec:
            raise ApiError(501, "The emulator has no Ray cluster on a persistent resource.")
        found = list(check_labels(made))
        for number, pool in enumerate(made.resource_pools):
            where = f"persistent_resource.resource_pools[{number}]"
            found += check_machine(f"{where}.machine_spec", pool.machine_spec, region_of(parent))
            if "autoscaling_spec" in pool:
                raise ApiError(501, f"The emulator does not change the size of pools: {where}.autoscaling_spec.")
            if pool.replica_count < 1:
                found.append((f"{where}.replica_count", "Replica count must be positive."))
            pool.id = pool.id or f"pool-{number}"
        raise_found(found)
        made.name, made.state = self._names.new(parent, self._kind, key), _STATES.RUNNING
        made.create_time = made.update_time = made.start_time = now()
        with self._lock:
            if made.name in self.held:
                raise ApiError(409, f"Persistent resource {made.name} already exists.")
            self.keep(made)
        return self._operations.done(made.name, made)

    def delete(self, request: Any) -> Any:
        """DeletePersistentResource."""
        name = self.one(request.name).name
        self.forget(name)
        return self._operations.done(name)

    def check_job(self, parent: str, spec: Any) -> None:
        """Checks that a job finds its machines on the resource that it names.

        Args:
            parent: project and region of the job.
            spec: its `CustomJobSpec`.

        Raises:
            ApiError: there is no such resource, or it has no such machines, or too few.
        """
        if not (key := spec.persistent_resource_id):
            return
        name = f"{parent}/{self._kind}/{key}"
        if name not in self.held:
            raise ApiError(404, f"Persistent resource {name} is not found.")
        held = self.held[name]
        if spec.network != held.network:
            raise ApiError(400, f"The network of the job is not that of persistent resource {key}: {held.network!r}.")
        pools = list(held.resource_pools)
        for number, wanted in enumerate(spec.worker_pool_specs):
            if wanted == api.WorkerPoolSpec():
                continue
            fitting = [pool for pool in pools if pool.machine_spec == wanted.machine_spec]
            if not any(pool.replica_count >= wanted.replica_count for pool in fitting):
                raise ApiError(
                    400,
                    f"Persistent resource {key} has no pool of {wanted.replica_count} machines as in "
                    f"job_spec.worker_pool_specs[{number}].",
                )
