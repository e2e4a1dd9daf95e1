"""The plan of the evaluation, which needs one GPU, in a pipeline whose training has many."""

from __future__ import annotations

from dataclasses import replace

from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.accelerators.memory_estimate import RUNTIME_GB, USABLE
from gpu_pipelines.accelerators.plan import AcceleratorPlan, PlanError, plan
from gpu_pipelines.accelerators.request import require_gpu
from gpu_pipelines.errors import UserError

#: Models are evaluated in fp32, and two at most are in memory: that of the training, and the champion.
_BYTES_PER_PARAMETER, _MODELS = 4, 2
#: Training with AdamW in fp32 takes four times its weights (weights, gradients, two moments), so that a model which
#: each GPU of the training holds whole is evaluated, beside a champion, in half the memory.
_SHARE_OF_TRAINING = 0.5


def evaluation_memory_gb(parameters: float, models: int = _MODELS) -> float:
    """The memory that a GPU must have to evaluate a model, GB.

    Args:
        parameters: of the model.
        models: how many of that size are in memory.
    """
    return (models * _BYTES_PER_PARAMETER * parameters / 1e9 + RUNTIME_GB) / USABLE


def one_gpu(training: AcceleratorPlan) -> AcceleratorPlan:
    """A plan for one GPU of the same kind, bought in the same way and region.

    If one GPU alone is not surely sold, and with a reservation, whose machines are all of one type, the plan is for one
    of the training's machines.

    Args:
        training: the plan of the training.
    """
    if training.is_local or training.gpu is None:
        return training
    if training.partition:
        return replace(training, nodes=1)
    alone = None if training.strategy == "reservation" else _alone(training, training.gpu.name)
    return alone or replace(training, nodes=1)


def evaluation_plan(training: AcceleratorPlan, parameters: float | None = None) -> AcceleratorPlan:
    """The plan of the evaluation if none is named.

    1. With a reservation, one machine of the training's: it is paid for.
    2. One GPU of the training's kind, if one alone is sold in the same way and holds the model: the project has the
       quota for it.
    3. Else the GPU with the least memory that holds the model, among those that are sold alone in the same way and
       region, compute in the precision of the training, and are not about to end.
    4. If none holds it, the same for the model without a champion; else one machine of the training's.

    A model of unknown size is assumed to fit whole into each GPU of the training.

    Args:
        training: the plan of the training.
        parameters: of the model; None if its size is not known.
    """
    same_kind = one_gpu(training)
    if training.gpu is None or training.strategy == "reservation":
        return same_kind
    if parameters is None:
        wishes = [_SHARE_OF_TRAINING * training.gpu.memory_gb]
    else:
        wishes = [evaluation_memory_gb(parameters, models) for models in range(_MODELS, 0, -1)]
    for needed in wishes:
        if same_kind.count == 1 and training.gpu.memory_gb >= needed:
            return same_kind
        if found := _smallest_alone(training, needed):
            return found
    return replace(training, nodes=1)


def named_evaluation_plan(spec: str, training: AcceleratorPlan) -> AcceleratorPlan:
    """The plan of an accelerator that was named for the evaluation.

    It is bought like the training's. It is bought on demand if it is not sold like that, and if the training has a
    reservation, which has only the training's machines.

    Args:
        spec: `NAME:COUNT`.
        training: the plan of the training.

    Raises:
        UserError: it is not available in the region of the training.
    """
    require_gpu(spec, "the cloud")
    for strategy in dict.fromkeys((training.strategy, "standard")):
        if strategy == "reservation":
            continue
        try:
            return plan(spec, region=training.region, strategy=strategy, hours=training.hours)
        except PlanError as error:
            refused = error
    raise UserError(f"--evaluation-accelerator {spec[:40]}: {refused}") from None


def _smallest_alone(training: AcceleratorPlan, memory_gb: float) -> AcceleratorPlan | None:
    kinds = [gpu for gpu in load_catalog().gpus.values() if gpu.ends is None and gpu.memory_gb >= memory_gb]
    if training.precision == "bf16":
        kinds = [gpu for gpu in kinds if gpu.supports_bf16]
    kinds.sort(key=lambda gpu: (gpu.memory_gb, gpu.memory_bandwidth_gb_s))
    plans = (_alone(training, gpu.name) for gpu in kinds)
    return next((found for found in plans if found is not None), None)


def _alone(training: AcceleratorPlan, gpu: str) -> AcceleratorPlan | None:
    """One GPU on a machine of its own, bought as the training's are; None if that is not surely sold."""
    try:
        found = plan(f"{gpu}:1", region=training.region, strategy=training.strategy, hours=training.hours)
    except PlanError:
        return None
    return found if found.machine is not None and found.machine.offered(found.strategy) == "yes" else None
