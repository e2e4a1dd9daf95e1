"""Environment variables that a target sets on a step, and what each tells it. Never read at import."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

#: Where Vertex AI mounts the buckets of a project in the containers of its jobs.
MOUNTED = "/gcs/"

# Which accelerators the step is placed on, such as cpu:2. Unset: all GPUs of the machine, else two CPU processes.
ACCELERATOR = "GPU_PIPELINES_ACCELERATOR"

# Which accelerators the author of a pipeline wants for the step, as JSON: component_interface/accelerate.py. A target
# takes it out where it places the step.
WISH = "GPU_PIPELINES_WISH"

# A digest of what the step reads besides its inputs (files of the user, the registry, this program). No step reads it:
# it is part of the key under which the local runner caches the step, so that a change makes the step run again.
INPUT_STATE = "GPU_PIPELINES_INPUT_STATE"

# A directory or gs://… in which prepare_data keeps what is done until all is, so that an interrupted one is continued.
# Unset: a place of the run's own.
UNFINISHED_WORK = "GPU_PIPELINES_UNFINISHED_WORK"

# For a rehearsal without GPUs of what was placed on them: cpu:N runs N CPU processes on each node instead.
REHEARSE = "GPU_PIPELINES_REHEARSE"

# Which run the step belongs to, where the platform fills it into no parameter; `in_this_run` of
# component_interface/step.py.
RUN = "GPU_PIPELINES_RUN"

# Below which the trainings of a run on this machine have their checkpoints; `in_this_run` fills it in. A run that
# continues another has those of that one. As a parameter it would be in the key under which results are kept.
RUN_CHECKPOINTS = "GPU_PIPELINES_RUN_CHECKPOINTS"

# The directory of a run on this machine, for what starts a container of it.
RUN_DIRECTORY = "GPU_PIPELINES_RUN_DIRECTORY"

# A place that a step may write to while it runs, gs:// or a mounted directory. It is set where the platform itself
# moves artifacts from and to object storage, before and after the step: their local paths are to be used then, whatever
# their URIs are. Unset: a step reads and writes artifacts in Cloud Storage itself.
STORAGE = "GPU_PIPELINES_STORAGE"

# Seconds before the second, third … attempt at a step that a service has failed, such as 10,60; empty: no other
# attempt. Unset: component_interface/attempts.py.
PAUSES = "GPU_PIPELINES_PAUSES"

# Which attempt this is; a step sets it that starts itself again. Unset: the first.
ATTEMPT = "GPU_PIPELINES_ATTEMPT"

# Seconds after which a training that is not heard of has lost its right to write its checkpoints; see
# gpu_pipelines/artifacts/checkpoint_lock.py. Unset: 60.
CHECKPOINT_LEASE = "GPU_PIPELINES_CHECKPOINT_LEASE"

# Hours after which a machine of the step is expected to be preempted, on average; a training saves its state the more
# often, the fewer. Set on Spot machines. Unset: they are not preempted.
PREEMPTION_HOURS = "GPU_PIPELINES_PREEMPTION_HOURS"
#: An assumption: Google publishes shares of Spot VMs that were preempted on a day, by machine type and zone
#: (`advice.capacityHistory` of Compute Engine), and no hours.
SPOT_HOURS = 24

# What was tried before this job got its machines, and these, as JSON: a list of rows for the report of the training.
# Unset: nothing else was tried.
TRIES = "GPU_PIPELINES_TRIES"

# How often within an hour the processes of a training are started again on the same machines, where one was killed or
# lost its device or its connection. Unset: gpu_pipelines/distributed/restarts.py. 0: never.
RESTARTS = "GPU_PIPELINES_RESTARTS"

# What a run on this machine is tracked with, and the directory of the run that it is or continues. As parameters they
# would be in the key under which results are kept: whoever changes the tracker would train again.
TRACKING, TRACKED_RUN = "GPU_PIPELINES_TRACKING", "GPU_PIPELINES_TRACKED_RUN"

# `EnvVar.name` of Vertex AI and of Kubernetes; a shell knows no others either.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def preemption_variables(strategy: str) -> dict[str, str]:
    """What a step is told of machines that are bought in some way: that those of Spot are preempted."""
    return {PREEMPTION_HOURS: str(SPOT_HOURS)} if strategy == "spot" else {}


def problems_of_variables(names: Iterable[str]) -> list[str]:
    """What is wrong with the names of a container's variables."""
    return [
        f"{name[:80]!r} is not the name of a variable: letters, digits and underscores, and no digit first."
        for name in names
        if not _NAME.fullmatch(name)
    ]


@contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of this process, and so of those that it starts, for as long as the block runs."""
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
