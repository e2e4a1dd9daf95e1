"""Recomputed activations: the training is the same to the bit as without, whatever is recomputed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SmallDatasets
from started_training import weights_digest
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext
from trainings import numbers_dataset, train_here
from transformers import DebertaConfig, DebertaForSequenceClassification

from gpu_pipelines.training.model import recomputing
from gpu_pipelines.training.model.recomputing import _Kept, not_kept, recompute_activations
from gpu_pipelines.training.settings import TrainingSettings

LAST = "step-00000004"
SETTINGS = TrainingSettings(max_steps=4, checkpoint_every_steps=2, global_batch_size=8, micro_batch_size=4)
SELECTIVE: dict[str, Any] = {"activation_checkpointing": True, "recompute": "selective"}


# bert-micro and gpt2-micro drop out at random, in attention too.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("vit-micro", "images"),
        ("resnet-micro", "images"),
        ("bert-micro", "texts"),
        ("gpt2-micro", "lm"),
        ("mixtral-micro", "lm"),
    ],
)
def test_weights_are_the_same_to_the_bit_whatever_is_recomputed(
    datasets: SmallDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, data: str
) -> None:
    passes: list[int] = []
    monkeypatch.setattr(recomputing, "_keeping", lambda keeping=recomputing._keeping: passes.append(1) or keeping())
    settings = replace(SETTINGS, model=model)
    ways: list[dict[str, Any]] = [{}, {"activation_checkpointing": True}, SELECTIVE]
    for number, way in enumerate(ways):
        assert not passes
        train_here(replace(settings, **way), datasets[data], str(tmp_path / f"{number}"))
    assert passes
    digests = [weights_digest(tmp_path / f"{number}" / LAST) for number in range(len(ways))]
    assert digests[1:] == digests[:-1]


@pytest.mark.slow
def test_a_training_goes_on_with_another_way_to_the_same_bits(datasets: SmallDatasets, tmp_path: Path) -> None:
    settings = replace(SETTINGS, model="llama-micro")
    plain, changed = tmp_path / "plain", tmp_path / "changed"
    train_here(settings, datasets["lm"], str(plain))
    train_here(replace(settings, **SELECTIVE), datasets["lm"], str(changed))
    (changed / LAST / "checkpoint.json").unlink()
    train_here(replace(settings, activation_checkpointing=True), datasets["lm"], str(changed))
    assert weights_digest(changed / LAST) == weights_digest(plain / LAST)


def test_a_model_without_layers_that_could_be_recomputed_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(SETTINGS, model="linear", max_steps=1, activation_checkpointing=True)
    train_here(settings, numbers_dataset(tmp_path), str(tmp_path / "checkpoints"))
    assert "warning: activation_checkpointing saves nothing, as " in capsys.readouterr().out


@pytest.mark.parametrize("selective", [False, True])
def test_a_batch_counts_once_among_running_statistics(selective: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)), nn.Flatten())
    recomputed = deepcopy(plain)
    recompute_activations(recomputed, [recomputed[1]], selective=selective)
    for model in (plain, recomputed):
        for rows in torch.rand(2, 4, 2, 8, 8, generator=torch.Generator().manual_seed(1)):
            model(rows).square().sum().backward()
    for (name, one), other in zip(plain.state_dict().items(), recomputed.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    for one, other in zip(plain.parameters(), recomputed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_a_layer_that_changes_what_is_kept_is_told_of() -> None:
    shape: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = DebertaConfig(**shape, relative_attention=True, pos_att_type=["c2p", "p2c"], vocab_size=99)
    model = DebertaForSequenceClassification(config).train()
    recompute_activations(model, list(model.deberta.encoder.layer), selective=True)
    loss = model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.sum()
    with pytest.raises(RuntimeError) as caught:
        loss.backward()
    told = not_kept(caught.value)
    assert told is not None
    assert told.remedy == "Give recompute=layers."
    assert not_kept(RuntimeError("another")) is None


def test_attention_that_drops_out_is_not_kept() -> None:
    """Kept, it would draw no random numbers when its layer is repeated, and what follows would draw its ones."""
    aten, rows = torch.ops.aten, torch.empty(1, 1, 1, 1)
    for attention, before in (
        (aten._scaled_dot_product_flash_attention.default, 3 * (rows,)),
        (aten._scaled_dot_product_efficient_attention.default, (*3 * (rows,), None, True)),
        (aten._scaled_dot_product_cudnn_attention.default, (*3 * (rows,), None, True)),
    ):
        assert _Kept()(None, attention, *before, 0.1) == CheckpointPolicy.PREFER_RECOMPUTE
        assert _Kept()(None, attention, *before, 0.0) == CheckpointPolicy.MUST_SAVE
        assert _Kept()(None, attention, *3 * (rows,), dropout_p=0.1) == CheckpointPolicy.PREFER_RECOMPUTE
        assert _Kept()(None, attention, *before) == CheckpointPolicy.MUST_SAVE


def test_the_pass_that_repeats_a_layer_is_told_what_the_first_one_was() -> None:
    """PyTorch before 2.13 asks in both; an odd number of products turned the second one's answers around."""
    kept, product = _Kept(), torch.ops.aten.mm.default
    passes = [
        [kept(SelectiveCheckpointContext(is_recompute=again), product) for _ in range(7)] for again in (False, True)
    ]
    assert passes[0] == passes[1]
    assert passes[0].count(CheckpointPolicy.MUST_SAVE) == 4


def test_attention_of_packed_rows_is_kept_whose_module_the_engine_does_not_import() -> None:
    from torch.nn.attention.varlen import varlen_attn

    assert varlen_attn is not None  # registers its operation
    rows, ends = torch.zeros(4, 1, 8), torch.tensor([0, 4])
    operation = torch.ops.torch_attn._varlen_attn.default
    assert _Kept()(None, operation, rows, rows, rows, ends, ends, 4, 4) == CheckpointPolicy.MUST_SAVE
    assert _Kept()(None, torch.ops.aten.relu.default, rows) == CheckpointPolicy.PREFER_RECOMPUTE


def test_attention_of_flash_attn_is_kept_but_where_it_drops_out() -> None:
    library = torch.library.Library("flash_attn", "FRAGMENT")
    library.define("_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, float dropout_p) -> Tensor")
    operation, rows = torch.ops.flash_attn._flash_attn_varlen_forward.default, torch.zeros(4, 1, 8)
    assert _Kept()(None, operation, rows, rows, rows, 0.0) == CheckpointPolicy.MUST_SAVE
    assert _Kept()(None, operation, rows, rows, rows, 0.1) == CheckpointPolicy.PREFER_RECOMPUTE
