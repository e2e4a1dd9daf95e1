"""The scale tiers of AI Platform Training, which stood for machines. Vertex AI has none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Replicas:
    """Machines of one role.

    Attributes:
        machine_type: machine type of Compute Engine.
        count: how many.
        accelerator: type and number of GPUs of each.
    """

    machine_type: str
    count: int = 1
    accelerator: tuple[str, int] | None = None


@dataclass(frozen=True)
class ScaleTier:
    """What a tier stood for.

    Attributes:
        master, worker, parameter_server: its machines; None for none.
    """

    master: Replicas
    worker: Replicas | None = None
    parameter_server: Replicas | None = None


#: That BASIC_GPU has one K80 is on Google's page on GPUs for AI Platform Training; machines are from general knowledge.
SCALE_TIERS = {
    "BASIC": ScaleTier(Replicas("n1-standard-4")),
    "BASIC_GPU": ScaleTier(Replicas("n1-standard-8", accelerator=("NVIDIA_TESLA_K80", 1))),
    "STANDARD_1": ScaleTier(Replicas("n1-highcpu-8"), Replicas("n1-highcpu-8", 4), Replicas("n1-standard-4", 3)),
    "PREMIUM_1": ScaleTier(Replicas("n1-highcpu-16"), Replicas("n1-highcpu-16", 19), Replicas("n1-highmem-8", 11)),
}
