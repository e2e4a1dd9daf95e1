"""Packed rows as a model sees them: a document that was packed beside others gives the logits that it gives alone."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.tasks.building import build_model, load_recipe

LENGTH = 64
WORDS = ["the", "cat", "dog", "bird", "sees", "hears", "and", "when", "it", "rains", "on", "small", "old", "house"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("packed")
    generator = random.Random(0)
    texts = [" ".join(generator.choices(WORDS, k=generator.randrange(3, 25))) for _ in range(200)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = PrepareSettings(
        source=str(folder / "texts.jsonl"), task="causal_lm", sequence_length=LENGTH, vocabulary_size=300
    )
    prepare_data(settings, folder / "dataset")
    return Dataset(folder / "dataset")


@pytest.mark.parametrize("name", ["gpt2-micro", "llama-micro", "mixtral-micro"])
def test_a_packed_document_gives_the_logits_that_it_gives_alone(dataset: Dataset, name: str) -> None:
    recipe = load_recipe("", "causal_lm").for_dataset(dataset)
    torch.manual_seed(0)
    model = build_model(recipe, {"model": name, "lora_rank": 0, "lora_alpha": 1.0}).eval()
    columns = dataset.split("train").take(np.arange(6))
    tokens, positions = (torch.from_numpy(columns[key]).long() for key in ("input_ids", "position_ids"))
    documents = 0
    with torch.no_grad():
        packed = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        for row in range(len(tokens)):
            bounds = [*np.flatnonzero(columns["position_ids"][row] == 0).tolist(), LENGTH]
            documents += len(bounds) - 1
            for start, end in pairwise(bounds):
                assert columns["position_ids"][row, start:end].tolist() == list(range(end - start))
                assert columns["loss_mask"][row, start] == 0, "nothing predicts the first token of a document"
                alone = model(input_ids=tokens[row : row + 1, start:end], use_cache=False).logits[0]
                assert torch.allclose(packed[row, start:end], alone, atol=1e-4)
    assert documents >= 12, "rows must hold several documents for this to say anything"
