"""The recipes of text: what is scored, what a document may see, weights that are all there, adapters that vanish."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.adapters import merge_adapters
from gpu_pipelines.tasks.building import build_model
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.model_check import CROSSING, problems_of_configuration
from gpu_pipelines.tasks.preference.recipe import Preference
from gpu_pipelines.tasks.recipe import Recipe
from gpu_pipelines.tasks.tasks import task_named
from gpu_pipelines.tasks.text_classification.recipe import TextClassification
from gpu_pipelines.tasks.text_encoding import TextEncoder
from gpu_pipelines.tasks.text_recipe import NOT_SCORED, encoder_logits
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer, tokens_of
from gpu_pipelines.tasks.token_classification.recipe import TokenClassification
from gpu_pipelines.training.model.recomputing import recompute_activations

CPU = torch.device("cpu")
LANGUAGE_MODELS = ("gpt2-micro", "llama-micro", "mixtral-micro")
LENGTH = 64


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    TextEncoder.train(["a dog and a cat and a bird"] * 20, 300, ends=False).save(directory, LENGTH)
    return TextTokenizer.read(directory)


def rows(tokenizer: TextTokenizer, number: int = 4, documents: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    tokens = np.random.default_rng(seed).integers(3, tokenizer.vocabulary_size, (number, LENGTH))
    positions = np.tile(np.arange(LENGTH // documents), (number, documents))
    return {
        "input_ids": tokens.astype(np.int32),
        "loss_mask": (positions > 0).astype(np.uint8),
        "position_ids": positions.astype(np.int32),
    }


def texts(tokenizer: TextTokenizer) -> dict[str, np.ndarray]:
    lengths = np.array([3, 9, 20, 11], dtype=np.int32)
    return {**rows(tokenizer), "length": lengths, "label": np.array([0, 1, 0, 1], dtype=np.int32)}


def built(recipe: Recipe, name: str, rank: int = 0) -> Any:
    torch.manual_seed(0)
    return build_model(recipe, {"model": name, "lora_rank": rank, "lora_alpha": 8.0})


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_predictions_of_a_document_do_not_depend_on_its_neighbours(tokenizer: TextTokenizer, name: str) -> None:
    recipe = CausalLanguageModel(tokenizer, LENGTH)
    model = built(recipe, name).eval()
    one, two = rows(tokenizer), rows(tokenizer)
    half = LENGTH // 2
    two["input_ids"][:, :half] = rows(tokenizer, seed=9)["input_ids"][:, :half]
    for columns in (one, two):
        columns["loss_mask"][:, :half] = 0
    alone = {key: values[:, half:] for key, values in one.items()}
    scores = [recipe.predict(model, recipe.batch(columns, CPU)) for columns in (one, two, alone)]
    assert torch.allclose(scores[0], scores[1], atol=1e-4)
    assert torch.allclose(scores[0], scores[2], atol=1e-4)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_loss_is_the_mean_over_the_scored_tokens_and_zero_without_any(tokenizer: TextTokenizer, name: str) -> None:
    recipe = CausalLanguageModel(tokenizer, LENGTH)
    model = built(recipe, name).eval()
    model.config.output_router_logits = False
    columns = rows(tokenizer)
    columns["loss_mask"][:, 40:] = 0
    columns["loss_mask"][0] = 0
    batch = recipe.batch(columns, CPU)
    assert batch["input_ids"].shape == (4, 40), "cut behind the last target, to a multiple of 8"
    scores = recipe.predict(model, batch)
    assert scores[:, 1].tolist() == [0, 38, 38, 38]
    assert recipe.loss_tokens(columns) == 3 * 38
    assert torch.isclose(recipe.loss(model, batch), scores[:, 0].sum() / scores[:, 1].sum())
    parts = [{k: v[rows_] for k, v in columns.items()} for rows_ in (slice(0, 2), slice(2, 4))]
    weighted = sum(recipe.loss(model, recipe.batch(part, CPU)) * recipe.loss_tokens(part) for part in parts)
    assert torch.isclose(weighted / recipe.loss_tokens(columns), recipe.loss(model, batch))
    model.config.output_router_logits = name.startswith("mixtral")
    nothing = recipe.loss(model.train(), recipe.batch({**columns, "loss_mask": columns["loss_mask"] * 0}, CPU))
    assert nothing.item() == 0
    nothing.backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("task", ["causal_lm", "text_classification", "token_classification"])
def test_smoothed_labels_are_for_training_alone_and_not_for_padding(tokenizer: TextTokenizer, task: str) -> None:
    recipe, columns = _recipe_and_rows(task, tokenizer)
    name = {"causal_lm": "gpt2-micro"}.get(task, "bert-micro")
    model = built(recipe, name)
    for dropout in (module for module in model.modules() if isinstance(module, torch.nn.Dropout)):
        dropout.p = 0.0
    batch = recipe.batch(columns, CPU)
    inputs = {key: value for key, value in batch.items() if key not in ("labels", "targets")}
    targets = batch["targets" if task == "causal_lm" else "labels"].flatten()
    logits = model.train()(**inputs).logits.flatten(0, -2)[targets != NOT_SCORED]
    targets = targets[targets != NOT_SCORED]
    plain = -logits.log_softmax(dim=-1)
    one, every = plain.gather(1, targets[:, None]).mean(), plain.mean()
    recipe.label_smoothing = 0.2
    torch.testing.assert_close(recipe.loss(model, batch), 0.8 * one + 0.2 * every)
    torch.testing.assert_close(recipe.loss(model.eval(), batch), one)


def _recipe_and_rows(task: str, tokenizer: TextTokenizer) -> tuple[Any, dict[str, np.ndarray]]:
    columns = texts(tokenizer)
    if task == "causal_lm":
        return CausalLanguageModel(tokenizer, LENGTH), columns
    if task == "text_classification":
        return TextClassification(["no", "yes"], tokenizer, LENGTH), columns
    tags = np.random.default_rng(0).integers(0, 4, columns["input_ids"].shape)
    tags[np.arange(LENGTH) >= columns["length"][:, None]] = 0
    tagged = {"tokens": columns["input_ids"], "tokens_length": columns["length"], "tags": tags}
    return TokenClassification(["O", "B-x", "I-x"], tokenizer, LENGTH), tagged


def test_padding_changes_nothing_for_a_classifier(tokenizer: TextTokenizer) -> None:
    recipe = TextClassification(["no", "yes"], tokenizer, LENGTH)
    model = built(recipe, "bert-micro").eval()
    columns = texts(tokenizer)
    batch = recipe.batch(columns, CPU)
    assert batch["input_ids"].shape == (4, 24)
    other = {**columns, "input_ids": columns["input_ids"].copy()}
    for row, length in enumerate(columns["length"]):
        other["input_ids"][row, length:] = 7
    wanted = recipe.predict(model, batch)
    assert torch.allclose(recipe.predict(model, recipe.batch(other, CPU)), wanted, atol=1e-6)
    first = {key: values[:1] for key, values in columns.items()}
    assert torch.allclose(recipe.predict(model, recipe.batch(first, CPU)), wanted[:1], atol=1e-6)


def test_a_table_of_tokens_of_its_own_kind_is_counted(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """The embeddings of an I-BERT are no nn.Embedding."""
    from transformers import IBertConfig

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    IBertConfig(**sizes, max_position_embeddings=LENGTH + 2).save_pretrained(tmp_path)
    recipe = TextClassification(["no", "yes"], tokenizer, LENGTH)
    assert recipe.loss(built(recipe, str(tmp_path)), recipe.batch(texts(tokenizer), CPU)).isfinite()


def test_activations_of_a_classifier_with_a_decoder_are_recomputed(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """A decoder that kept keys for the next token would keep them twice."""
    from transformers import T5Config

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    T5Config(decoder_start_token_id=0, **sizes).save_pretrained(tmp_path)
    recipe, columns = TextClassification(["no", "yes"], tokenizer, LENGTH), texts(tokenizer)
    # In a T5 each text has as many ends as the others.
    columns["input_ids"][:, 1:][columns["input_ids"][:, 1:] == 1] = 5
    columns["input_ids"][:, 0] = 1
    model = built(recipe, str(tmp_path))
    model.config.eos_token_id = 1
    gradients = []
    for change in (lambda: None, lambda: recompute_activations(model, recipe.blocks(model))):
        change()
        model.zero_grad()
        recipe.loss(model, recipe.batch(columns, CPU)).backward()
        gradients.append(model.get_input_embeddings().weight.grad.clone())
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("task", ["text_classification", "token_classification"])
def test_rows_of_different_lengths_change_nothing_for_xlnet(tokenizer: TextTokenizer, task: str) -> None:
    """It has read a text at its last token, which stands at the last place of a row."""
    from transformers import XLNetConfig, XLNetForSequenceClassification, XLNetForTokenClassification

    kind = XLNetForSequenceClassification if task == "text_classification" else XLNetForTokenClassification
    recipe, columns = _recipe_and_rows(task, tokenizer)
    torch.manual_seed(0)
    config = XLNetConfig(vocab_size=tokenizer.vocabulary_size, d_model=32, d_inner=48, n_layer=2, n_head=2)
    model = kind(config).eval()
    with torch.inference_mode():
        found = encoder_logits(model, recipe.batch(columns, CPU))
        for row, length in enumerate(texts(tokenizer)["length"]):
            alone = model(torch.tensor(texts(tokenizer)["input_ids"][row : row + 1, :length]).long()).logits[0]
            here = found[row, :length] if alone.ndim == 2 else found[row]
            torch.testing.assert_close(here, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.slow_but_for("llama-micro-0", "llama-micro-4", "bert-micro-0")
@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("name", [*LANGUAGE_MODELS, "bert-micro"])
def test_a_trained_model_predicts_the_same_after_export(
    tokenizer: TextTokenizer, tmp_path: Path, name: str, rank: int
) -> None:
    classifies = name == "bert-micro"
    recipe: Any = TextClassification(["no", "yes"], tokenizer, LENGTH)
    if not classifies:
        recipe = CausalLanguageModel(tokenizer, LENGTH)
    model = built(recipe, name, rank)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    batch = recipe.batch(texts(tokenizer) if classifies else rows(tokenizer), CPU)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(8):
        loss = recipe.loss(model, batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad), "DDP waits for every gradient"
        optimizer.step()
    assert losses[-1] < losses[0]
    if rank:
        moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
        assert all("lora_" in key or key.startswith("classifier.") for key in moved)
        assert ("classifier.weight" in moved) == classifies
    with torch.no_grad():
        wanted = recipe.predict(model.eval(), batch)
    recipe.export(merge_adapters(model), tmp_path)
    assert not any("lora" in key for key in load_file(tmp_path / "model.safetensors"))
    again = type(recipe).for_exported(tmp_path)
    with torch.no_grad():
        got = again.predict(again.load_exported(tmp_path).eval(), batch)
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-4)
    tokens, learned = ((each.directory / "tokenizer.json").read_bytes() for each in (again.tokenizer, tokenizer))
    assert tokens == learned
    assert classifies or json.loads((tmp_path / "config.json").read_text()).get("use_cache", True)


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_a_weight_that_does_not_fit_is_an_error(tokenizer: TextTokenizer, tmp_path: Path, change: str) -> None:
    recipe = CausalLanguageModel(tokenizer, LENGTH)
    recipe.export(built(recipe, "llama-micro"), tmp_path)
    recipe.build_model(str(tmp_path))
    weights = load_file(tmp_path / "model.safetensors")
    key = "model.layers.0.mlp.up_proj.weight"
    if change == "missing":
        del weights[key]
    elif change == "unexpected":
        weights["model.layers.9.mlp.up_proj.weight"] = weights[key].clone()
    else:
        weights[key] = weights[key][:5].clone()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="do not fit its architecture"):
        recipe.build_model(str(tmp_path))


def test_another_head_is_new_and_another_backbone_an_error(
    tokenizer: TextTokenizer, tmp_path: Path, capsys: Any
) -> None:
    two = TextClassification(["no", "yes"], tokenizer, LENGTH)
    model = built(two, "bert-micro")
    two.export(model, tmp_path)
    three = TextClassification(["a", "b", "c"], tokenizer, LENGTH).build_model(str(tmp_path))
    assert three.get_parameter("classifier.weight").shape[0] == 3
    key = "bert.encoder.layer.1.output.dense.weight"
    assert torch.equal(three.get_parameter(key), model.get_parameter(key))
    assert "classifier.weight" in capsys.readouterr().out
    weights = load_file(tmp_path / "model.safetensors")
    del weights[key]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=key):
        two.build_model(str(tmp_path))


def test_a_configuration_alone_is_trained_from_scratch_with_the_datas_vocabulary(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    shape = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 50257}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    model = CausalLanguageModel(tokenizer, LENGTH).build_model(str(tmp_path))
    assert model.config.vocab_size == tokenizer.vocabulary_size
    with pytest.raises(UserError, match="sequence_length=64"):
        CausalLanguageModel(tokenizer, 65).build_model(str(tmp_path))


def test_weights_that_know_other_tokens_are_refused_and_new_and_renamed_tokens_are_not(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    recipe = CausalLanguageModel(tokenizer, LENGTH)
    directory = tmp_path / "pretrained"
    directory.mkdir()
    recipe.export(built(recipe, "llama-micro"), directory)

    def other(name: str, vocabulary: dict[str, int]) -> CausalLanguageModel:
        shutil.copytree(tokenizer.directory, tmp_path / name)
        content = json.loads((tokenizer.directory / "tokenizer.json").read_text())
        content["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(content))
        return CausalLanguageModel(TextTokenizer.read(tmp_path / name), LENGTH)

    known = tokens_of(tokenizer.directory)
    renamed = {**{token: number for number, token in known.items()}, "<a tool>": 5}
    del renamed[known[5]]
    assert built(other("renamed", renamed), str(directory)) is not None
    mixed = {token: -number % len(known) for number, token in known.items()}
    with pytest.raises(UserError, match=r"another tokenizer than the dataset: .* tokens differ"):
        built(other("mixed", mixed), str(directory))


def test_a_model_that_looks_across_documents_is_refused_where_a_row_has_several(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    recipe = CausalLanguageModel(tokenizer, LENGTH)
    columns = rows(tokenizer, documents=1)
    tokens = torch.from_numpy(columns["input_ids"]).long()
    for shape in (
        {"model_type": "bloom", "hidden_size": 32, "n_layer": 1, "n_head": 2},
        {
            "model_type": "opt",
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
    ):
        (tmp_path / "config.json").write_text(json.dumps(shape))
        recipe.has_one_shape = True
        with pytest.raises(UserError, match="would cross the documents of a row") as refused:
            recipe.build_model(str(tmp_path))
        assert "-p packing=false" in refused.value.remedy
        recipe.has_one_shape = False
        model: Any = recipe.build_model(str(tmp_path)).eval()
        loss = recipe.loss(model, recipe.batch(columns, CPU))
        assert loss.item() == pytest.approx(model(input_ids=tokens, labels=tokens).loss.item(), rel=1e-5)
        assert Preference(tokenizer, LENGTH).build_model(str(tmp_path)) is not None, "a row has one document"
        recipe.export(model, tmp_path / "exported")
        # Bloom has no largest number of positions; its rows were so long.
        of_tokens = {"bloom": LENGTH, "opt": 2048}[str(shape["model_type"])]
        assert CausalLanguageModel.for_exported(tmp_path / "exported").sequence_length == of_tokens


#: Of tiny models, as far as a family has them.
TINY = {
    **dict.fromkeys(("hidden_size", "word_embed_proj_dim", "moe_intermediate_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "num_key_value_heads", "num_local_experts", "num_experts"), 2),
    "num_attention_heads": 4,
    "head_dim": 8,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
}


def tiny_config(family: str) -> Any:
    kind = transformers.CONFIG_MAPPING[family]
    usual = kind()
    computed = {name for name in (*TINY, "layer_types") if isinstance(getattr(kind, name, None), property)}
    computed |= kind.attribute_map.keys() & {"layer_types"}
    given: dict[str, Any] = {
        name: value for name, value in TINY.items() if name not in computed and hasattr(usual, name)
    }
    if "layer_types" not in computed and getattr(usual, "layer_types", None):
        given["layer_types"] = usual.layer_types[:2]
    return kind(**given)


@pytest.mark.parametrize("family", sorted(CROSSING))
def test_a_family_that_looks_across_documents_is_refused_by_its_name_as_the_training_refuses_it(
    tokenizer: TextTokenizer, tmp_path: Path, family: str
) -> None:
    tiny_config(family).save_pretrained(tmp_path)
    recipe = CausalLanguageModel(tokenizer, LENGTH)
    recipe.has_one_shape = True
    with pytest.raises(UserError, match="would cross the documents of a row"):
        recipe.build_model(str(tmp_path))
    save_file({}, tmp_path / "model.safetensors")
    (said,) = problems_of_configuration(task_named("causal_lm"), str(tmp_path), 0, packing=True)
    assert "would cross the documents of a row. Give -p packing=false" in said


def test_a_model_that_sees_what_is_to_come_is_refused(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **small}))  # however little its weights say
    with pytest.raises(UserError, match="sees later tokens"):
        CausalLanguageModel(tokenizer, LENGTH).build_model(str(tmp_path))
