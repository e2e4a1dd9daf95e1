"""Completions of packed rows are scored one by one, and texts by their bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evaluations import train_checkpoint, write_tokenizer

from gpu_pipelines.artifacts.dataset import Dataset, Feature
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.evaluation.metrics.loss import LikelihoodScores
from gpu_pipelines.evaluation.models.loading import ModelSource
from gpu_pipelines.evaluation.scorers.recipe import RecipeScorer
from gpu_pipelines.evaluation.scorers.runner import Runner, RunnerSettings
from gpu_pipelines.tasks.causal_lm.scoring import (
    TokenScoring,
    all_documents,
    holds_completions,
    scored_bytes,
    taken_apart,
)
from gpu_pipelines.tasks.text_encoding import TextEncoder

WIDTH = 16
FEATURES = {
    "input_ids": Feature("int32", (WIDTH,)),
    "loss_mask": Feature("uint8", (WIDTH,)),
    "position_ids": Feature("int32", (WIDTH,)),
}


def packed(directory: Path, prompt: int) -> Dataset:
    """Rows of documents of 7 and 6 tokens and padding, of each of which the first `prompt` tokens are not scored."""
    write_tokenizer(directory / "tokenizer")
    generator = np.random.default_rng(0)
    positions = np.r_[np.arange(7), np.arange(6), np.arange(3)].astype(np.int32)
    mask = np.r_[np.arange(7) >= prompt, np.arange(6) >= prompt, [False] * 3].astype(np.uint8)
    with DatasetWriter(
        directory, task="causal_lm", source="x", features=FEATURES, labels=[], preprocessing={}, tokenizer="tokenizer"
    ) as writer:
        for split in ("train", "val", "test"):
            for number in range(6):
                tokens = generator.integers(1, 40, WIDTH).astype(np.int32)
                row = {"input_ids": tokens, "loss_mask": mask, "position_ids": positions}
                writer.add(split, f"x:{number}", row)
        writer.finish()
    return Dataset(directory)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return packed(tmp_path_factory.mktemp("prompts") / "data", prompt=3)


def test_only_rows_with_prompts_are_taken_apart(prompts: Dataset, tmp_path: Path) -> None:
    assert holds_completions(prompts)
    assert not holds_completions(packed(tmp_path / "texts", prompt=1))


def test_documents_are_the_same_apart_as_packed(prompts: Dataset) -> None:
    columns = prompts.split("test").take(np.arange(6))
    apart = taken_apart(columns)
    rows, places = all_documents(prompts.split("test"))
    assert rows == [row for row in range(6) for _ in range(2)]
    assert (places[0], places[1]) == (slice(0, 7), slice(7, 13))
    assert apart["input_ids"].shape == (12, 7)
    assert np.array_equal(apart["input_ids"][1, :6], columns["input_ids"][0, 7:13])
    assert apart["loss_mask"].sum() == columns["loss_mask"].sum()
    assert np.array_equal(apart["position_ids"][0], np.arange(7))


def test_the_losses_of_the_documents_add_up_to_those_of_their_rows(prompts: Dataset, tmp_path: Path) -> None:
    train_checkpoint(tmp_path / "checkpoints", prompts, "causal_lm", "gpt2-micro")
    source = ModelSource("checkpoint", tmp_path / "checkpoints/step-00000001", "it")
    found = {}
    for apart in (False, True):
        runner = Runner(RunnerSettings(prompts.directory, {"model": "gpt2-micro", "seed": 0}, "", 4), "cpu")
        assert isinstance(runner.scoring, TokenScoring)
        assert runner.scoring.apart
        runner.scoring.apart = apart
        found[apart] = runner.predict(source, "test", 0, 6)
    assert found[True].shape == (12, 3)
    np.testing.assert_allclose(found[True].reshape(6, 2, 3).sum(axis=1), found[False], rtol=1e-4)
    assert found[True][:, 1].tolist() == [4, 3] * 6
    scorer = RecipeScorer(prompts, tmp_path / "checkpoints")
    scores = scorer.on_test(scorer.candidates[0])
    assert isinstance(scores, LikelihoodScores)
    assert scores.rows == 12
    assert set(scores.metrics()) == {"loss", "perplexity", "bits_per_byte", "token_accuracy", "completion_accuracy"}
    worst = scorer.worst(scores)
    assert worst[0]["loss"] == max(entry["loss"] for entry in worst)
    assert (worst[0]["start"], worst[0]["stop"]) in ((0, 7), (7, 13))
    scorer.close()


def test_bytes_are_those_of_the_scored_text(tmp_path: Path) -> None:
    texts = ["Grüße aus Köln, 日本", "plain text", "naïve café"]
    encoder = TextEncoder.train(texts * 5, 300, ends=False)
    encoder.save(tmp_path / "data/tokenizer", 64)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tmp_path / "data/tokenizer/tokenizer.json"))
    features = {name: Feature(feature.dtype, (64,)) for name, feature in FEATURES.items()}
    options = {"task": "causal_lm", "source": "x", "labels": [], "preprocessing": {}, "tokenizer": "tokenizer"}
    with DatasetWriter(tmp_path / "data", features=features, **options) as writer:  # type: ignore[arg-type]
        for text in texts:
            tokens = tokenizer.encode(text).ids
            row = {name: np.zeros(64, feature.dtype) for name, feature in features.items()}
            row["input_ids"][: len(tokens)] = tokens
            row["loss_mask"][1 : len(tokens)] = 1
            row["position_ids"][: len(tokens)] = np.arange(len(tokens))
            writer.add("test", "x", row)
        writer.finish()
    found = scored_bytes(Dataset(tmp_path / "data").split("test"), tmp_path / "data/tokenizer", apart=False)
    assert found.tolist() == [len(text.encode()) for text in texts]


def test_bytes_of_a_tokenizer_of_words_are_those_of_the_decoded_text(prompts: Dataset) -> None:
    tokenizer = prompts.directory / "tokenizer"
    rows = prompts.split("test").take(np.arange(6))
    apart = scored_bytes(prompts.split("test"), tokenizer, apart=True)
    together = scored_bytes(prompts.split("test"), tokenizer, apart=False)
    assert len(apart) == 12
    assert apart.reshape(6, 2).sum(axis=1) == pytest.approx(together)
    words = [f"w{token - 1}" for token in rows["input_ids"][0][rows["loss_mask"][0] == 1]]
    assert together[0] == sum(len(f" {word}") for word in words)


def test_the_blank_before_a_completion_is_of_its_text_as_with_tokens_of_bytes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers

    prompt, completion = "The capital of France is", " Paris , of course"
    # As Llama's first ones: blanks are ▁, and one stands before a text that the decoder takes off again.
    letters = ["<s>", "▁", *sorted({*prompt, *completion} - {" "})]
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ends = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(ends)
    (tmp_path / "data/tokenizer").mkdir(parents=True)
    tokenizer.save(str(tmp_path / "data/tokenizer/tokenizer.json"))
    features = {name: Feature(feature.dtype, (64,)) for name, feature in FEATURES.items()}
    options = {"task": "causal_lm", "source": "x", "labels": [], "preprocessing": {}, "tokenizer": "tokenizer"}
    with DatasetWriter(tmp_path / "data", features=features, **options) as writer:  # type: ignore[arg-type]
        for asked, answer in ((prompt, completion), ("", prompt)):
            tokens = [0, *tokenizer.encode(asked + answer).ids]
            row = {name: np.zeros(64, feature.dtype) for name, feature in features.items()}
            row["input_ids"][: len(tokens)] = tokens
            row["loss_mask"][len(tokens) - len(answer) - (not asked) : len(tokens)] = 1
            row["position_ids"][: len(tokens)] = np.arange(len(tokens))
            writer.add("test", "x", row)
        writer.finish()
    found = scored_bytes(Dataset(tmp_path / "data").split("test"), tmp_path / "data/tokenizer", apart=False)
    assert found.tolist() == [len(completion), len(prompt)]
