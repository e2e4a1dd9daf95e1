"""The losses of preferences are those of TRL, row by row, whatever form the rows come in."""

from __future__ import annotations

import json
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
from gpu_pipelines.tasks.causal_lm import chunked_loss
from gpu_pipelines.tasks.preference.losses import Said, drift_of, judged_losses, pair_losses
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


def of_split(
    dataset: Dataset, split: str, loss: str, models: tuple[Path, Path], smoothing: float = 0.0
) -> tuple[list[int], list[float]]:
    """The number in the source of each row of a split, and its loss by itself."""
    recipe = Preference.for_dataset(dataset)
    recipe.trained_with({"preference_loss": loss, "beta": BETA})
    recipe.label_smoothing = smoothing
    model, reference = (recipe.load_exported(path) for path in models)
    model.train()
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


def of_pairs(dataset: Dataset, loss: str, models: tuple[Path, Path], smoothing: float = 0.0) -> dict[int, float]:
    parts = [of_split(dataset, split, loss, models, smoothing) for split in ("train", "val", "test")]
    return {number: found for numbers, losses in parts for number, found in zip(numbers, losses, strict=True)}


@pytest.fixture(scope="module")
def as_read(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Rows in a form, and the dataset that is made of them; once for each form."""
    known: dict[Any, tuple[list[dict[str, Any]], Dataset]] = {}

    def made(form: Any) -> tuple[list[dict[str, Any]], Dataset]:
        if form not in known:
            folder = tmp_path_factory.mktemp(form.__name__)
            rows = [form(row) for row in explanations(folder)]
            known[form] = rows, prepared(folder, rows)
        return known[form]

    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "loss"),
    [
        (as_texts, "sigmoid"),
        *(
            pytest.param(form, loss, marks=pytest.mark.slow)
            for form in (*FORMS, with_implicit_text)
            for loss in ("sigmoid", "ipo", "smoothed")
            if (form, loss) != (as_texts, "sigmoid")
        ),
    ],
)
def test_the_losses_of_pairs_are_those_of_trl(form: Any, loss: str, models: tuple[Path, Path], as_read: Any) -> None:
    rows, dataset = as_read(form)
    assert dataset.manifest.rejected == {}
    # What TRL smooths in this way is its loss `aot`, which of a single row is `sigmoid`.
    asked = {"loss_type": "aot", "label_smoothing": 0.2} if loss == "smoothed" else {"loss_type": loss}
    ours = of_pairs(dataset, "sigmoid" if loss == "smoothed" else loss, models, asked.get("label_smoothing", 0.0))
    kept = sorted(ours)
    assert len(kept) == ROWS - dataset.manifest.duplicates
    tokenizer = dataset.directory / "tokenizer"
    wanted = trl_preferences.dpo_losses([rows[n] for n in kept], models, tokenizer, beta=BETA, **asked)
    assert np.std(wanted) > 0.01
    np.testing.assert_allclose([ours[number] for number in kept], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_losses_of_judged_completions_are_those_of_trl(
    form: Any, models: tuple[Path, Path], tmp_path: Path
) -> None:
    rows = [judged(form(row), number) for number, row in enumerate(explanations(tmp_path))]
    dataset = prepared(tmp_path, rows)
    numbers, ours = of_split(dataset, "train", "kto", models)
    assert len(numbers) > 100
    wanted = trl_preferences.kto_losses([rows[n] for n in numbers], models, dataset.directory / "tokenizer", beta=BETA)
    assert np.std(wanted) > 0.01
    np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_losses_of_odds_are_those_of_trl(models: tuple[Path, Path], as_read: Any) -> None:
    rows, dataset = as_read(as_texts)
    tokenizer = dataset.directory / "tokenizer"
    ours = of_pairs(dataset, "orpo", models)
    kept = sorted(ours)
    wanted = trl_preferences.orpo_losses([rows[n] for n in kept], models, tokenizer, beta=BETA)
    np.testing.assert_allclose([ours[number] for number in kept], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "orpo"])
def test_a_loss_in_chunks_has_the_same_gradients(
    loss: str, models: tuple[Path, Path], as_read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, dataset = as_read(as_texts)
    recipe = Preference.for_dataset(dataset)
    recipe.trained_with({"preference_loss": loss, "beta": BETA})
    columns = dataset.split("train").take(np.arange(4))
    columns[REFERENCE] = np.full((4, 2), -50.0, dtype=np.float32)
    batch = recipe.batch(columns, CPU)
    found = []
    for most in (1 << 40, 20 * 700):
        monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", most)
        model = recipe.load_exported(models[0])
        value = recipe.loss(model, batch)
        value.backward()
        found.append((value.item(), {name: weight.grad for name, weight in model.named_parameters()}))
    (whole, of_whole), (in_chunks, of_chunks) = found
    assert in_chunks == pytest.approx(whole, rel=1e-6)
    largest = max(float(gradient.abs().max()) for gradient in of_whole.values())
    for name, gradient in of_whole.items():
        torch.testing.assert_close(of_chunks[name], gradient, rtol=1e-4, atol=1e-6 * largest)


@pytest.mark.parametrize("sums", [(0.0, -9.0), (-9.0, 0.0), (0.0, 0.0)])
def test_a_completion_that_is_certain_has_finite_odds_and_gradients(sums: tuple[float, float]) -> None:
    """As of a short answer that is learned by heart: its probability is 1 in fp32."""
    told = torch.tensor([sums], requires_grad=True)
    said = Said(told, torch.zeros(1, 2), torch.tensor([[2, 3]]), torch.tensor([0.1]))
    loss = pair_losses(said, "orpo", BETA).sum()
    loss.backward()
    assert loss.isfinite()
    assert told.grad is not None
    assert told.grad.isfinite().all()


def test_the_losses_are_those_of_the_papers() -> None:
    """By numbers that are easily followed: log ratios of 2 and -1, of 4 and 2 tokens."""
    said = Said(
        sums=torch.tensor([[-3.0, -6.0]]),
        reference=torch.tensor([[-5.0, -5.0]]),
        tokens=torch.tensor([[4, 2]]),
        whole=torch.tensor([1.5]),
    )
    assert pair_losses(said, "sigmoid", 0.5).item() == pytest.approx(np.log1p(np.exp(-1.5)))
    assert pair_losses(said, "sigmoid", 0.5, 0.25).item() == pytest.approx(np.log1p(np.exp(-1.5)) + 0.25 * 1.5)
    assert pair_losses(said, "ipo", 0.5).item() == pytest.approx((0.5 + 0.5 - 1.0) ** 2)
    assert pair_losses(said, "ipo", 0.5, 0.25).item() == pytest.approx(0.25 * 4.0)
    odds = [np.exp(mean) / (1 - np.exp(mean)) for mean in (-0.75, -3.0)]
    assert pair_losses(said, "orpo", 0.5).item() == pytest.approx(1.5 + 0.5 * np.log1p(odds[1] / odds[0]))
    drift = drift_of(torch.tensor(3.0), torch.tensor(6))
    good, bad = (judged_losses(said, torch.tensor([value]), 0.5, drift).item() for value in (True, False))
    assert good == pytest.approx(1 - 1 / (1 + np.exp(-0.75)))
    assert bad == pytest.approx(1 - good)
    assert drift_of(torch.tensor(-3.0), torch.tensor(6)) == 0
