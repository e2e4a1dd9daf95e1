"""The work of a step on all its machines: on one with its processes, on several as a Ray cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.artifacts.versioned_file import versioned_file
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.ray_cluster import RayTiming, on_ray_cluster

Result = TypeVar("Result")
_FOLDER = "ray-clusters"


def on_machines(
    cluster: Cluster, place: str, work: Callable[[str], Result], timing: RayTiming | None = None
) -> Result | None:
    """Does the work of a step with all its machines; every one calls this function.

    Args:
        cluster: the machines.
        place: a directory or `gs://…` that all of them see; it has the token of their Ray cluster while the work runs.
        work: called on rank 0 with the address for `executor_for`, which is empty on one machine.
        timing: times between checks; for tests.

    Returns:
        The result of `work`; None on a machine that is not rank 0.

    Raises:
        UserError: the work failed, here or on rank 0, or the cluster could not be started.
        Interrupted: this machine was interrupted.
    """
    if cluster.nodes == 1:
        return work("")
    folder = f"{place.rstrip('/')}/{_FOLDER}"
    if not is_remote(folder):
        # Anybody who reads the token can run code on these machines.
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    members = json.dumps([cluster.addresses, cluster.rank_0_address, cluster.rank_0_port])
    key = hashlib.sha256(members.encode()).hexdigest()[:16]
    try:
        return on_ray_cluster(cluster, versioned_file(f"{folder}/{key}.json"), work, timing)
    finally:
        with suppress(OSError):  # it is in object storage, or has files of others
            Path(folder).rmdir()
