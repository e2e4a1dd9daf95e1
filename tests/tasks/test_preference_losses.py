"""The losses of preferences are those of TRL, row by row, whatever form the rows come in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trl_preferences
from transformers import LlamaConfig, LlamaForCausalLM

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.tasks.preference.recipe import Preference
from gpu_pipelines.tasks.preference.sample import write_explanations
from gpu_pipelines.tasks.recipe import REFERENCE, SUMS

ROWS = 200
CPU = torch.device("cpu")
BETA = 0.3


def explanations(folder: Path) -> list[dict[str, str]]:
    lines = write_explanations(folder).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:ROWS]]


def messages(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


def as_texts(row: dict[str, str]) -> dict[str, Any]:
    return row


def as_messages(row: dict[str, str]) -> dict[str, Any]:
    first = [*messages("system", "Be brief."), *messages("user", row["prompt"])]
    return {"prompt": first, **{name: messages("assistant", row[name]) for name in ("chosen", "rejected")}}


def with_implicit_prompt(row: dict[str, str]) -> dict[str, Any]:
    question = messages("user", row["prompt"])
    return {name: question + messages("assistant", row[name]) for name in ("chosen", "rejected")}


def with_implicit_text(row: dict[str, str]) -> dict[str, Any]:
    return {name: f"{row['prompt']} {row[name]}" for name in ("chosen", "rejected")}


def judged(row: dict[str, Any], number: int) -> dict[str, Any]:
    """One of the completions of a pair, and whether it was chosen."""
    name = "chosen" if number % 3 else "rejected"
    prompt = row.get("prompt", row[name][:-1])
    completion = row[name] if "prompt" in row else row[name][-1:]
    return {"prompt": prompt, "completion": completion, "label": name == "chosen"}


FORMS = (as_texts, as_messages, with_implicit_prompt)


def prepared(folder: Path, rows: list[dict[str, Any]]) -> Dataset:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    prepare_data(
        PrepareSettings(task="preference", source=str(folder / "rows.jsonl"), val_fraction=0.1, vocabulary_size=700),
        folder / "dataset",
    )
    return Dataset(folder / "dataset")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and its reference, which is another one."""
    folder = tmp_path_factory.mktemp("models")
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    for number in range(2):
        torch.manual_seed(number)
        config = LlamaConfig(vocab_size=700, max_position_embeddings=512, initializer_range=0.3, **shape)
        LlamaForCausalLM(config).save_pretrained(folder / str(number))
    return folder / "0", folder / "1"


def of_split(dataset: Dataset, split: str, loss: str, models: tuple[Path, Path]) -> tuple[list[int], list[float]]:
    """The number in the source of each row of a split, and its loss by itself."""
    recipe = Preference.for_dataset(dataset)
    recipe.trained_with({"preference_loss": loss, "beta": BETA})
    model, reference = (recipe.load_exported(path).eval() for path in models)
    rows = dataset.split(split)
    everything = rows.take(np.arange(len(rows)))
    with torch.no_grad():
        if recipe.has_reference:
            everything[REFERENCE] = recipe.reference(reference, recipe.batch(everything, CPU)).numpy()
        sums = {SUMS: recipe.sums(model, recipe.batch(everything, CPU))} if recipe.has_sums else {}
        losses = [
            float(recipe.loss(model, recipe.batch({n: c[[row]] for n, c in everything.items()}, CPU) | sums))
            for row in range(len(rows))
        ]
    numbers = [int(source.rpartition(":")[2]) - 1 for source in rows.sources(range(len(rows)))]
    return numbers, losses


def of_pairs(dataset: Dataset, loss: str, models: tuple[Path, Path]) -> dict[int, float]:
    parts = [of_split(dataset, split, loss, models) for split in ("train", "val", "test")]
    return {number: found for numbers, losses in parts for number, found in zip(numbers, losses, strict=True)}


def tokenizer_for_trl(dataset: Dataset, folder: Path) -> Path:
    """The tokenizer of a dataset, with a chat template even where it needs none: TRL's trainers want one."""
    return Path(shutil.copytree(dataset.directory / "tokenizer", folder / "tokenizer"))


@pytest.mark.parametrize("form", [*FORMS, with_implicit_text])
def test_the_losses_of_pairs_are_those_of_trl(form: Any, models: tuple[Path, Path], tmp_path: Path) -> None:
    rows = [form(row) for row in explanations(tmp_path)]
    dataset = prepared(tmp_path, rows)
    tokenizer = tokenizer_for_trl(dataset, tmp_path)
    assert dataset.manifest.rejected == {}
    for loss, theirs in (("sigmoid", {"loss_type": "sigmoid"}), ("ipo", {"loss_type": "ipo"})):
        ours = of_pairs(dataset, loss, models)
        kept = sorted(ours)
        assert len(kept) >= ROWS - dataset.manifest.duplicates
        wanted = trl_preferences.dpo_losses([rows[n] for n in kept], models, tokenizer, beta=BETA, **theirs)
        assert np.std(wanted) > 0.01
        np.testing.assert_allclose([ours[number] for number in kept], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_the_losses_of_judged_completions_are_those_of_trl(
    form: Any, models: tuple[Path, Path], tmp_path: Path
) -> None:
    rows = [judged(form(row), number) for number, row in enumerate(explanations(tmp_path))]
    dataset = prepared(tmp_path, rows)
    tokenizer = tokenizer_for_trl(dataset, tmp_path)
    numbers, ours = of_split(dataset, "train", "kto", models)
    assert len(numbers) > 100
    wanted = trl_preferences.kto_losses([rows[n] for n in numbers], models, tokenizer, beta=BETA)
    assert np.std(wanted) > 0.01
    np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


def test_the_losses_of_odds_are_those_of_trl(models: tuple[Path, Path], tmp_path: Path) -> None:
    rows = [as_texts(row) for row in explanations(tmp_path)]
    dataset = prepared(tmp_path, rows)
    tokenizer = tokenizer_for_trl(dataset, tmp_path)
    ours = of_pairs(dataset, "orpo", models)
    kept = sorted(ours)
    wanted = trl_preferences.orpo_losses([rows[n] for n in kept], models, tokenizer, beta=BETA)
    np.testing.assert_allclose([ours[number] for number in kept], wanted, rtol=1e-5, atol=1e-5)
