"""The machine of a plan as Vertex AI takes it."""

from __future__ import annotations

from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan

_SNAKE = {"reservationAffinityType": "reservation_affinity_type"}


def machine_spec(plan: AcceleratorPlan) -> dict[str, Any]:
    """`MachineSpec` of each machine of a plan."""
    spec: dict[str, Any] = {
        "machine_type": plan.machine_type,
        "accelerator_type": plan.accelerator_type,
        "accelerator_count": plan.count,
    }
    if plan.partition:
        spec["gpu_partition_size"] = plan.partition
    if affinity := plan.reservation_affinity:
        spec["reservation_affinity"] = {_SNAKE.get(name, name): value for name, value in affinity.items()}
    return spec
