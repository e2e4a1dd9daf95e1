"""Environment variables that a target sets on a step, and their meanings. Never read at import."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

#: The mount point of a project's buckets in the containers of Vertex AI's jobs.
MOUNTED = "/gcs/"

# The accelerators of the step, such as cpu:2. Unset: all GPUs of the machine, else two CPU processes.
ACCELERATOR = "GPU_PIPELINES_ACCELERATOR"

# The accelerators that the author of a pipeline wants for the step, as JSON: component_interface/accelerate.py. A
# target removes it when it places the step.
WISH = "GPU_PIPELINES_WISH"

# A digest of what the step reads besides its inputs (files of the user, the registry, this program). No step reads it:
# it is part of the local runner's cache key of the step, so that a change makes the step run again.
INPUT_STATE = "GPU_PIPELINES_INPUT_STATE"

# A directory or gs://… in which prepare_data keeps finished work until all is finished, to continue after an
# interruption. Unset: a place of the run's own.
UNFINISHED_WORK = "GPU_PIPELINES_UNFINISHED_WORK"

# For a rehearsal without GPUs of a step placed on them: cpu:N runs N CPU processes on each node instead.
REHEARSE = "GPU_PIPELINES_REHEARSE"

# The run of the step, if the platform fills it into no parameter; `in_this_run` of component_interface/step.py.
RUN = "GPU_PIPELINES_RUN"

# The folder above the checkpoints of a local run's trainings, filled in by `in_this_run`. A run that continues another
# uses the folder of that one. As a parameter it would be in the key of cached results.
RUN_CHECKPOINTS = "GPU_PIPELINES_RUN_CHECKPOINTS"

# The directory of a run on this machine, for code that starts a container of it.
RUN_DIRECTORY = "GPU_PIPELINES_RUN_DIRECTORY"

# What tells the processes of one step of a local run from those of the others.
STEP = "GPU_PIPELINES_STEP"

# The time for processes that end by themselves after the step that started them, such as those of `multiprocessing`:
# what is left then is killed, here and on the emulator.
SECONDS_AFTER_STEP = 2.0

# A place that a step may write to while it runs, gs:// or a mounted directory. It is set if the platform itself moves
# artifacts from and to object storage, before and after the step: their local paths are then used, whatever their URIs
# are. Unset: a step reads and writes artifacts in Cloud Storage itself.
STORAGE = "GPU_PIPELINES_STORAGE"

# Seconds before the second, third … attempt at a step that failed because of a service, such as 10,60; empty: no
# further attempt. Unset: component_interface/attempts.py.
PAUSES = "GPU_PIPELINES_PAUSES"

# The number of the attempt; set by a step that starts itself again. Unset: the first.
ATTEMPT = "GPU_PIPELINES_ATTEMPT"

# Seconds of silence after which a training has lost its right to write its checkpoints; see
# gpu_pipelines/artifacts/checkpoint_lock.py. Unset: 60.
CHECKPOINT_LEASE = "GPU_PIPELINES_CHECKPOINT_LEASE"

# Average hours until a machine of the step is preempted; the fewer, the more often a training saves its state. Set on
# Spot machines. Unset: they are not preempted.
PREEMPTION_HOURS = "GPU_PIPELINES_PREEMPTION_HOURS"
#: An assumption: Google publishes the shares of Spot VMs preempted on a day, by machine type and zone
#: (`advice.capacityHistory` of Compute Engine), but no hours.
SPOT_HOURS = 24

# What was tried before this job got its machines, and these, as JSON: rows for the report of the training. Unset:
# nothing else was tried.
TRIES = "GPU_PIPELINES_TRIES"

# How often within an hour the processes of a training are started again on the same machines, after one was killed or
# lost its device or its connection. Unset: gpu_pipelines/distributed/restarts.py. 0: never.
RESTARTS = "GPU_PIPELINES_RESTARTS"

# The tracker of a local run, and the directory of the run that it is or continues. As parameters they would be in the
# key of cached results: a change of the tracker would train again.
TRACKING, TRACKED_RUN = "GPU_PIPELINES_TRACKING", "GPU_PIPELINES_TRACKED_RUN"

# `EnvVar.name` of Vertex AI and of Kubernetes; a shell allows no others either.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def preemption_variables(strategy: str) -> dict[str, str]:
    """The variables for a kind of provisioning: Spot machines may be preempted."""
    return {PREEMPTION_HOURS: str(SPOT_HOURS)} if strategy == "spot" else {}


def problems_of_variables(names: Iterable[str]) -> list[str]:
    """Problems with the names of a container's variables."""
    return [
        f"{name[:80]!r} is not the name of a variable: letters, digits and underscores, and no digit first."
        for name in names
        if not _NAME.fullmatch(name)
    ]


@contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of this process, and of its child processes, within the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
