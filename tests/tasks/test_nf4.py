"""Linear layers in four bits: what they give, what becomes of them in an export, and what cannot be quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from torch import nn
from transformers import BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.nf4 import BLOCK, Nf4Linear, quantize, round_weights
from gpu_pipelines.training.model.compute import count_parameters
from gpu_pipelines.training.model.frozen_weights import hold_frozen, state_bytes

#: Source: Dettmers et al. 2023, https://arxiv.org/abs/2305.14314, appendix E.
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


def frozen_layers() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 64, bias=False), nn.Linear(64, 3))
    model[:3].requires_grad_(False)
    return model


def test_weights_are_the_nearest_of_the_sixteen_numbers_of_the_paper() -> None:
    model, plain = frozen_layers(), frozen_layers()
    round_weights(model)
    weight = plain[0].weight.view(-1, BLOCK)
    largest = weight.abs().amax(dim=1, keepdim=True)
    levels = torch.tensor(NF4)
    nearest = levels[(weight / largest)[..., None].sub(levels).abs().argmin(dim=-1)] * largest
    torch.testing.assert_close(model[0].weight.view(-1, BLOCK), nearest, rtol=1e-6, atol=1e-7)
    assert torch.equal(model[3].weight, plain[3].weight), "which is trained"


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_they_are_those_of_bitsandbytes_to_the_bit(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(1025, 2 * BLOCK)  # more than a core takes at once
    weight[3], weight[4, 1:] = 0.0, 0.0
    levels = torch.tensor(NF4)
    weight[5, :31] = torch.cat([levels, (levels[:-1] + levels[1:]) / 2])  # and what is as near to one as to the next
    linear = nn.Linear(*weight.shape[::-1], bias=False, dtype=kind).requires_grad_(False)
    linear.weight.data = weight.to(kind)
    model = nn.Sequential(linear)
    quantize(model)
    packed, scales = torch.ops.bitsandbytes.quantize_4bit(linear.weight.float(), BLOCK, "nf4", torch.uint8)
    assert torch.equal(model[0].packed, packed.view_as(model[0].packed))
    assert torch.equal(model[0].scales.view(torch.float32), scales.view_as(model[0].scales))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_quantized_model_gives_what_the_rounded_one_gives_and_so_are_its_gradients(kind: torch.dtype) -> None:
    found = []
    for change in (quantize, round_weights):
        model, rows = frozen_layers(), torch.linspace(-1, 1, 5 * 128).view(5, 128).requires_grad_()
        change(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
            out = model(rows)
        out.float().square().sum().backward()
        found.append((out.float(), rows.grad, model[3].weight.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-2 if kind == torch.bfloat16 else 1e-5, atol=1e-2 if kind == torch.bfloat16 else 1e-6
        )


def test_the_layers_of_gpt2_are_quantized_as_transformers_does(tmp_path: Path) -> None:
    """It lays the matrix of a Conv1D the other way before bitsandbytes quantizes it."""
    torch.manual_seed(0)
    shape = {"n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 99, "bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(**shape)).save_pretrained(tmp_path)
    theirs = GPT2LMHeadModel.from_pretrained(
        tmp_path,
        quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
        dtype=torch.float32,
    )
    tokens = torch.arange(8)[None]
    for change in (quantize, round_weights):
        ours = GPT2LMHeadModel.from_pretrained(tmp_path).requires_grad_(False).eval()
        change(ours)
        torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits.float(), rtol=1e-4, atol=1e-5)
    assert isinstance(theirs.transformer.h[0].mlp.c_fc, Linear4bit)


def test_four_and_a_half_bits_are_held_for_each_frozen_weight_and_all_weights_are_counted() -> None:
    model, plain = frozen_layers(), frozen_layers()
    quantize(model)
    hold_frozen(model, "bf16")
    assert [type(layer) for layer in model] == [Nf4Linear, nn.Tanh, Nf4Linear, nn.Linear]
    assert count_parameters(model) == count_parameters(plain)
    trained, bias = 64 * 3 + 3, 64
    assert state_bytes(model) == 16 * trained + 4 * bias + (128 * 64 + 64 * 64) * 4.5 / 8


def test_it_keeps_nothing_of_a_pass_but_what_it_holds_anyway() -> None:
    model, saved = frozen_layers(), []
    quantize(model)
    held = {weight.data_ptr() for weight in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        model[0](torch.zeros(2, 128, requires_grad=True))
    assert {tensor.data_ptr() for tensor in saved} <= held


def test_another_process_makes_room_for_the_same_tensors() -> None:
    model, empty = frozen_layers(), frozen_layers().to("meta")
    quantize(model)
    quantize(empty)
    assert [(n, t.shape, t.dtype) for n, t in model.state_dict().items()] == [
        (n, t.shape, t.dtype) for n, t in empty.state_dict().items()
    ]
    assert all(tensor.is_meta for tensor in empty.state_dict().values())


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(UserError, match=r"(?s)quantize_base is nf4, and Sequential has no frozen linear layer.*64"):
        quantize(nn.Sequential(nn.Linear(8, 8)).requires_grad_(False))


def test_a_router_that_is_a_linear_layer_stays_as_it_is() -> None:
    """It gives the experts that it has chosen, too."""
    from transformers import PhimoeConfig, PhimoeForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_local_experts": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model: Any = PhimoeForCausalLM(PhimoeConfig(vocab_size=32, bos_token_id=0, eos_token_id=1, **sizes, **heads))
    model.requires_grad_(False)
    quantize(model)
    assert any(isinstance(module, Nf4Linear) for module in model.modules())
    assert model(torch.arange(8)[None]).logits.isfinite().all()


@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu"])
def test_a_t5_computes_with_what_its_rounded_weights_give(feed_forward: str) -> None:
    """It looks at the type of a weight in its feed-forward layers."""
    from transformers import T5Config, T5ForSequenceClassification

    sizes = {"d_model": 64, "d_ff": 64, "d_kv": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    config = T5Config(vocab_size=32, decoder_start_token_id=0, feed_forward_proj=feed_forward, **sizes)
    found = []
    for change in (quantize, round_weights):
        torch.manual_seed(0)
        model: Any = T5ForSequenceClassification(config)
        model.transformer.requires_grad_(False)
        change(model)
        found.append(model(torch.tensor([[5, 6, 7, 1]])).logits)
    torch.testing.assert_close(*found)
