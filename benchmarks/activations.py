"""The activations that image classifiers keep of one image for the backward pass, per operation of the forward pass.

Run with `python benchmarks/activations.py`; the rule of thumb of gpu_pipelines/accelerators/memory_estimate.py is based
on it. Nothing is timed and no weights are loaded.
"""

from __future__ import annotations

import json
import platform

import torch
import transformers
from torch import nn

from gpu_pipelines.tasks.recipe import Batch
from gpu_pipelines.training.model.compute import measure_cost

MODELS = {"ViT-B/16": "ViT", "ResNet-50": "ResNet", "ConvNeXt-T": "ConvNext", "Swin-T": "Swin"}


class _Loss:
    """The part of a recipe that counting needs."""

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return model(**batch).loss


def main() -> None:
    batch = {"pixel_values": torch.zeros(2, 3, 224, 224), "labels": torch.zeros(2, dtype=torch.long)}
    results = {}
    print("| model | forward GFLOP | MB in fp32 | bytes per operation |")
    print("| --- | --- | --- | --- |")
    for name, family in MODELS.items():
        configuration = getattr(transformers, f"{family}Config")(num_labels=1000)
        model = getattr(transformers, f"{family}ForImageClassification")(configuration).train()
        cost = measure_cost(_Loss(), model, batch, 2, sharded=False)  # type: ignore[arg-type]
        kept, flops = cost.activation_bytes_per_row or 0.0, cost.forward_flops_per_row
        results[name] = kept / flops
        print(f"| {name} | {flops / 1e9:.1f} | {kept / 1e6:.0f} | {kept / flops:.4f} |")
    print(json.dumps({"benchmark": "activations", "machine": platform.machine(), "results": results, "ratios": {}}))


if __name__ == "__main__":
    main()
