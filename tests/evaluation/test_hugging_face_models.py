"""Models that this project did not train: they are scored as transformers runs them, all weights or an error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from evaluations import classes_dataset, numbers_dataset, settings_in, text_dataset, write_tokenizer
from safetensors.torch import load_file, save_file

from gpu_pipelines.artifacts.dataset import Dataset, Feature
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.artifacts.exported_model import weight_files
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.models.hugging_face import damaged_file, models_in, open_model, why_none
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.tasks.model_places import base_of_adapters
from gpu_pipelines.tasks.pretrained import labels_for

LABELS = ["bad", "good", "ugly"]
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return classes_dataset(tmp_path_factory.mktemp("texts") / "data")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints as the Trainer of transformers leaves them, with classes in another order, and one more."""
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    for number in (500, 1000):
        config = BertConfig(
            vocab_size=40,
            **SMALL,
            max_position_embeddings=32,
            id2label=dict(enumerate(LABELS)),
            label2id={label: number for number, label in enumerate(LABELS)},
        )
        BertForSequenceClassification(config).save_pretrained(folder / f"checkpoint-{number}")
        (folder / f"checkpoint-{number}/training_args.bin").write_bytes(b"a pickle")
        (folder / f"checkpoint-{number}/trainer_state.json").write_text("{}")
    return folder


def evaluate(dataset: Dataset, models: Path, folder: Path, name: str = "best") -> Evaluation:
    return evaluate_checkpoints(settings_in(folder), dataset.directory, models, folder / name)


@pytest.mark.parametrize("kind", ["FNet", "Bert"])
def test_a_model_that_does_not_leave_out_padding_is_warned_of(
    texts: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    torch.manual_seed(0)
    shape = {**SMALL, "vocab_size": 40, "max_position_embeddings": 32, "id2label": dict(enumerate(LABELS))}
    model = getattr(transformers, f"{kind}ForSequenceClassification")(getattr(transformers, f"{kind}Config")(**shape))
    model.classifier.weight.data *= 20  # as sure of itself as a trained one
    model.save_pretrained(tmp_path / "models/checkpoint-1")
    evaluate(texts, tmp_path / "models", tmp_path)
    warned = f"what {kind}ForSequenceClassification predicts for a text depends on how long the others of its batch are"
    assert (warned in capsys.readouterr().out) == (kind == "FNet")


def copied(trained: Path, folder: Path) -> Path:
    shutil.copytree(trained / "checkpoint-500", folder / "model")
    return folder / "model"


@pytest.mark.slow
def test_checkpoints_of_another_program_are_ranked_exported_and_compared(
    texts: Dataset, trained: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    evaluation = evaluate(texts, trained, tmp_path)
    assert [(scored["name"], scored["step"]) for scored in evaluation.checkpoints] == [
        ("checkpoint-500", 500),
        ("checkpoint-1000", 1000),
    ]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "best", local_files_only=True).eval()
    rows = texts.split("test").take(np.arange(40))
    mask = torch.from_numpy(np.arange(rows["input_ids"].shape[1]) < rows["length"][:, None]).long()
    with torch.no_grad():
        found = model(torch.from_numpy(rows["input_ids"]).long(), mask).logits.argmax(-1).numpy()
    right = np.array(LABELS)[found] == np.array(["good", "bad"])[rows["label"]]
    assert evaluation.test["metrics"]["accuracy"]["value"] == pytest.approx(right.mean())
    assert {path.name for path in (tmp_path / "best").iterdir()} == {
        "MODEL_CARD.md",
        "config.json",
        "evaluation.json",
        "examples.json",
        "model.safetensors",
        "reference_profile.npz",
        *(path.name for path in (texts.directory / "tokenizer").iterdir()),
    }
    assert set(Examples.load(tmp_path / "best").predictions[0]["scores"]) == set(LABELS)
    upload_model(UploadSettings(settings_in(tmp_path).registry, "mine"), tmp_path / "best", passed=True)
    again = evaluate(texts, trained / evaluation.best, tmp_path, "again")
    assert again.champion is not None
    assert again.champion["metrics"] == again.test["metrics"] == evaluation.test["metrics"]


def test_checkpoints_count_beside_the_model_that_a_trainer_has_saved_at_the_end(
    texts: Dataset, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "output"
    shutil.copytree(trained, folder)
    # What `trainer.save_model()` adds, and what a hub's copy of a model may hold.
    for name in ("config.json", "model.safetensors"):
        shutil.copy(trained / "checkpoint-1000" / name, folder)
    shutil.copytree(trained / "checkpoint-500", folder / "onnx")
    # As the examples of Accelerate name them, whose save_state writes no settings.
    (folder / "checkpoint-500").rename(folder / "step_500")
    for name in ("step_8", "step_16"):
        (folder / name).mkdir()
        shutil.copy(trained / "checkpoint-500/model.safetensors", folder / name)
    # As an own loop may keep its state in a folder with the settings.
    (folder / "checkpoint-250").mkdir()
    shutil.copy(trained / "checkpoint-500/config.json", folder / "checkpoint-250")
    (folder / "checkpoint-250/best.pt").write_bytes(b"a pickle")
    evaluation = evaluate(texts, folder, tmp_path)
    assert [(scored["name"], scored["step"]) for scored in evaluation.checkpoints] == [
        ("step_500", 500),
        ("checkpoint-1000", 1000),
        ("model", 1000),
    ]
    assert "passing over step_16, step_8: model.safetensors has no config.json beside it: " in (
        said := capsys.readouterr().out
    )
    assert "passing over checkpoint-250: model.safetensors is damaged or missing" in said
    first, last, saved = (scored["val"] for scored in evaluation.checkpoints)
    assert last == saved != first


def test_folders_that_a_program_keeps_for_itself_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("checkpoint-2", "tmp-checkpoint-4", ".cache", "best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert models_in(tmp_path) == [(tmp_path / "best", 0), (tmp_path / "checkpoint-2", 2)]


def test_a_checkpoint_that_a_killed_program_has_left_is_passed_over(
    texts: Dataset, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "trained")
    weights = tmp_path / "trained/checkpoint-1000/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert [each["step"] for each in evaluate(texts, tmp_path / "trained", tmp_path).checkpoints] == [500]
    assert "passing over checkpoint-1000: model.safetensors is damaged" in capsys.readouterr().out
    # The settings are written before the weights.
    shutil.copytree(trained / "checkpoint-500", tmp_path / "trained/checkpoint-1500")
    for name in ("model.safetensors", "training_args.bin"):
        (tmp_path / "trained/checkpoint-1500" / name).unlink()
    assert [each["step"] for each in evaluate(texts, tmp_path / "trained", tmp_path, "then").checkpoints] == [500]
    assert "passing over checkpoint-1500: model.safetensors is damaged or missing" in capsys.readouterr().out
    shutil.copytree(trained / "checkpoint-500", tmp_path / "trained/checkpoint-250")
    config = tmp_path / "trained/checkpoint-250/config.json"
    assert not damaged_file(config.parent)
    config.write_text("[]")
    assert damaged_file(config.parent) == "config.json"
    shutil.copy(trained / "checkpoint-500/config.json", config)
    config.write_bytes(config.read_bytes()[:-100])
    assert [each["step"] for each in evaluate(texts, tmp_path / "trained", tmp_path, "last").checkpoints] == [500]
    assert "passing over checkpoint-250: config.json is damaged" in capsys.readouterr().out
    (tmp_path / "trained/checkpoint-500/model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="has no model whose weights are whole"):
        evaluate(texts, tmp_path / "trained", tmp_path, "again")
    index = tmp_path / "trained/checkpoint-500/model.safetensors.index.json"
    (tmp_path / "trained/checkpoint-500/model.safetensors").unlink()
    index.write_text(json.dumps({"weight_map": {"a": "model-00002-of-00002.safetensors"}}))
    assert damaged_file(tmp_path / "trained/checkpoint-500") == "model-00002-of-00002.safetensors"


def adapted(base: Any, task_type: str, directory: Path) -> Any:
    """A model with adapters that are not zero any more, as peft saves them; beside its base."""
    torch.manual_seed(1)
    model: Any = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules="all-linear", task_type=task_type))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    model.save_pretrained(directory)
    return model.eval()


def test_adapters_are_scored_and_exported_with_the_model_that_they_are_for(
    texts: Dataset, trained: Path, tmp_path: Path
) -> None:
    base = transformers.AutoModelForSequenceClassification.from_pretrained(trained / "checkpoint-500")
    checkpoint = tmp_path / "trained/checkpoint-3"
    model = adapted(base, "SEQ_CLS", checkpoint)
    with pytest.raises(
        UserError, match=r"Nothing in .*checkpoint-3 names the classes(.|\n)*model.config.save_pretrained"
    ):
        evaluate(texts, tmp_path / "trained", tmp_path)
    base.config.save_pretrained(checkpoint)
    evaluation = evaluate(texts, tmp_path / "trained", tmp_path)
    assert (evaluation.best, evaluation.checkpoints[0]["step"]) == ("checkpoint-3", 3)
    exported = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "best").eval()
    assert exported.config.id2label == dict(enumerate(LABELS))
    tokens = torch.arange(2, 18).reshape(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(exported(tokens).logits, model(tokens).logits)
        with model.disable_adapter():
            assert not torch.allclose(exported(tokens).logits, model(tokens).logits)
    assert {path.name for path in (tmp_path / "best/adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_adapters_of_a_language_model_need_nothing_beside_them(tmp_path: Path) -> None:
    dataset = text_dataset(tmp_path / "data")
    shape = {**SMALL, "vocab_size": 40, "max_position_embeddings": 64}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).save_pretrained(tmp_path / "base")
    for step in (1, 2):
        base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        model = adapted(base, "CAUSAL_LM", tmp_path / f"trained/checkpoint-{step}")
    evaluation = evaluate(dataset, tmp_path / "trained", tmp_path)
    assert [scored["name"] for scored in evaluation.checkpoints] == ["checkpoint-1", "checkpoint-2"]
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "best").eval()
    tokens = torch.arange(2, 18).reshape(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(exported(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("saved", [[], ["embed_tokens", "lm_head"]])
def test_adapters_of_a_language_model_that_was_given_more_tokens(tmp_path: Path, saved: list[str]) -> None:
    shape = {**SMALL, "vocab_size": 36, "max_position_embeddings": 64}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).save_pretrained(tmp_path / "base")
    base: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    base.resize_token_embeddings(40)
    model: Any = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", modules_to_save=saved)).eval()
    model.save_pretrained(tmp_path / "trained/checkpoint-1")
    evaluate(text_dataset(tmp_path / "data"), tmp_path / "trained", tmp_path)
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "best").eval()
    tokens = torch.arange(24, 40).reshape(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(exported(tokens).logits, model(tokens).logits)


def test_adapters_that_have_diverged_are_ranked_behind_the_others(tmp_path: Path) -> None:
    shape = {**SMALL, "vocab_size": 40, "max_position_embeddings": 64}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).save_pretrained(tmp_path / "base")
    for step in (1, 2):
        adapted(
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base"),
            "CAUSAL_LM",
            tmp_path / f"trained/checkpoint-{step}",
        )
    weights = tmp_path / "trained/checkpoint-2/adapter_model.safetensors"
    save_file({name: value * torch.nan for name, value in load_file(weights).items()}, weights)
    evaluation = evaluate(text_dataset(tmp_path / "data"), tmp_path / "trained", tmp_path)
    assert (evaluation.best, len(evaluation.checkpoints)) == ("checkpoint-1", 2)


def test_adapters_that_are_prompts_are_refused_as_such(tmp_path: Path) -> None:
    shape = {**SMALL, "vocab_size": 40, "max_position_embeddings": 64}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).save_pretrained(tmp_path / "base")
    base: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = peft.get_peft_model(base, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    model.save_pretrained(str(tmp_path / "trained/checkpoint-1"))
    with pytest.raises(UserError, match=r"of the kind PROMPT_TUNING, which has no weights(.|\n)*scoring_function"):
        evaluate(text_dataset(tmp_path / "data"), tmp_path / "trained", tmp_path)


@pytest.mark.parametrize("has_config", [False, True])
def test_adapters_for_a_model_that_is_stored_in_four_bits_are_merged_into_whole_weights(
    tmp_path: Path, has_config: bool
) -> None:
    shape = {**SMALL, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 40, "max_position_embeddings": 64}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).save_pretrained(tmp_path / "whole")
    bits = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    auto = transformers.AutoModelForCausalLM
    auto.from_pretrained(tmp_path / "whole", quantization_config=bits).save_pretrained(tmp_path / "base")
    base = peft.prepare_model_for_kbit_training(auto.from_pretrained(tmp_path / "base", dtype=torch.float32))
    model = adapted(base, "CAUSAL_LM", tmp_path / "trained/checkpoint-1")
    if has_config:
        model.config.save_pretrained(tmp_path / "trained/checkpoint-1")
    evaluate(text_dataset(tmp_path / "data"), tmp_path / "trained", tmp_path)
    exported = auto.from_pretrained(tmp_path / "best").eval()
    assert not hasattr(exported.config, "quantization_config")
    tokens = torch.arange(2, 18).reshape(2, 8)
    # With gradients: without, bitsandbytes computes with fewer bits on a CPU.
    torch.testing.assert_close(exported(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("layer", ["embed_tokens", "lm_head"])
def test_adapters_of_one_of_two_layers_that_share_a_weight_leave_the_other(tmp_path: Path, layer: str) -> None:
    shape = {**SMALL, "vocab_size": 40, "max_position_embeddings": 64, "tie_word_embeddings": True}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).save_pretrained(tmp_path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    settings = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=[layer], init_lora_weights=False)
    model: Any = peft.get_peft_model(base, settings).eval()
    model.save_pretrained(tmp_path / "trained/checkpoint-1")
    evaluate(text_dataset(tmp_path / "data"), tmp_path / "trained", tmp_path)
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "best").eval()
    assert not exported.config.tie_word_embeddings
    tokens = torch.arange(2, 18).reshape(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(exported(tokens).logits, model(tokens).logits)


def test_adapters_of_a_classifier_are_for_a_model_that_was_trained_with_other_heads(
    texts: Dataset, tmp_path: Path
) -> None:
    config = transformers.BertConfig(vocab_size=40, **SMALL, max_position_embeddings=32)
    transformers.BertForPreTraining(config).save_pretrained(tmp_path / "base")
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "without")

    def trained(base: Path, checkpoint: Path) -> Any:
        torch.manual_seed(0)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(base, id2label=dict(enumerate(LABELS)))
        found = adapted(model, "SEQ_CLS", checkpoint)
        model.config.save_pretrained(checkpoint)
        return found

    model = trained(tmp_path / "base", tmp_path / "trained/checkpoint-3")
    evaluate(texts, tmp_path / "trained", tmp_path)
    exported = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "best").eval()
    tokens = torch.arange(2, 18).reshape(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(exported(tokens).logits, model(tokens).logits)
    # The base has no pooler; the one of the training was drawn there, and is nowhere.
    trained(tmp_path / "without", tmp_path / "others/checkpoint-3")
    with pytest.raises(UserError, match=r"has drawn bert\.pooler\.dense\.bias(.|\n)*modules_to_save"):
        evaluate(texts, tmp_path / "others", tmp_path)


def test_the_model_that_adapters_are_for_is_that_of_its_revision(tmp_path: Path) -> None:
    peft.LoraConfig(base_model_name_or_path="owner/model-7b", revision="v1").save_pretrained(tmp_path)
    assert base_of_adapters(tmp_path) == "owner/model-7b@v1"
    peft.LoraConfig(base_model_name_or_path=str(tmp_path), revision="main").save_pretrained(tmp_path)
    assert base_of_adapters(tmp_path) == str(tmp_path)
    assert base_of_adapters(tmp_path / "none") == ""
    (tmp_path / "adapter_config.json").write_text("[]")
    with pytest.raises(UserError, match=r"is damaged: it is no mapping\.\n  Save the adapters again"):
        base_of_adapters(tmp_path)


def test_adapters_that_cannot_be_put_on_their_model_are_named(texts: Dataset, trained: Path, tmp_path: Path) -> None:
    base = transformers.AutoModelForSequenceClassification.from_pretrained(trained / "checkpoint-500")
    checkpoint = tmp_path / "trained/checkpoint-3"
    adapted(base, "SEQ_CLS", checkpoint)
    base.config.save_pretrained(checkpoint)
    settings, weights = checkpoint / "adapter_config.json", checkpoint / "adapter_model.safetensors"
    said, held = settings.read_text(), load_file(weights)

    def refused() -> str:
        with pytest.raises(UserError) as caught:
            evaluate(texts, tmp_path / "trained", tmp_path)
        return str(caught.value)

    settings.write_text("[]")
    assert refused().startswith(f"{settings} is damaged: it is no mapping.\n  Save the adapters again")
    settings.write_text(said.replace(f'"{trained / "checkpoint-500"}"', "null"))
    assert "cannot be put on a model: they name none" in refused()
    settings.write_text(said.replace(str(trained / "checkpoint-500"), str(tmp_path / "first")))
    adapted(type(base).from_pretrained(trained / "checkpoint-500"), "SEQ_CLS", tmp_path / "first")
    assert "first': it is itself adapters, for another model" in refused()
    settings.write_text(said.replace(str(trained / "checkpoint-500"), "/nowhere"))
    assert "checkpoint-3 cannot be put on their model '/nowhere': " in refused()
    settings.write_text(said)
    save_file({name: held[name] for name in sorted(held)[1:]}, weights)
    assert "they do not fit: base_model.model." in refused()
    save_file({name: value for name, value in held.items() if "lora_" not in name}, weights)
    assert "they do not fit: base_model.model." in refused()
    weights.write_bytes(weights.read_bytes()[:-9])
    assert "has no model whose weights are whole" in refused()
    weights.rename(checkpoint / "adapter_model.bin")
    assert "Pickled weights" in refused()


def test_an_index_that_save_pretrained_has_left_behind_is_passed_over(trained: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(trained / "checkpoint-500")
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(weight_files(tmp_path)) > 1
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert weight_files(tmp_path) == ["model.safetensors"]
    assert damaged_file(tmp_path) == ""


def test_a_champion_that_was_registered_without_an_evaluation_is_scored_on_the_same_rows(
    texts: Dataset, trained: Path, tmp_path: Path
) -> None:
    settings = UploadSettings(settings_in(tmp_path).registry, "mine")
    assert upload_model(settings, trained / "checkpoint-500", passed=True).aliases == ("challenger", "champion")
    evaluation = evaluate(texts, trained / "checkpoint-500", tmp_path)
    assert evaluation.champion is not None
    assert evaluation.champion["metrics"] == evaluation.test["metrics"]
    assert not evaluation.passed, "it is no better than itself"
    assert evaluation.shift == {**evaluation.shift, "checks": []}  # type: ignore[dict-item]


def test_a_classifier_that_has_diverged_is_no_model(texts: Dataset, trained: Path, tmp_path: Path) -> None:
    model = copied(trained, tmp_path)
    weights = load_file(model / "model.safetensors")
    weights["classifier.bias"].fill_(torch.nan)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="The training has diverged"):
        evaluate(texts, model, tmp_path)


def test_what_does_not_fit_is_refused(texts: Dataset, trained: Path, tmp_path: Path) -> None:
    def refused(model: Path) -> str:
        with pytest.raises(UserError) as caught:
            evaluate(texts, model, tmp_path)
        return str(caught.value)

    model = copied(trained, tmp_path)
    write_tokenizer(model, words=30)
    assert "has another tokenizer than the dataset" in refused(model)
    # How texts were last cut and filled up is no part of what a tokenizer does to a text.
    write_tokenizer(model)
    content = json.loads((model / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    (model / "tokenizer.json").write_text(json.dumps(content))
    assert evaluate(texts, model, tmp_path, "fits").best == "model"

    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "id2label": {"0": "x", "1": "y", "2": "z"}}))
    assert "knows none of the classes of this dataset" in refused(model)
    counted_from_1 = {"1": "bad", "2": "good", "3": "ugly"}
    (model / "config.json").write_text(json.dumps({**config, "id2label": counted_from_1}))
    assert "names 3 classes (id2label), and none has the number 0" in (said := refused(model))
    assert "id2label=dict(enumerate(labels))" in said
    (model / "config.json").write_text(json.dumps({**config, "id2label": {"0": "bad", "1": "good"}}))
    assert "does not fit its config.json: classifier.bias, classifier.weight" in refused(model)
    (model / "config.json").write_text(json.dumps(config))
    weights = load_file(model / "model.safetensors")
    weights.pop("classifier.bias")
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert "does not fit its config.json: classifier.bias" in refused(model)
    (model / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    assert "is a BertForMaskedLM, and the task takes a BertForSequenceClassification: " in refused(model)
    (model / "config.json").write_text(json.dumps({"architecture": "resnet10t", "pretrained_cfg": {}}))
    assert "is one of timm" in (said := refused(model))
    assert "scoring_function" in said
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert "has no safetensors files" in (said := refused(model))
    assert "Save the model by its save_pretrained" in said  # which has no safe_serialization since transformers 5


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (("last.ckpt", "epoch=0-step=20.ckpt"), "epoch=0-step=20.ckpt is a pickle"),
        (("runs/x/checkpoint-10/config.json", "runs/x/checkpoint-10/model.safetensors"), "runs/x/checkpoint-10 lies"),
        (("c-1/own/adapter_config.json", "c-1/own/adapter_model.safetensors"), "The model in c-1/own lies too deep"),
        (("step_10/model.safetensors", "step_10/optimizer.bin"), "step_10/model.safetensors has no config.json"),
        (("c-1/pytorch_model_fsdp_0/__0_0.distcp", "c-1/scheduler.pt"), "accelerate merge-weights"),
    ],
)
def test_of_what_cannot_be_scored_it_is_said_why(left: tuple[str, ...], said: str, tmp_path: Path) -> None:
    for name in left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert said in why_none(tmp_path)


def test_classes_that_a_script_has_named_by_numbers_are_those_of_the_dataset(tmp_path: Path) -> None:
    config = transformers.BertConfig(id2label={0: 1, 1: 0})  # transformers writes them as they are given
    config.save_pretrained(tmp_path)
    assert labels_for(tmp_path, ["0", "1"]) == ["1", "0"]


def test_a_task_without_models_of_transformers_needs_a_function(trained: Path, tmp_path: Path) -> None:
    numbers = numbers_dataset(tmp_path / "data", "regression")
    with pytest.raises(UserError, match=r"cannot be scored for the task 'regression'(.|\n)*scoring_function"):
        open_model(trained / "checkpoint-500", numbers)


def test_images_are_given_to_a_model_as_its_preprocessor_says(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    generator = np.random.default_rng(0)
    features = {"image": Feature("uint8", (3, 12, 12)), "label": Feature("int32")}
    with DatasetWriter(
        tmp_path / "data",
        task="image_classification",
        source="x",
        features=features,
        labels=["a", "b"],
        preprocessing={},
    ) as writer:
        for number in range(60):
            image = generator.integers(0, 256, (3, 12, 12), dtype=np.uint8)
            writer.add(("train", "val", "test")[number % 3], "x", {"image": image, "label": number % 2})
        writer.finish()
    mean, deviation = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    names = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}
    config = ViTConfig(image_size=12, patch_size=4, **SMALL, **names)
    torch.manual_seed(1)
    model = ViTForImageClassification(config).eval()
    with torch.no_grad():
        model.classifier.weight.mul_(20)
    model.save_pretrained(tmp_path / "model")
    preprocessor = {"do_normalize": True, "image_mean": mean, "image_std": deviation}
    (tmp_path / "model/preprocessor_config.json").write_text(json.dumps(preprocessor))
    dataset = Dataset(tmp_path / "data")
    evaluation = evaluate(dataset, tmp_path / "model", tmp_path)
    rows = dataset.split("test").take(np.arange(20))
    pixels = (rows["image"] / 255 - np.array(mean)[:, None, None]) / np.array(deviation)[:, None, None]
    with torch.no_grad():
        probabilities = model(torch.from_numpy(pixels).float()).logits.softmax(-1).numpy()
    wanted = -np.log(probabilities[np.arange(20), rows["label"]]).mean()
    assert evaluation.test["metrics"]["log_loss"]["value"] == pytest.approx(wanted, rel=1e-4)
