"""The gains of torch.compile, memory formats, attention kernels and loss kernels on one GPU, beside a plain step.

Without a GPU it says so and ends. A step is the engine's own: a recipe's batch and loss under autocast, clipped
gradients, AdamW. Prints a table, and as its last line one JSON object.
`--device cpu --small` tries it without a GPU.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from contest import Machine, conclude
from torch import nn
from workloads import write_dataset

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.tasks.causal_lm import chunked_loss
from gpu_pipelines.tasks.recipe import Batch, Recipe
from gpu_pipelines.tasks.tasks import TASKS

WARMUP, TIMED = 5, 16
PLAIN = "as it is"


@dataclass(frozen=True)
class Case:
    """A model and its batch.

    Attributes:
        model: a model of the task's recipe.
        task: the task of the dataset.
        shape: the shape of one row: channels, height, width; or tokens.
        rows: the rows of a batch.
        vocabulary: the number of tokens, for text.
        widths: tokens of the longest row of each batch, if batches differ.
        variants: ways to compute it, besides `PLAIN`.
        precision: bf16 or fp32.
    """

    model: str
    task: str
    shape: tuple[int, ...]
    rows: int
    variants: tuple[str, ...]
    vocabulary: int = 0
    precision: str = "bf16"
    widths: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.model}, {self.rows} rows, {self.precision}"


_IMAGE = (3, 224, 224)
CASES = (
    Case("vit-base", "image_classification", _IMAGE, 128, ("compiled", "compiled whole", "TF32")),
    Case("llama-1b", "causal_lm", (2048,), 4, ("compiled", "by a mask", "without liger"), 32_000),
    Case("gpt2", "causal_lm", (1024,), 16, ("compiled", "by a mask", "TF32"), 32_000),
    Case(
        "convnext-tiny", "image_classification", _IMAGE, 128, ("channels_last", "cudnn.benchmark", "both", "compiled")
    ),
    Case(
        "resnet-50",
        "image_classification",
        _IMAGE,
        256,
        ("channels_last", "channels_last rows", "cudnn.benchmark", "both"),
    ),
    Case(
        "bert-base",
        "text_classification",
        (512,),
        64,
        ("compiled",),
        30_000,
        widths=(96, 160, 288, 64, 448, 224, 512, 128),
    ),
    Case("vit-base", "image_classification", _IMAGE, 128, ("TF32",), precision="fp32"),
)
SMALL = (
    Case("vit-micro", "image_classification", (3, 32, 32), 8, ("compiled", "compiled whole", "TF32")),
    Case("resnet-micro", "image_classification", (3, 32, 32), 8, ("channels_last", "cudnn.benchmark", "both")),
    Case("gpt2-micro", "causal_lm", (128,), 4, ("compiled", "by a mask", "without liger"), 500),
    Case("bert-micro", "text_classification", (128,), 8, ("compiled",), 500, widths=(32, 96, 128, 64)),
)


def main() -> None:
    """Times each variant of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models")
    parser.add_argument("--models", default="", help="these alone, with commas between them")
    asked = parser.parse_args()
    machine = replace(Machine.of(asked.device), processes=1)
    results: dict[str, Any] = {}
    print(f"{'':28} {'ms a step':>10} {'GB':>7} {'first step, s':>14} {'speed':>7}")
    for case in SMALL if asked.small else CASES:
        if asked.models and case.model not in asked.models.split(","):
            continue
        print(case)
        with tempfile.TemporaryDirectory() as folder:
            batches_of = _batches(case, Path(folder), torch.device(asked.device))
            for variant in (PLAIN, *case.variants):
                gc.collect()  # of the previous model, which would count
                if asked.device == "cuda":
                    torch.cuda.empty_cache()
                torch._dynamo.reset()
                try:
                    found = measure(case, variant, batches_of, asked.device)
                except Exception as error:  # a feature missing in one case must not hide the others
                    print(f"    {variant:24} failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
                    results[f"{case}: {variant}"] = {"failed": str(error)[:300]}
                    continue
                results[f"{case}: {variant}"] = found
                plain = results[f"{case}: {PLAIN}"].get("ms", float("nan"))
                found["speed"] = round(plain / found["ms"], 3)
                print(
                    f"    {variant:24} {found['ms']:10.2f} {found['gb']:7.2f} {found['first_step_seconds']:14.1f} "
                    f"{found['speed']:7.3f}   loss {found['loss']:.5f}",
                    flush=True,
                )
    conclude("training_gpu_variants", machine, results, {})


def _batches(case: Case, folder: Path, device: torch.device) -> Callable[[], tuple[Recipe, list[Batch]]]:
    write_dataset(folder / "data", case.task, case.shape, case.rows, case.vocabulary, documents=3)
    dataset = Dataset(folder / "data")

    def made() -> tuple[Recipe, list[Batch]]:
        recipe = TASKS[case.task].load_recipe().for_dataset(dataset)
        batches = []
        for width in case.widths or (0,):
            columns = dataset.split("train").take(np.arange(case.rows))
            if width:
                columns["length"] = np.minimum(columns["length"], width)
                columns["length"][0] = width
            batches.append(recipe.batch(columns, device))
        return recipe, batches

    return made


def measure(
    case: Case, variant: str, batches_of: Callable[[], tuple[Recipe, list[Batch]]], device: str
) -> dict[str, float]:
    """Milliseconds of a step, the median for equal batches, else the mean; GB; seconds of the first step."""
    recipe, batches = batches_of()
    torch.manual_seed(0)
    with torch.device(device):
        model = _model(case, recipe).train()
    if variant in ("channels_last", "both"):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if variant in ("channels_last", "channels_last rows", "both"):
        for batch in batches:
            batch["pixel_values"] = batch["pixel_values"].to(memory_format=torch.channels_last)
    if variant == "by a mask":
        recipe.attention = "sdpa"
    for block in {"compiled": recipe.blocks(model) or [model], "compiled whole": [model]}.get(variant, []):
        block.compile()
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=device == "cuda")
    coming = cycle(batches)

    def step() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=case.precision == "bf16"):
            loss = recipe.loss(model, next(coming))
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with _set(variant):
        seconds = [_timed(step, device) for _ in range(WARMUP * len(batches) + TIMED)]
        loss = step()
    memory = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0
    return {
        "ms": round(1e3 * (statistics.mean if case.widths else statistics.median)(seconds[-TIMED:]), 3),
        "gb": round(memory, 3),
        "first_step_seconds": round(seconds[0], 2),
        "loss": loss.item(),
    }


def _model(case: Case, recipe: Recipe) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification, ResNetConfig, ResNetForImageClassification

    if case.model == "resnet-50":
        return ResNetForImageClassification(ResNetConfig(num_labels=10))
    if case.model == "bert-base":
        return BertForSequenceClassification(BertConfig(num_labels=10, vocab_size=case.vocabulary))
    return recipe.build_model(case.model)


def _timed(step: Callable[[], torch.Tensor], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


@contextmanager
def _set(variant: str) -> Iterator[None]:
    """Sets PyTorch's global options within the block."""
    before = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    torch.backends.cudnn.benchmark = variant in ("cudnn.benchmark", "both")
    torch.set_float32_matmul_precision("high" if variant == "TF32" else "highest")
    without = patch.object(chunked_loss, "_has_liger", lambda device: False)
    try:
        with without if variant == "without liger" else nullcontext():
            yield
    finally:
        torch.backends.cudnn.benchmark = before[0]
        torch.set_float32_matmul_precision(before[1])


if __name__ == "__main__":
    main()
