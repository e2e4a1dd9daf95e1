"""How many operations a model takes, and how many its devices could do: what model FLOPs utilization is made of."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.recipes.recipe import Batch, Recipe


def flops_per_row(recipe: Recipe, model: nn.Module, batch: Batch, rows: int) -> float:
    """Floating-point operations to train on one row, counted in a forward pass over a batch.

    The backward pass takes twice the forward pass: the gradients of activations and of weights. The latter are not
    computed for frozen weights. Recomputed activations do not count.
    Source: Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, appendix B.

    Args:
        recipe: knows how to call the model.
        model: as it is trained; every process calls this if it is sharded.
        batch: rows as the recipe makes them.
        rows: their number.
    """
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    share_trained = trained / max(1, sum(p.numel() for p in model.parameters()))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        recipe.loss(model, batch)
    return counter.get_total_flops() * (2 + share_trained) / rows


def peak_flops(device_name: str, precision: str) -> float | None:
    """Dense peak of a GPU in operations per second, from the catalog; None if it does not know the GPU.

    Args:
        device_name: as PyTorch gives it, such as "NVIDIA H100 80GB HBM3".
        precision: bf16, fp16 or fp32.
    """
    words = set(device_name.lower().replace("-", " ").split())
    found = [gpu for gpu in load_catalog().gpus.values() if _model_of(gpu.name) <= words]
    if not found:
        return None
    tflops = {"bf16": found[0].bf16_tflops, "fp16": found[0].fp16_tflops, "fp32": found[0].fp32_tflops}[precision]
    return tflops * 1e12 if tflops else None


def _model_of(name: str) -> set[str]:
    """The words of a GPU's name without the size of its memory or its machine, which do not change its peak."""
    return {word for word in name.split("-") if word != "mega" and not word.endswith("gb")}
