"""The cost of a model: operations and activations for each row, and the peak of its devices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.accelerators.device_names import catalog_names
from gpu_pipelines.tasks.nf4 import Nf4Linear
from gpu_pipelines.tasks.recipe import Batch, Recipe
from gpu_pipelines.tasks.watched_attention import watchable
from gpu_pipelines.training.model.activations import activation_bytes


@dataclass(frozen=True)
class ModelCost:
    """What training a model takes.

    Attributes:
        trained_parameters: number of parameters that the optimizer changes.
        frozen_parameters: number of the others.
        nf4_parameters: number of frozen parameters in four bits.
        forward_flops_per_row: floating-point operations of a forward pass over one row.
        activation_bytes_per_row: bytes that the forward pass keeps of one row for the backward pass, with the largest
            layer that is recomputed there; None if the model is sharded.
    """

    trained_parameters: int
    frozen_parameters: int
    forward_flops_per_row: float
    activation_bytes_per_row: float | None
    nf4_parameters: int = 0

    @property
    def training_flops_per_row(self) -> float:
        """Operations to train on one row.

        The backward pass takes twice the forward pass: the gradients of activations and of weights. The latter are not
        computed for frozen weights. Recomputed activations do not count.
        Source: Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, appendix B.
        """
        parameters = self.trained_parameters + self.frozen_parameters
        return self.forward_flops_per_row * (2 + self.trained_parameters / max(1, parameters))


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Numbers of trained and of frozen parameters; a layer in four bits counts as its original one."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    more = sum(layer.packed.numel() - layer.scales.numel() for layer in _in_four_bits(model))
    return trained, sum(parameter.numel() for parameter in model.parameters()) - trained + more


def _in_four_bits(model: nn.Module) -> list[Nf4Linear]:
    return [module for module in model.modules() if isinstance(module, Nf4Linear)]


def measure_cost(recipe: Recipe, model: nn.Module, batch: Batch, rows: int, *, sharded: bool) -> ModelCost:
    """Counts operations and activations in forward passes over one batch.

    Args:
        recipe: knows how to call the model.
        model: ready for training, but not in a DDP wrapper; if it is sharded, all processes call this together.
        batch: rows as the recipe makes them.
        rows: their number.
        sharded: whether the model is sharded.
    """
    was_training = model.training
    model.eval()  # running statistics must not move
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _Untold()
    with watchable(model):
        with counter, torch.no_grad():
            recipe.loss(model, batch)
        if sharded:
            _gather_no_more(model)
        activations = None if sharded else activation_bytes(recipe, model, batch) / rows
    model.train(was_training)
    in_nf4 = sum(2 * layer.packed.numel() for layer in _in_four_bits(model))
    return ModelCost(*count_parameters(model), counter.get_total_flops() / rows, activations, in_nf4)


class _Untold(ModuleTracker):
    """Does not follow which module computes what: only the sum is asked for.

    PyTorch's tracker fails where a part of a weight is an input of a module, as DeBERTa's positions are.
    """

    def __enter__(self) -> _Untold:
        return self

    def __exit__(self, *of: object) -> None:
        pass


def _gather_no_more(model: nn.Module) -> None:
    """Ends what a forward pass has begun to gather and did not use, as where layers are called in another order.

    The next pass would take that, and not the weights that a checkpoint has brought since.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            module.reshard()


def peak_flops(device_name: str, precision: str) -> float | None:
    """Dense peak of a GPU in operations per second, from the catalog; None if it does not know the GPU.

    Args:
        device_name: PyTorch's name, such as "NVIDIA H100 80GB HBM3".
        precision: bf16, fp16 or fp32.
    """
    names = catalog_names(device_name)
    if not names:
        return None
    gpu = load_catalog().gpus[names[0]]
    tflops = {"bf16": gpu.bf16_tflops, "fp16": gpu.fp16_tflops, "fp32": gpu.fp32_tflops}[precision]
    return tflops * 1e12 if tflops else None
