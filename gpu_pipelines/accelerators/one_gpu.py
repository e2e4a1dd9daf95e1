"""The plan of a step that uses one GPU, in a pipeline whose training has many."""

from __future__ import annotations

from dataclasses import replace

from gpu_pipelines.accelerators.plan import AcceleratorPlan, PlanError, plan


def one_gpu(training: AcceleratorPlan) -> AcceleratorPlan:
    """A plan for one GPU of the same kind, bought in the same way and region.

    Where one alone is not surely sold, and with a reservation, whose machines are all of one type, it is one machine of
    the training's.

    Args:
        training: the plan of the training.
    """
    if training.is_local or training.gpu is None:
        return training
    one_machine = replace(training, nodes=1)
    if training.strategy == "reservation":
        return one_machine
    try:
        alone = plan(f"{training.gpu.name}:1", region=training.region, strategy=training.strategy, hours=training.hours)
    except PlanError:
        return one_machine
    surely = alone.machine is not None and alone.machine.offered(alone.strategy) == "yes"
    return alone if surely else one_machine
