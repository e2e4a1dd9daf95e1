"""Every architecture that is built by name trains to the same bits twice, in two processes under DDP."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from gpu_pipelines.tasks.building import build_model
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification
from gpu_pipelines.tasks.tasks import TASKS
from gpu_pipelines.tasks.text_classification.recipe import TextClassification
from gpu_pipelines.tasks.text_encoding import TextEncoder
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

# The other tasks build the same architectures.
MICRO = [
    (task, name)
    for task in ("image_classification", "text_classification", "causal_lm")
    for name in TASKS[task].models
    if name.endswith("micro")
]
PROCESSES = 2
STEPS = 4
LENGTH = 32


def recipe_and_rows(task: str, tokenizer: Path, rank: int) -> tuple[Any, dict[str, np.ndarray]]:
    generator = np.random.default_rng(rank)
    label = generator.integers(0, 3, 4).astype(np.int32)
    if task == "image_classification":
        image = generator.integers(0, 256, (4, 1, 16, 16)).astype(np.uint8)
        return ImageClassification(["a", "b", "c"], {}, (1, 16, 16)), {"image": image, "label": label}
    text = TextTokenizer.read(tokenizer)
    tokens = generator.integers(3, text.vocabulary_size, (4, LENGTH)).astype(np.int32)
    if task == "text_classification":
        length = generator.integers(4, LENGTH, 4).astype(np.int32)
        return TextClassification(["a", "b", "c"], text, LENGTH), {
            "input_ids": tokens,
            "length": length,
            "label": label,
        }
    positions = np.tile(np.arange(LENGTH // 2), (4, 2)).astype(np.int32)
    mask = np.ones((4, LENGTH), np.uint8)
    return CausalLanguageModel(text, LENGTH), {"input_ids": tokens, "position_ids": positions, "loss_mask": mask}


def weights_after(task: str, name: str, tokenizer: Path, rank: int, lora_rank: int) -> str:
    torch.manual_seed(1)
    recipe, columns = recipe_and_rows(task, tokenizer, rank)
    model = build_model(recipe, {"model": name, "lora_rank": lora_rank, "lora_alpha": 8.0}).train()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    batch = recipe.batch(columns, torch.device("cpu"))
    for step in range(STEPS):
        torch.manual_seed(100 * step + rank)
        loss = recipe.loss(parallel, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def train_all_twice(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES)
    found = {}
    for task, name in MICRO:
        for lora_rank in (0, 2) if name != "resnet-micro" else (0,):
            runs = [weights_after(task, name, Path(folder, "tokenizer"), rank, lora_rank) for _ in range(2)]
            found[f"{name} {lora_rank}"] = runs
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("bits")
    TextEncoder.train(["a dog and a cat"] * 20, 300, ends=False).save(folder / "tokenizer", LENGTH)
    mp.spawn(train_all_twice, args=(str(folder),), nprocs=PROCESSES)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(PROCESSES)]


@pytest.mark.slow
def test_training_twice_gives_the_same_bits_in_all_processes(trained: list[dict[str, list[str]]]) -> None:
    assert len(trained[0]) == 2 * len(MICRO) - 1
    for name, runs in trained[0].items():
        hashes = {*runs, *trained[1][name]}
        assert len(hashes) == 1, name
    assert len({runs[0] for runs in trained[0].values()}) == len(trained[0]), "each model was trained"
