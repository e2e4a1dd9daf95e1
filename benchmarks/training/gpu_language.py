"""The speed and memory of LoRA on a Llama 3 with eight billion parameters, on one GPU.

Run by `make bench-gpu`; without a GPU it says so and ends. The weights are random: speed does not depend on them. NeMo
AutoModel reports 12,473 tokens a second on one H100, for rows of 4,096 tokens, adapters of rank 16 and a micro-batch of
1 (https://docs.nvidia.com/nemo/automodel/performance/performance-summary.md). Activations are recomputed only with
weights in four bits, which are for a small GPU. Prints a table, and as its last line one JSON object.
`--device cpu --layers 2 --hidden 64 --tokens 128 --words 500` tries it without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from contest import Machine, conclude
from language_model_memory import JOBS, Job
from safetensors.torch import save_file
from workloads import TOKENIZER, write_dataset

from gpu_pipelines.accelerators.memory_estimate import estimate_memory
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

GOAL_TOKENS_PER_SECOND, PUBLISHED_TOKENS_PER_SECOND = 12_400, 12_473
CASES = ("8B, LoRA 16, one H100, nothing recomputed", "8B, LoRA 16 on NF4, one L4")
_INITIAL_DEVIATION = 0.02


def main() -> None:
    """Writes the model once, and trains adapters of it in each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rows", type=int, default=4, help="of a step, each taken alone")
    parser.add_argument("--cases", default=",".join(map(str, range(len(CASES)))), help="numbers of the ways")
    parser.add_argument("--compile", choices=("on", "off"), default="on", help="as auto does in a long training")
    for name in ("layers", "hidden", "tokens", "words"):
        parser.add_argument(f"--{name}", type=int, help="instead of Llama 3's")
    asked = parser.parse_args()
    machine = replace(Machine.of(asked.device), processes=1)
    shape = {name: getattr(asked, name) for name in ("layers", "hidden", "tokens", "words") if getattr(asked, name)}
    if "hidden" in shape:
        shape["heads"] = 8
    jobs = {CASES[number]: replace(JOBS[CASES[number]], **shape) for number in map(int, asked.cases.split(","))}
    os.environ["GPU_PIPELINES_ACCELERATOR"] = "cpu:1" if asked.device == "cpu" else ""
    os.environ |= {} if asked.device == "cpu" else {"CUDA_VISIBLE_DEVICES": "0"}
    with tempfile.TemporaryDirectory() as scratch:
        first = next(iter(jobs.values()))
        data, model = Path(scratch) / "data", Path(scratch) / "model"
        write_dataset(data, "causal_lm", (first.tokens,), asked.rows * 4, first.words)
        write_model(first, model, data / TOKENIZER)
        measured: dict[str, Any] = {}
        for number, (name, job) in enumerate(jobs.items()):
            found = trained(job, model, data, asked, Path(scratch) / f"checkpoints-{number}")
            measured[name] = found
            told = f"{found['tokens_per_second']:10,.0f} tokens/s {found['memory_gb']:8.1f} GB"
            print(f"{name:30} {told}, advise says {found['advise_gb']:.1f}", flush=True)
    rate = next(iter(measured.values()))["tokens_per_second"]
    print(
        f"goal of the first on an H100 {GOAL_TOKENS_PER_SECOND:,}; NeMo AutoModel tells {PUBLISHED_TOKENS_PER_SECOND:,}"
    )
    conclude(
        "training_gpu_language", machine, measured, {"NeMo AutoModel on an H100": rate / PUBLISHED_TOKENS_PER_SECOND}
    )


def write_model(job: Job, directory: Path, tokenizer: Path) -> None:
    """Writes a model with random weights in bf16 in Hugging Face layout, a file for each layer.

    Args:
        job: gives its shape.
        directory: the directory to create.
        tokenizer: the tokenizer, which gives the vocabulary.
    """
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(job.configuration())
    directory.mkdir()
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, weight in model.named_parameters():
        layer = name.split(".")[2] if name.startswith("model.layers.") else "others"
        parts.setdefault(layer, {})[name] = weight
    index: dict[str, str] = {}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for layer, weights in parts.items():
        file = f"model-{layer}.safetensors"
        made = {
            name: (torch.randn(weight.shape, device=device) * _INITIAL_DEVIATION).bfloat16().cpu()
            if weight.dim() > 1
            else torch.ones(weight.shape, dtype=torch.bfloat16)
            for name, weight in weights.items()
        }
        save_file(made, directory / file, {"format": "pt"})
        index |= dict.fromkeys(made, file)
    model.config.dtype = torch.bfloat16
    model.config.save_pretrained(directory)
    told = {"metadata": {}, "weight_map": index}
    (directory / "model.safetensors.index.json").write_text(json.dumps(told), encoding="utf-8")
    for each in tokenizer.iterdir():
        (directory / each.name).write_bytes(each.read_bytes())


def trained(job: Job, model: Path, data: Path, asked: argparse.Namespace, checkpoints: Path) -> dict[str, Any]:
    """Tokens a second, the median over the second half of the steps; memory, and the estimate of `advise`, in GB."""
    settings = TrainingSettings(
        model=str(model),
        max_steps=asked.steps,
        learning_rate=1e-4,
        global_batch_size=asked.rows,
        micro_batch_size=1,
        lora_rank=job.lora_rank,
        quantize_base=job.quantize_base,
        compile_model=asked.compile,
        precision="bf16",
        activation_checkpointing=bool(job.quantize_base),
        checkpoint_every_steps=asked.steps,
    )
    summary = train_model(settings, data, str(checkpoints))
    assert summary is not None
    entries = summary.metrics[len(summary.metrics) // 2 :]
    workload = replace(job.workload(), recompute=settings.activation_checkpointing)
    rate = statistics.median(entry["samples_per_second"] for entry in entries) * job.tokens
    return {
        "tokens_per_second": round(rate, 1),
        "memory_gb": max(entry["memory_gb"] for entry in entries),
        "advise_gb": round(estimate_memory(workload, "bf16", 1, "ddp").total, 1),
    }


if __name__ == "__main__":
    main()
