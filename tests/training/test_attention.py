"""The attention that is asked for: taken, refused with a reason, or rehearsed by another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SmallDatasets
from torch import nn
from trainings import entries, train_here

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.packed_attention import OFFSETS, by_length
from gpu_pipelines.training.machine.local_devices import Devices
from gpu_pipelines.training.model.attention import choose_attention
from gpu_pipelines.training.model.compute import measure_cost
from gpu_pipelines.training.settings import TrainingSettings

CPU, HERE = torch.device("cpu"), Devices("cpu", 1)
SETTINGS = TrainingSettings(model="llama-micro", max_steps=2, checkpoint_every_steps=2, global_batch_size=8)


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**shape, vocab_size=50))


def gemma2() -> Any:
    """Caps its scores, which SDPA does not."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    return Gemma2ForCausalLM(Gemma2Config(**shape, num_key_value_heads=4, head_dim=8, vocab_size=50, pad_token_id=0))


@pytest.mark.parametrize("asked", ["sdpa", "eager"])
def test_a_model_takes_what_was_asked_for(asked: str) -> None:
    model = llama()
    choose_attention(model, asked, CPU, "fp32", HERE)
    assert model.config._attn_implementation == asked


@pytest.mark.slow
def test_trainings_by_other_attention_are_the_same_but_for_rounding(datasets: SmallDatasets, tmp_path: Path) -> None:
    for asked in ("auto", "sdpa", "eager"):
        train_here(replace(SETTINGS, attention=asked), datasets["lm"], str(tmp_path / asked))
    losses = {asked: entries(tmp_path / asked, "val_loss") for asked in ("auto", "sdpa", "eager")}
    assert losses["sdpa"] == losses["auto"]
    assert losses["eager"] == pytest.approx(losses["sdpa"], rel=1e-5)
    # The choice may change when a training goes on.
    (tmp_path / "eager" / "step-00000002" / "checkpoint.json").unlink()
    train_here(SETTINGS, datasets["lm"], str(tmp_path / "eager"))


@pytest.mark.parametrize("asked", ["flash_attention_2", "flex"])
def test_what_cpus_do_not_train_with_is_refused_and_rehearsed_by_another(
    asked: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=f"attention is {asked}, which CPUs do not train with"):
        choose_attention(llama(), asked, CPU, "bf16", HERE)
    model = llama()
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    choose_attention(model, asked, CPU, "bf16", Devices("cpu", 1, rehearsal=True))
    assert model.config._attn_implementation == "sdpa"
    assert "the rehearsal takes sdpa" in capsys.readouterr().out
    choose_attention(gemma2(), asked, CPU, "bf16", Devices("cpu", 1, rehearsal=True))
    assert "the rehearsal takes eager" in capsys.readouterr().out


def test_the_package_of_flash_attention_has_to_be_there() -> None:
    with pytest.raises(UserError, match="flash-attn is not installed; auto takes PyTorch's own"):
        choose_attention(llama(), "flash_attention_2", torch.device("cuda"), "bf16", Devices("cuda", 1))


@pytest.mark.parametrize(("made", "other"), [(llama, "sdpa"), (gemma2, "eager")])
def test_what_a_model_with_flex_costs_is_counted_by_another(made: Callable[[], Any], other: str) -> None:
    """PyTorch compiles it in each call, and compiles nothing while operations are watched."""

    class ItsOwn:
        def loss(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return model(**batch, labels=batch["input_ids"]).loss

    costs, model = {}, made()
    for name in (other, "flex_attention"):
        model.set_attn_implementation(name)
        costs[name] = measure_cost(
            ItsOwn(), model, {"input_ids": torch.ones(2, 128, dtype=torch.int64)}, 2, sharded=False
        )
        assert model.config._attn_implementation == name
    found, expected = costs["flex_attention"], costs[other]
    # PyTorch does not count what SDPA's kernel for CPUs multiplies, and eager holds the square of a row.
    in_scores = 2 * 2 * 128 * 128 * 32 if other == "eager" else 0
    assert found.forward_flops_per_row == expected.forward_flops_per_row - in_scores
    assert other == "eager" or found == expected


def test_a_model_without_a_choice_is_refused() -> None:
    with pytest.raises(UserError, match="Linear has no choice of attention"):
        choose_attention(nn.Linear(2, 2), "eager", CPU, "fp32", HERE)


def test_flash_attention_of_the_package_goes_by_the_lengths_and_the_others_by_a_mask() -> None:
    model = llama()
    batch = {"input_ids": torch.zeros(2, 6, dtype=torch.long), OFFSETS: torch.tensor([0, 4, 6, 12], dtype=torch.int32)}
    assert by_length(model, batch, "sdpa") == {}
    assert by_length(model, batch, "flash_attention_2") == {}, "the model attends otherwise, as in an evaluation"
    model.config._attn_implementation_internal = "flash_attention_2"
    told = by_length(model, batch, "flash_attention_2")
    assert torch.equal(told["cu_seq_lens_q"], batch[OFFSETS])
    assert told["max_length_k"] == 6
