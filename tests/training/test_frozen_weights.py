"""Frozen weights in 16 bits, and chunks of logits, in whole trainings of small language models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SmallDatasets
from few_logits import use_few_logits
from started_training import tensors, weights_digest
from torch import nn
from trainings import entries, train_here, train_on

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.evaluation.models import loading as models
from gpu_pipelines.tasks.building import build_model, load_recipe
from gpu_pipelines.tasks.causal_lm import chunked_loss
from gpu_pipelines.tasks.checkpoint_state import frozen_weights_sha256
from gpu_pipelines.training import engine
from gpu_pipelines.training.model.frozen_weights import hold_frozen
from gpu_pipelines.training.model.precision import computing_in
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(model="llama-micro", max_steps=4, checkpoint_every_steps=2, global_batch_size=8)
LORA: dict[str, Any] = {"lora_rank": 4, "precision": "bf16"}
LAST = "step-00000004"
ADAPTERS: dict[str, Any] = {"lora_rank": 4, "lora_alpha": 8.0}


def small_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    model[:3].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("precision", "held"), [("bf16", "bfloat16 bfloat16"), ("fp16", "float32 float16"), ("fp32", "float32 float32")]
)
def test_frozen_matrices_are_held_as_they_are_multiplied(precision: str, held: str) -> None:
    model = small_model()
    hold_frozen(model, precision)
    kinds = {name: str(weight.dtype).removeprefix("torch.") for name, weight in model.named_parameters()}
    assert f"{kinds.pop('0.weight')} {kinds.pop('1.weight')}" == held
    assert set(kinds.values()) == {"float32"}, "biases, norms, and what is trained"


def test_a_product_with_a_weight_that_is_held_in_16_bits_is_the_same_to_the_bit() -> None:
    rows = torch.randn(5, 8)
    found = []
    for precision in ("fp32", "bf16"):
        model = small_model()
        hold_frozen(model, precision)
        with computing_in("bf16", "cpu"):
            found.append(model[1](rows))
    assert torch.equal(*found)


@pytest.mark.slow
def test_adapters_train_beside_weights_in_16_bits_and_continue_to_the_bit(
    datasets: SmallDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[set[torch.dtype]] = []

    def hold(model: nn.Module, precision: str) -> None:
        hold_frozen(model, precision)
        held.append({weight.dtype for weight in model.parameters() if weight.ndim > 1 and not weight.requires_grad})

    monkeypatch.setattr(engine, "hold_frozen", hold)
    settings = replace(SETTINGS, **LORA, learning_rate=0.01)
    train_here(settings, datasets["lm"], str(tmp_path))
    assert held == [{torch.bfloat16}]
    whole = weights_digest(tmp_path / LAST)
    assert {tensor.dtype for name, tensor in tensors(tmp_path / LAST).items()} == {torch.float32}
    val_losses = entries(tmp_path, "val_loss")
    assert val_losses[-1] < val_losses[0]
    (tmp_path / LAST / "checkpoint.json").unlink()
    train_here(settings, datasets["lm"], str(tmp_path))
    assert weights_digest(tmp_path / LAST) == whole


def test_a_training_knows_its_frozen_weights_in_any_precision(datasets: SmallDatasets, tmp_path: Path) -> None:
    known = []
    for precision in ("bf16", "fp32"):
        settings = replace(SETTINGS, lora_rank=4, precision=precision, max_steps=2)
        train_here(settings, datasets["lm"], str(tmp_path / precision))
        marker = tmp_path / precision / "step-00000002" / "checkpoint.json"
        known.append(json.loads(marker.read_text())["frozen_weights_sha256"])
    assert known[0] == known[1] != ""


@pytest.mark.slow
def test_sharded_weights_in_16_bits_train_as_whole_ones(datasets: SmallDatasets, tmp_path: Path) -> None:
    for parallelism in ("ddp", "fsdp"):
        settings = replace(SETTINGS, **LORA, parallelism=parallelism)
        train_on((1, 2), settings, datasets["lm"], str(tmp_path / parallelism))
    losses = [entries(tmp_path / parallelism, "loss") for parallelism in ("ddp", "fsdp")]
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)


@pytest.mark.slow
def test_a_training_in_chunks_of_logits_is_the_one_without(
    datasets: SmallDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, micro_batch_size=4, label_smoothing=0.1, precision="fp32")
    train_here(settings, datasets["lm"], str(tmp_path / "whole"))
    monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", chunked_loss.LOGITS_AT_ONCE)  # put back afterwards
    use_few_logits("")
    train_here(settings, datasets["lm"], str(tmp_path / "chunks"))
    _require_alike(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_processes_train_in_chunks_of_logits(
    datasets: SmallDatasets, tmp_path: Path, parallelism: str, tied: bool
) -> None:
    from transformers import LlamaConfig

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = tmp_path / "model"
    LlamaConfig(**shape, tie_word_embeddings=tied, max_position_embeddings=32).save_pretrained(model)
    settings = replace(SETTINGS, model=str(model), micro_batch_size=2, parallelism=parallelism)
    train_on((1, 2), settings, datasets["lm"], str(tmp_path / "whole"))
    train_on((1, 2), settings, datasets["lm"], str(tmp_path / "chunks"), before="few_logits:use_few_logits")
    _require_alike(tmp_path)


def _require_alike(folder: Path) -> None:
    for what in ("loss", "val_loss"):
        whole, chunks = (entries(folder / name, what) for name in ("whole", "chunks"))
        assert chunks == pytest.approx(whole, rel=1e-5)
        assert len(whole) > 1
    whole, chunks = (tensors(folder / name / LAST) for name in ("whole", "chunks"))
    assert any(not torch.equal(whole[name], chunks[name]) for name in whole), "it was computed in another way"


@pytest.fixture
def stored_in_bf16(datasets: SmallDatasets, tmp_path: Path) -> str:
    """A language model as large ones are stored."""
    recipe = load_recipe("", "causal_lm").for_dataset(Dataset(datasets["lm"]))
    torch.manual_seed(0)
    model = recipe.build_model("llama-micro")
    for weight in model.parameters():
        weight.data *= 4.0  # so that its loss is not that of any untrained model
    recipe.export(model.to(torch.bfloat16), tmp_path / "base")
    return str(tmp_path / "base")


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("frozen_by", [ADAPTERS, {"freeze": "layers.0.*"}])
def test_weights_that_are_stored_in_bf16_are_never_all_in_fp32_and_train_the_same(
    datasets: SmallDatasets, stored_in_bf16: str, precision: str, frozen_by: dict[str, Any]
) -> None:
    recipe = load_recipe("", "causal_lm").for_dataset(Dataset(datasets["lm"]))
    made, hashes = [], []
    for as_stored in (True, False):
        torch.manual_seed(1)
        model = build_model(recipe, {"model": stored_in_bf16, **frozen_by}, as_stored=as_stored)
        kinds = {weight.dtype for weight in model.parameters() if not weight.requires_grad}
        assert kinds == {torch.bfloat16 if as_stored else torch.float32}
        hashes.append(frozen_weights_sha256(model))
        hold_frozen(model, precision)
        assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}
        made.append(model.state_dict())
    assert hashes[0] == hashes[1]
    _require_equal(*made)


def _require_equal(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        assert value.dtype == others[name].dtype, name
        assert torch.equal(value, others[name]), name


@pytest.mark.parametrize("frozen_by", [ADAPTERS, {"freeze": "layers.0.*"}])
def test_an_evaluation_reads_them_as_they_are_stored_and_computes_in_fp32(
    datasets: SmallDatasets, stored_in_bf16: str, frozen_by: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, settings = Dataset(datasets["lm"]), {"model": stored_in_bf16, "seed": 1, **frozen_by}
    torch.manual_seed(1)
    plain = build_model(load_recipe("", "causal_lm").for_dataset(data), settings)
    read: list[set[torch.dtype]] = []

    def hashed(model: nn.Module, like: str) -> str:
        read.append({weight.dtype for weight in model.parameters() if not weight.requires_grad})
        return frozen_weights_sha256(model, like)

    monkeypatch.setattr(models, "frozen_weights_sha256", hashed)
    evaluated = models.Models(data, settings, frozen_weights_sha256(plain), torch.device("cpu"))
    loaded = evaluated.load(models.ModelSource("untrained", Path(), "the model"))
    assert read == [{torch.bfloat16}]
    _require_equal(loaded.model.state_dict(), plain.state_dict())


def test_a_head_that_is_new_is_drawn_in_fp32(datasets: SmallDatasets, tmp_path: Path) -> None:
    recipe = load_recipe("", "text_classification").for_dataset(Dataset(datasets["texts"]))
    model = recipe.build_model("bert-micro").to(torch.bfloat16)
    model.base_model.save_pretrained(tmp_path / "base")
    adapted = build_model(recipe, {"model": str(tmp_path / "base"), "lora_rank": 4, "lora_alpha": 8.0}, as_stored=True)
    assert {weight.dtype for weight in adapted.parameters()} == {torch.float32}


@pytest.mark.slow
def test_every_rank_computes_with_the_pretrained_weights(
    datasets: SmallDatasets, stored_in_bf16: str, tmp_path: Path
) -> None:
    """The loss before anything is learned, of two processes that hold shards of what rank 0 has read, and of one."""
    settings = replace(SETTINGS, model=stored_in_bf16, lora_rank=4, precision="bf16", learning_rate=1e-9)
    train_here(settings, datasets["lm"], str(tmp_path / "one"))
    untrained = replace(settings, model="llama-micro", lora_rank=0, seed=7)
    train_here(untrained, datasets["lm"], str(tmp_path / "untrained"))
    for parallelism in ("ddp", "fsdp"):
        place = tmp_path / parallelism
        train_on((1, 2), replace(settings, parallelism=parallelism), datasets["lm"], str(place))
        for name in ("loss", "val_loss"):  # on val each rank computes rows of its own
            assert entries(place, name) == pytest.approx(entries(tmp_path / "one", name), rel=1e-3)
    assert abs(entries(tmp_path / "untrained", "val_loss")[-1] - entries(tmp_path / "one", "val_loss")[-1]) > 0.5
