"""The lock of a training's checkpoints, as the run that the platform says this process belongs to."""

from __future__ import annotations

import os

from gpu_pipelines.artifacts.checkpoint_lock import LEASE_SECONDS, CheckpointLock
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import CHECKPOINT_LEASE, RUN

#: What Vertex AI calls a custom job on its replicas; the same after a restart of the job.
_VERTEX_JOB = "CLOUD_ML_JOB_ID"


def lock_of(store: CheckpointStore) -> CheckpointLock:
    """The lock of a store for this process, as the run that the platform says it belongs to.

    Raises:
        UserError: the length of its lease is no number of seconds.
    """
    text = os.environ.get(CHECKPOINT_LEASE, "")
    try:
        lease = float(text) if text else LEASE_SECONDS
    except ValueError:
        lease = 0.0
    if not 0.1 <= lease <= 3600:
        raise UserError(f"{CHECKPOINT_LEASE} is {text!r}.", "Give seconds, from 0.1 to 3600.")
    return CheckpointLock(store.uri, os.environ.get(RUN) or os.environ.get(_VERTEX_JOB, ""), lease)
