"""What each optimizer changes, what decay falls on, and that all of them continue to the bit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import SmallDatasets
from started_training import tensors, weights_digest
from torch import nn
from trainings import entries, signals_kept, train_here, train_on

from gpu_pipelines.accelerators.advice import Wishes, advise
from gpu_pipelines.accelerators.workload import NOT_SHARDED, OPTIMIZER_BYTES, Workload
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.checkpoints.checkpointing import CheckpointWriter
from gpu_pipelines.training.machine.interruption import Interruption
from gpu_pipelines.training.optimization.adamw_8bit import AdamW8bit
from gpu_pipelines.training.optimization.optimizer import _MAKE, is_decayed, make_optimizers
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(model="vit-micro", max_steps=6, checkpoint_every_steps=3, global_batch_size=16)


def test_the_default_is_adamw_of_torch_fused_and_decays_matrices_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4).requires_grad_(False))
    (optimizer,) = make_optimizers(model, TrainingSettings(learning_rate=0.1, weight_decay=0.3))
    assert type(optimizer).__module__ == "torch.optim.adamw"
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {id(p): 0.3 if p.ndim == 2 else 0.0 for p in model.parameters() if p.requires_grad}
    assert all(group["fused"] for group in optimizer.param_groups)


def test_positions_and_class_tokens_of_real_models_are_not_decayed() -> None:
    from transformers import (
        BertConfig,
        BertModel,
        GPT2Config,
        GPT2Model,
        Swinv2Config,
        Swinv2Model,
        ViTConfig,
        ViTModel,
    )

    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    models = {
        "vit": ViTModel(ViTConfig(**small, image_size=8, patch_size=4), use_mask_token=True),
        "bert": BertModel(BertConfig(**small, vocab_size=9)),
        "gpt2": GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9)),
        "swin": Swinv2Model(
            Swinv2Config(image_size=8, patch_size=2, embed_dim=8, depths=[1], num_heads=[2], window_size=2)
        ),
    }
    spared = {
        f"{family} {name}"
        for family, model in models.items()
        for name, weight in model.named_parameters()
        if weight.ndim >= 2 and not is_decayed(name, weight)
    }
    assert spared == {
        "vit embeddings.cls_token",
        "vit embeddings.mask_token",
        "vit embeddings.position_embeddings",
        "bert embeddings.position_embeddings.weight",
        "gpt2 wpe.weight",
        "swin encoder.layers.0.blocks.0.attention.self.continuous_position_bias_mlp.0.weight",
        "swin encoder.layers.0.blocks.0.attention.self.continuous_position_bias_mlp.2.weight",
    }


def test_muon_has_the_matrices_of_hidden_layers_and_adamw_the_rest() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, tie_word_embeddings=False))
    muon, adamw = make_optimizers(model, TrainingSettings(optimizer="muon", weight_decay=0.1))
    names = {id(weight): name for name, weight in model.named_parameters()}
    hidden = {names[id(weight)] for group in muon.param_groups for weight in group["params"]}
    assert hidden == {
        f"transformer.h.0.{name}.weight" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    others = {names[id(weight)] for group in adamw.param_groups for weight in group["params"]}
    assert hidden | others == set(names.values())
    assert not hidden & others


def test_muon_leaves_the_head_that_a_model_names_to_adamw() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.hidden, self.last = (nn.Linear(4, 4, bias=False) for _ in range(3))

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    model = Named()
    muon, _ = make_optimizers(model, TrainingSettings(optimizer="muon", weight_decay=0.1))
    assert [id(weight) for group in muon.param_groups for weight in group["params"]] == [id(model.hidden.weight)]


def test_those_that_are_offered_are_those_that_can_be_made() -> None:
    assert _MAKE.keys() == OPTIMIZER_BYTES.keys()


#: That in eight bits has a test of its own: it needs a model that is wide enough.
@pytest.mark.slow_but_for("adamw", "muon")
@pytest.mark.parametrize("optimizer", sorted(_MAKE.keys() - {"adamw_8bit"}))
def test_a_training_learns_and_continues_to_the_bit(optimizer: str, photos: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, optimizer=optimizer, learning_rate=0.05 if optimizer == "sgd" else 0.004)
    train_here(settings, photos, str(tmp_path))
    whole = weights_digest(tmp_path / "step-00000006")
    losses = entries(tmp_path, "loss")
    assert losses[-1] < 0.6 * losses[0], losses
    (tmp_path / "step-00000006" / "checkpoint.json").unlink()
    train_here(settings, photos, str(tmp_path))
    assert weights_digest(tmp_path / "step-00000006") == whole


def test_eight_bits_are_for_matrices_of_whole_blocks_but_not_for_embeddings() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(32, 256), "wide": nn.Linear(256, 32), "odd": nn.Linear(80, 64)})
    small, rest = make_optimizers(model, TrainingSettings(optimizer="adamw_8bit", learning_rate=0.1, weight_decay=0.3))
    assert type(small) is AdamW8bit
    assert [id(weight) for group in small.param_groups for weight in group["params"]] == [id(model["wide"].weight)]
    assert sum(len(group["params"]) for group in rest.param_groups) == 4
    assert type(rest).__module__ == "torch.optim.adamw"


def test_a_step_in_eight_bits_is_that_of_bitsandbytes_and_near_that_in_fp32() -> None:
    from bitsandbytes.optim import AdamW8bit as Theirs

    torch.manual_seed(0)
    begun = torch.randn(64, 512)
    gradients = torch.randn(5, 64, 512)
    found = []
    for make in (AdamW8bit, Theirs, torch.optim.AdamW):
        weight = nn.Parameter(begun.clone())
        optimizer = make([weight], lr=0.01, weight_decay=0.1)
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        found.append(weight.detach())
    assert torch.equal(found[0], found[1])
    assert 0 < (found[0] - found[2]).abs().mean() < 0.02 * (found[2] - begun).abs().mean()


@pytest.fixture
def wide_model(tmp_path: Path) -> str:
    """A language model to be trained from scratch whose rows are whole blocks."""
    from transformers import LlamaConfig

    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4}
    LlamaConfig(**shape, max_position_embeddings=32).save_pretrained(tmp_path / "wide")
    return str(tmp_path / "wide")


def test_moments_in_eight_bits_continue_to_the_bit(datasets: SmallDatasets, tmp_path: Path, wide_model: str) -> None:
    settings = replace(SETTINGS, optimizer="adamw_8bit", model=wide_model, learning_rate=0.004)
    train_here(settings, datasets["lm"], str(tmp_path / "run"))
    last = tmp_path / "run" / "step-00000006"
    whole, losses = weights_digest(last), entries(tmp_path / "run", "loss")
    kinds = {str(value.dtype) for name, value in tensors(last).items() if name.startswith("optimizer.")}
    assert kinds == {"torch.uint8", "torch.float32"}
    assert losses[-1] < losses[0]
    (last / "checkpoint.json").unlink()
    train_here(settings, datasets["lm"], str(tmp_path / "run"))
    assert weights_digest(last) == whole


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", sorted(_MAKE.keys() - NOT_SHARDED))
def test_shards_learn_what_whole_models_do_and_continue_to_the_bit(
    datasets: SmallDatasets, tmp_path: Path, wide_model: str, optimizer: str
) -> None:
    settings = replace(SETTINGS, optimizer=optimizer, model=wide_model, learning_rate=0.004)
    for parallelism in ("ddp", "fsdp"):
        train_on((1, 2), replace(settings, parallelism=parallelism), datasets["lm"], str(tmp_path / parallelism))
    ddp, fsdp = (entries(tmp_path / name, "loss") for name in ("ddp", "fsdp"))
    assert fsdp == pytest.approx(ddp, rel=1e-4)
    whole = weights_digest(tmp_path / "fsdp" / "step-00000006")
    (tmp_path / "fsdp" / "step-00000006" / "checkpoint.json").unlink()
    train_on((1, 2), replace(settings, parallelism="fsdp"), datasets["lm"], str(tmp_path / "fsdp"))
    assert weights_digest(tmp_path / "fsdp" / "step-00000006") == whole


def test_a_choice_that_cannot_be_is_said_once() -> None:
    assert sum("optimizer is 'adam'" in problem for problem in TrainingSettings(optimizer="adam").problems()) == 1


def test_a_momentum_that_cannot_be_is_refused() -> None:
    assert any("momentum is 1.0" in problem for problem in TrainingSettings(momentum=1.0).problems())


def test_one_that_needs_whole_matrices_is_not_sharded(photos: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, optimizer="adafactor", parallelism="fsdp")
    assert "optimizer is adafactor, which needs whole matrices, and parallelism is fsdp." in settings.problems()[0]
    with pytest.raises(UserError, match="adafactor cannot be sharded"):
        train_here(settings, photos, str(tmp_path))  # as where auto has chosen it
    advice = advise(Workload(parameters=30e9, tokens=1e9, optimizer="adafactor"), Wishes(region="us-central1"))
    assert advice.options == (), "it would fit in shards"


@pytest.mark.usefixtures("group_of_one")
def test_a_checkpoint_wants_room_for_what_the_optimizer_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits, usage = {}, shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=7000))
    store = CheckpointStore(str(tmp_path), tmp_path)
    with signals_kept():
        interruption = Interruption(dist.group.WORLD)
    for optimizer in OPTIMIZER_BYTES:
        settings = replace(SETTINGS, optimizer=optimizer)
        writer = CheckpointWriter(store, settings, None, None, interruption)
        try:
            writer.require_room({"model": {"weight": torch.empty(1000)}})
            fits[optimizer] = True
        except UserError:
            fits[optimizer] = False
        writer.close()
    assert fits == {"adamw": False, "adamw_8bit": True, "sgd": False, "adafactor": True, "muon": False}
