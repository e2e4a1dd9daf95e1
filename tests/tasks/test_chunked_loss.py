"""The loss of a language model without all logits at once: the same numbers, and no tensor of their size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_pipelines.tasks.adapters import add_adapters
from gpu_pipelines.tasks.causal_lm import chunked_loss
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.text_encoding import TextEncoder
from gpu_pipelines.tasks.text_recipe import NOT_SCORED
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

ROWS, TOKENS, WORDS, WIDTH = 3, 24, 50, 16
# More than the weights of the head, and no divisor of the tokens.
FEW = 17 * WORDS
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": TOKENS,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> CausalLanguageModel:
    directory = tmp_path_factory.mktemp("tokenizer")
    TextEncoder.train(["a dog and a cat"] * 20, 300, ends=False).save(directory, TOKENS)
    return CausalLanguageModel(TextTokenizer.read(directory), TOKENS)


def model_of(family: str, **changes: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **changes})
    model = AutoModelForCausalLM.from_config(config).train()
    # Untrained, all words would be about as likely.
    model.get_input_embeddings().weight.data.mul_(20)
    return model


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(WORDS, (ROWS, TOKENS), generator=generator)
    targets[0, :5] = targets[1:, -3:] = NOT_SCORED
    return {
        "input_ids": torch.randint(WORDS, (ROWS, TOKENS), generator=generator),
        "position_ids": torch.arange(12).repeat(ROWS, 2),
        "targets": targets,
    }


def learned(recipe: CausalLanguageModel, model: nn.Module) -> dict[str, torch.Tensor]:
    """The loss, what is predicted, and the gradients of the trained weights."""
    model.zero_grad()
    loss = recipe.loss(model, batch())
    (loss * 3).backward()  # as a step of a training scales it
    with torch.no_grad():
        predicted = recipe.predict(model, batch())
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    return {"": loss.detach(), "predicted": predicted, **gradients}


Made = Callable[[], nn.Module]


def with_adapters() -> nn.Module:
    model = add_adapters(model_of("llama"), 4, 8.0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:  # which is 0, and would leave no gradient to the others
            nn.init.normal_(weight)
    return model


def with_a_bias() -> nn.Module:
    model: Any = model_of("llama")
    model.lm_head = nn.Linear(WIDTH, WORDS)
    return model


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: model_of("llama"), id="llama"),
        pytest.param(lambda: model_of("llama", tie_word_embeddings=True), id="tied"),
        pytest.param(lambda: model_of("mixtral", output_router_logits=True), id="experts"),
        pytest.param(with_adapters, id="adapters"),
        pytest.param(with_a_bias, id="bias"),
    ],
)
def test_losses_and_gradients_are_those_of_all_logits(
    recipe: CausalLanguageModel, monkeypatch: pytest.MonkeyPatch, made: Made, smoothing: float
) -> None:
    monkeypatch.setattr(recipe, "label_smoothing", smoothing)
    whole = learned(recipe, made())
    monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", FEW)
    calls: list[int] = []
    monkeypatch.setattr(chunked_loss, "_parts", lambda *of, parts=chunked_loss._parts: calls.append(1) or parts(*of))
    chunked = learned(recipe, made())
    assert len(calls) == 3, "forwards, backwards, and to predict"
    assert chunked.keys() == whole.keys()
    assert len(whole) > 5
    for name, tensor in whole.items():
        torch.testing.assert_close(chunked[name], tensor, rtol=1e-6, atol=1e-6 * tensor.abs().max().item(), msg=name)


def test_in_bf16_they_differ_by_rounding_alone(recipe: CausalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        whole = learned(recipe, model_of("llama"))
        monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", FEW)
        chunked = learned(recipe, model_of("llama"))
    torch.testing.assert_close(chunked[""], whole[""])
    for name, tensor in whole.items():
        assert (chunked[name] - tensor).norm() <= 0.01 * tensor.norm(), name


def test_a_batch_without_scored_tokens_has_no_loss_and_no_gradient(
    recipe: CausalLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", FEW)
    model = model_of("llama")
    loss = recipe.loss(model, {**batch(), "targets": torch.full((ROWS, TOKENS), NOT_SCORED)})
    loss.backward()
    assert loss == 0
    assert not any(weight.grad.any() for weight in model.parameters() if weight.grad is not None)


class Largest(TorchDispatchMode):
    """Notes the most logits in one tensor."""

    logits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(each, torch.Tensor) and each.shape[-1:] == (WORDS,):
                self.logits = max(self.logits, each.numel())
        return found


def test_no_more_logits_are_made_at_once_than_is_said(
    recipe: CausalLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for most in (chunked_loss.LOGITS_AT_ONCE, FEW):
        monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", most)
        with Largest() as largest:
            learned(recipe, model_of("llama"))
        made.append(largest.logits)
    assert made == [ROWS * TOKENS * WORDS, FEW]


def test_a_model_that_changes_its_logits_keeps_all_of_them(
    recipe: CausalLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [model_of("gemma2", final_logit_softcapping=cap) for cap in (2.0, 2.0)]
    whole = learned(recipe, made[0])
    monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", FEW)
    again = learned(recipe, made[1])
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())


def test_the_head_gives_logits_again_afterwards(recipe: CausalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = model_of("llama")
    before = model(batch()["input_ids"]).logits
    monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", FEW)
    recipe.loss(model, batch())
    with pytest.raises(KeyError, match="position_ids"):
        recipe.loss(model, {name: value for name, value in batch().items() if name != "position_ids"})
    assert torch.equal(model(batch()["input_ids"]).logits, before)
