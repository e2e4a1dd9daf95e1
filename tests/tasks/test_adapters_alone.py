"""The adapters beside a merged model: peft loads them onto the base, and both give the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from gpu_pipelines.accelerators import model_config
from gpu_pipelines.accelerators.workload import WITHOUT_USUAL_TARGETS, Workload
from gpu_pipelines.errors import UserError, said_by
from gpu_pipelines.tasks.adapters import add_adapters, layers_to_adapt, merge_adapters, save_adapters
from gpu_pipelines.tasks.building import build_model
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.image_classification.models import image_classifier
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification
from gpu_pipelines.tasks.image_classification.task import ImageClassificationTask
from gpu_pipelines.tasks.model_places import ADAPTER
from gpu_pipelines.tasks.text_classification.recipe import TextClassification
from gpu_pipelines.tasks.text_encoding import TextEncoder
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer
from gpu_pipelines.tasks.token_classification.recipe import TokenClassification
from gpu_pipelines.training.settings import TrainingSettings

LABELS = ["cat", "dog"]
LENGTH = 32


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    TextEncoder.train(["a dog and a cat and a bird"] * 20, 300, ends=False).save(directory, LENGTH)
    return TextTokenizer.read(directory)


def trained(recipe: Any, base: Path, name: str) -> Any:
    """A model whose adapters, and whose head, are not what they began as; beside its base."""
    torch.manual_seed(0)
    recipe.export(recipe.build_model(name), base)
    model = build_model(recipe, {"model": str(base), "lora_rank": 4, "lora_alpha": 8.0})
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


#: Models with a linear layer that chooses experts, an activation with buffers, dense layers beside stacked experts.
OTHERS: dict[str, dict[str, Any]] = {
    "phimoe": {"num_local_experts": 4},
    "apertus": {},
    "deepseek_v3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
    },
}


def described(kind: str, directory: Path) -> str:
    """A folder with the config.json of one of `OTHERS`."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": LENGTH}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    transformers.AutoConfig.for_model(kind, **sizes, **heads, **OTHERS[kind]).save_pretrained(directory)
    return str(directory)


def logits(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**inputs).logits


@pytest.mark.parametrize("name", ["llama-micro", "gpt2-micro", "texts", "tokens", "images", *OTHERS])
def test_peft_puts_them_onto_the_base_and_they_give_what_the_merged_model_gives(
    tokenizer: TextTokenizer, tmp_path: Path, name: str
) -> None:
    tokens = torch.from_numpy(np.random.default_rng(0).integers(3, tokenizer.vocabulary_size, (2, LENGTH)))
    inputs, model = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, "bert-micro"
    recipe: Any = CausalLanguageModel(tokenizer, LENGTH)
    if name == "texts":
        recipe = TextClassification(LABELS, tokenizer, LENGTH)
    elif name == "tokens":
        recipe = TokenClassification(LABELS, tokenizer, LENGTH)
    elif name == "images":
        inputs, model = {"pixel_values": torch.rand(2, 3, 32, 32)}, "vit-micro"
        recipe = ImageClassification(LABELS, {}, (3, 32, 32))
    else:
        model = described(name, tmp_path / name) if name in OTHERS else name
    given = trained(recipe, tmp_path / "base", model)
    auto_class = getattr(recipe, "auto_class", "")
    (tmp_path / "merged").mkdir()
    save_adapters(given, str(tmp_path / "base"), auto_class, tmp_path / "merged")
    wanted = logits(given, inputs)
    merged = logits(merge_adapters(given), inputs)
    base = getattr(transformers, auto_class or "AutoModelForImageClassification").from_pretrained(tmp_path / "base")
    untouched = logits(base, inputs)
    from peft import PeftModel  # seconds, which not all tests need

    alone = PeftModel.from_pretrained(base, str(tmp_path / "merged" / ADAPTER))
    torch.testing.assert_close(logits(alone, inputs), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(merged, wanted, rtol=1e-5, atol=1e-5)
    assert (untouched - wanted).abs().max() > 0.01


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [
        ("", {"q_proj", "v_proj"}),
        ("all-linear", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        ("self_attn.o_proj, up_proj", {"o_proj", "up_proj"}),
    ],
)
def test_adapters_are_on_the_layers_that_were_asked_for(
    tokenizer: TextTokenizer, targets: str, adapted: set[str]
) -> None:
    recipe = CausalLanguageModel(tokenizer, LENGTH)
    settings = {"model": "llama-micro", "lora_rank": 4, "lora_alpha": 8.0, "lora_targets": targets}
    model = build_model(recipe, settings)
    found = [name.split(".lora_A")[0] for name, _ in model.named_parameters() if ".lora_A" in name]
    assert {name.rpartition(".")[2] for name in found} == adapted
    assert len(found) == len(adapted) * model.config.num_hidden_layers


def test_models_without_layers_for_adapters_are_refused_before_anything_is_prepared() -> None:
    without = set()
    for name in ImageClassificationTask.models:
        with torch.device("meta"):
            built = image_classifier(name, {"num_labels": 2}, 224)
        if said_by(partial(layers_to_adapt, built, "")):
            without.add(name)
    assert without == set(ImageClassificationTask.without_adapters)
    assert said_by(lambda: layers_to_adapt(nn.Sequential(nn.Linear(3, 2)), "")), "the model linear"
    for task, model in (("regression", "linear"), ("multi_label_classification", *without)):
        (said,) = TrainingSettings(model=model, lora_rank=4).problems(task)
        assert said == f"{model} has no linear layers that adapters could be added to. Leave lora_rank at 0."
    assert TrainingSettings(model="mlp-small", lora_rank=4).problems("regression") == []


def test_advise_counts_adapters_on_all_layers_of_families_for_which_peft_names_none() -> None:
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    counted = model_config._GATED | model_config._PLAIN | model_config._OF_EXPERTS
    assert counted - TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.keys() == WITHOUT_USUAL_TARGETS
    job = Workload(parameters=7e9, tokens=1e9, lora_rank=16, family="olmo2")
    assert job.trained_parameters == replace(job, lora_targets="all-linear").trained_parameters
    assert job.trained_parameters > replace(job, family="llama").trained_parameters


def test_a_layer_that_the_model_lacks_is_answered_with_those_it_has(tokenizer: TextTokenizer) -> None:
    settings = {"model": "llama-micro", "lora_rank": 4, "lora_alpha": 8.0, "lora_targets": "q_proj,c_attn"}
    with pytest.raises(UserError, match="'c_attn', and no linear layer of LlamaForCausalLM has such a name") as refused:
        build_model(CausalLanguageModel(tokenizer, LENGTH), settings)
    assert "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj; all-linear" in refused.value.remedy


def test_adapters_of_weights_in_bf16_are_in_fp32(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    recipe = CausalLanguageModel(tokenizer, LENGTH)
    base = recipe.build_model(described("deepseek_v3", tmp_path / "described"))
    recipe.export(base.bfloat16(), tmp_path / "base")
    model = build_model(recipe, {"model": str(tmp_path / "base"), "lora_rank": 4, "lora_alpha": 8.0}, as_stored=True)
    adapters = {name: weight for name, weight in model.named_parameters() if ".lora_" in name}
    assert any(".experts." in name for name in adapters)
    assert {weight.dtype for weight in adapters.values()} == {torch.float32}
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16


def test_there_are_none_where_nobody_else_has_the_base_or_more_was_trained(
    tokenizer: TextTokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = CausalLanguageModel(tokenizer, LENGTH)
    model = build_model(recipe, {"model": "llama-micro", "lora_rank": 4, "lora_alpha": 8.0})
    save_adapters(model, "llama-micro", recipe.auto_class, tmp_path)
    model = add_adapters(recipe.build_model("llama-micro"), 4, 8.0)
    model.get_submodule("model.norm").requires_grad_(True)
    save_adapters(model, "meta-llama/Llama-3.1-8B", recipe.auto_class, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "trained were model.norm.weight too" in capsys.readouterr().out
