"""The peer of the local pipeline: one hand-written script, started by torchrun, that does only the minimum.

Same data, model, optimizer, batch, steps and number of processes; it writes only the final model and the last
checkpoint, and has no intervals, reports or registry.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers.models.convnext import ConvNextConfig, ConvNextForImageClassification

BATCH, STEPS, RATE, WARMUP = 64, 336, 4e-3, 30


def main(path: str) -> None:
    """Trains, prints the test accuracy, and saves the model to `path`."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order][:, None] / 8 - 1, dtype=torch.float32)
    labels = torch.tensor(digits.target[order])
    train = len(labels) - 360
    torch.manual_seed(0)
    config = ConvNextConfig(
        num_channels=1,
        num_stages=2,
        hidden_sizes=[32, 64],
        depths=[2, 2],
        patch_size=1,
        num_labels=10,
        layer_scale_init_value=1.0,
    )
    model = ConvNextForImageClassification(config)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=RATE, weight_decay=0.05, fused=True)
    stream = np.concatenate([np.random.default_rng([0, epoch]).permutation(train) for epoch in range(16)])
    for step in range(STEPS):
        rows = stream[step * BATCH : (step + 1) * BATCH][rank * BATCH // world : (rank + 1) * BATCH // world]
        for group in optimizer.param_groups:
            cosine = 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))
            group["lr"] = RATE * min((step + 1) / WARMUP, cosine if step >= WARMUP else 1.0)
        optimizer.zero_grad()
        cross_entropy(parallel(pixel_values=images[rows]).logits, labels[rows]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            right = model(pixel_values=images[-180:]).logits.argmax(-1) == labels[-180:]
        model.save_pretrained(path)
        print(f"test accuracy {right.float().mean():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
