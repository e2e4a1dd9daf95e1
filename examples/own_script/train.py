"""A loop in plain PyTorch: a small ViT on images, saved after some epochs in Hugging Face layout."""

import argparse
import json
import os
from pathlib import Path

import torch
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

from gpu_pipelines.artifacts.dataset import Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=32)
options = parser.parse_args()

dataset = Dataset(Path(os.environ["GPU_PIPELINES_DATASET"]))
rows, labels = dataset.split("train"), dataset.manifest.labels
channels, size, _ = dataset.manifest.features["image"].shape
torch.manual_seed(0)
model = ViTForImageClassification(
    ViTConfig(
        image_size=size,
        patch_size=size // 4,
        num_channels=channels,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
processor = ViTImageProcessor(size={"height": size, "width": size}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
step = 0
for epoch in range(1, options.epochs + 1):
    order = torch.randperm(len(rows))
    for chosen in order.split(options.batch_size):
        batch = rows.take(chosen.numpy())
        # From -1 to 1, as the preprocessor says that is saved beside the model.
        images = torch.from_numpy(batch["image"]).float() / 127.5 - 1
        loss = model(pixel_values=images, labels=torch.from_numpy(batch["label"]).long()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        with Path(os.environ["GPU_PIPELINES_METRICS"]).open("a") as file:
            file.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
    print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    if epoch % 5 == 0 or epoch == options.epochs:
        folder = Path(os.environ["GPU_PIPELINES_CHECKPOINTS"], f"checkpoint-{step}")
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
