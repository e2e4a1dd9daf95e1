"""A model that is not for the task, takes shorter rows, or cannot be had is refused before any data is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from command_line import command
from conftest import PIPELINE
from hub_server import hub_of, printed_beside_hub
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from gpu_pipelines.artifacts.remote_files import connected
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.model_check import longest_row, problems_of_configuration, with_file
from gpu_pipelines.tasks.pretrained import from_pretrained
from gpu_pipelines.tasks.tasks import task_named
from gpu_pipelines.training.settings import TrainingSettings

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def written(folder: Path, config: Any, weights: str = "model.safetensors") -> str:
    config.save_pretrained(folder)
    save_file({}, folder / weights)
    return str(folder)


def wrong(task: str, model: str, sequence_length: int = 0) -> str:
    return " ".join(problems_of_configuration(task_named(task), model, sequence_length))


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    t5 = written(tmp_path / "t5", transformers.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2))
    vit = written(tmp_path / "vit", transformers.ViTConfig(**SMALL))
    assert wrong("text_classification", t5) == wrong("image_classification", vit) == ""
    assert "is of the kind 't5', which transformers does not have for causal lm" in wrong("causal_lm", t5)
    assert "(AutoModelForCausalLM). Give another model, or another task." in wrong("preference", vit)
    assert "is of the kind 'vit'" in wrong("token_classification", vit)
    assert wrong("causal_lm", "gpt2-micro") == ""
    assert wrong("regression", vit) == ""  # by its columns, which the data tells


@pytest.mark.parametrize(
    ("kind", "told", "is_wrong"),
    [("Bert", {}, True), ("RemBert", {}, True), ("Bert", {"is_decoder": True}, False), ("GPTNeoX", {}, False)],
)
def test_an_encoder_is_refused_where_the_next_token_is_learned(
    tmp_path: Path, kind: str, told: dict[str, Any], is_wrong: bool
) -> None:
    """It was found out by the training, on its machine."""
    place = written(tmp_path / "model", getattr(transformers, f"{kind}Config")(**SMALL, **told, vocab_size=99))
    for task in ("causal_lm", "preference"):
        assert ("sees later tokens. Choose a decoder" in wrong(task, place)) == is_wrong


@pytest.mark.parametrize(
    ("kind", "is_tied", "is_wrong"),
    [
        ("Model", False, True),
        ("ForSequenceClassification", False, True),
        ("Model", True, False),
        ("ForCausalLM", False, False),
    ],
)
def test_weights_without_a_head_that_predicts_tokens_are_refused(
    tmp_path: Path, kind: str, is_tied: bool, is_wrong: bool
) -> None:
    config = transformers.LlamaConfig(**SMALL, vocab_size=99, tie_word_embeddings=is_tied)
    getattr(transformers, f"Llama{kind}")(config).save_pretrained(tmp_path)
    said = f"was saved as a Llama{kind}, without the head that predicts tokens. Give one that was saved as a LlamaFor"
    for task in ("causal_lm", "preference"):
        assert (said in wrong(task, str(tmp_path))) == is_wrong
    if is_wrong:
        with pytest.raises(UserError, match=r"lm_head\.weight"):
            from_pretrained(transformers.AutoModelForCausalLM, str(tmp_path), (), lambda *_: False)
    else:
        from_pretrained(transformers.AutoModelForCausalLM, str(tmp_path), (), lambda *_: False)


@pytest.mark.parametrize(
    ("kind", "longest"), [("Bert", 128), ("Roberta", 126), ("XLMRoberta", 126), ("Camembert", 126), ("MPNet", 126)]
)
def test_rows_may_be_as_long_as_a_model_takes(tmp_path: Path, kind: str, longest: int) -> None:
    config = getattr(transformers, f"{kind}Config")(**SMALL, max_position_embeddings=128, vocab_size=99, pad_token_id=1)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    assert longest_row(model) == longest
    model(input_ids=torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, longest + 1), 5))
    place = written(tmp_path / kind, config)
    assert wrong("text_classification", place, longest) == ""
    said = wrong("text_classification", place, longest + 1)
    assert f"takes at most {longest} tokens, and rows of {longest + 1} would be prepared" in said
    assert f"-p sequence_length={longest} or less" in said
    assert bool(wrong("text_classification", place)) == (longest < 128)  # which rows have where nothing is said


def test_a_model_that_cannot_tell_documents_apart_gets_one_to_a_row(tmp_path: Path) -> None:
    place = written(tmp_path / "bloom", transformers.BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=99))
    tried = (("causal_lm", True, True), ("causal_lm", False, False), ("preference", True, False))
    for task, packing, is_wrong in tried:
        said = " ".join(problems_of_configuration(task_named(task), place, 0, packing=packing))
        assert ("would cross the documents of a row. Give -p packing=false" in said) == is_wrong, said
    done = command("run", PIPELINE, "-p", "task=causal_lm", "-p", f"model={place}", "--dry-run", cwd=tmp_path)
    assert (done.status, "-p packing=false" in done.err) == (2, True), done.err


def test_a_model_that_reads_characters_is_refused(tmp_path: Path) -> None:
    canine = written(tmp_path / "canine", transformers.CanineConfig(**SMALL, num_hash_buckets=16))
    perceiver = written(tmp_path / "perceiver", transformers.PerceiverConfig(num_latents=4, d_latents=16, d_model=16))
    for task, model in (("text_classification", perceiver), ("token_classification", canine)):
        assert "reads characters or bytes, as CANINE does" in wrong(task, model, 32)


def test_rows_may_be_of_any_length_for_a_model_that_says_so(tmp_path: Path) -> None:
    xlnet = transformers.XLNetConfig(vocab_size=99, d_model=16, d_inner=32, n_layer=1, n_head=2)
    assert wrong("text_classification", written(tmp_path / "xlnet", xlnet)) == ""


def test_a_model_knows_the_tokens_that_texts_are_prepared_with(tmp_path: Path) -> None:
    task, model = task_named("causal_lm"), str(tmp_path / "gpt2")
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=4, bos_token_id=0, eos_token_id=0)
    written(tmp_path / "gpt2", config)
    for count in (4, 5):
        words = {f"w{number}": number for number in range(count)}
        Tokenizer(WordLevel(words, unk_token="w0")).save(str(tmp_path / "gpt2" / "tokenizer.json"))
        said = " ".join(problems_of_configuration(task, model, 0, model))
        assert (f"The model {model} knows 4 tokens, and the tokenizer {model} has 5." in said) == (count == 5), said
    given = {"task": "causal_lm", "model": model, "source": "sample:documentation"}
    done = command("run", PIPELINE, *(part for name in given for part in ("-p", f"{name}={given[name]}")), cwd=tmp_path)
    assert done.status == 2
    assert "resize_token_embeddings(len(tokenizer))" in done.err
    assert wrong("causal_lm", model) == "", "no tokenizer is known"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a valid JSON file"),
        ("[]", "Unrecognized model"),
        ('{"model_type": "of tomorrow"}', "model type `of tomorrow`"),
        ('{"model_type": "of tomorrow", "auto_map": {"AutoConfig": "their.Config"}}', "code beside it"),
        ('{"architecture": "resnet18", "num_classes": 1000, "pretrained_cfg": {"tag": "a1_in1k"}}', "is a timm model"),
        ('{"model_type": "timm_wrapper", "architecture": "resnet18"}', "is a timm model"),
        ('{"model_type": "llama", "hidden_size": "many"}', "'hidden_size' expected int, got str"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "their.py").write_text("raise SystemExit('run')")
    assert message in wrong("causal_lm", str(tmp_path))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    place = written(tmp_path / "bert", transformers.BertConfig(**SMALL), "pytorch_model.bin")
    assert "are pickled" in wrong("text_classification", place)
    save_file({}, tmp_path / "bert/model.safetensors")
    assert wrong("text_classification", place) == ""


def test_weights_that_are_not_there_whole_are_refused(bucket: str, tmp_path: Path) -> None:
    small = transformers.BertConfig(**SMALL, vocab_size=99)
    place = tmp_path / "bert"
    transformers.BertForSequenceClassification(small).save_pretrained(place, max_shard_size="5KB")
    assert wrong("text_classification", str(place)) == ""
    lost = sorted(place.glob("model-*"))[1]
    lost.unlink()
    storage, path = connected(f"{bucket}/models/bert")
    storage.put(f"{place}/", path, recursive=True)
    for model in (str(place), f"{bucket}/models/bert"):
        said = wrong("text_classification", model)
        assert f"{model} lacks {lost.name}; it has" in said
        with pytest.raises(OSError, match=lost.stem):
            transformers.AutoModelForSequenceClassification.from_pretrained(place)
    other = written(tmp_path / "other", small, "weights.safetensors")
    assert "lacks model.safetensors; it has weights.safetensors" in wrong("text_classification", other)


def test_a_pointer_of_git_lfs_and_a_file_that_is_cut_off_are_no_weights(tmp_path: Path) -> None:
    place = Path(written(tmp_path / "bert", transformers.BertConfig(**SMALL)))
    (place / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    said = wrong("text_classification", str(place))
    assert f"The weights {place}/model.safetensors cannot be read: " in said
    assert "git lfs pull" in said
    save_file({"a": np.zeros(9)}, place / "model.safetensors")
    whole = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(whole[:-9])
    assert "Copy it again." in wrong("text_classification", str(place))


def test_names_that_the_model_lacks_are_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    place = written(tmp_path / "llama", transformers.LlamaConfig(**SMALL))
    settings = TrainingSettings(model=place, lora_rank=4, lora_targets="q_proj,c_attn")
    (said,) = settings.problems_here("causal_lm", 0)
    assert "'c_attn', and no linear layer of LlamaForCausalLM" in said
    assert replace(settings, lora_targets="q_proj,up_proj").problems_here("causal_lm", 0) == []
    freezing = TrainingSettings(model=place, freeze="embed_tokens.*, layers.0.*")
    assert freezing.problems_here("causal_lm", 0) == []
    for patterns, told in (("embeddings.*", "'embeddings.*', but no weight"), ("*", "none would be trained")):
        (said,) = replace(freezing, freeze=patterns).problems_here("causal_lm", 0)
        assert told in said


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        ("resnet", {"lora_rank": 4}, "ForImageClassification has no linear layers that adapters could be added to."),
        ("resnet", {"attention": "sdpa"}, "attention is sdpa"),
        ("resnet", {"attention": "flash_attention_2"}, "which ResNetForImageClassification does not have."),
        ("vit", {"attention": "sdpa"}, ""),
        ("vit", {"lora_rank": 4, "quantize_base": "nf4"}, "has no frozen linear layer whose width is a multiple of 64"),
        ("vit", {"freeze": "vit.*", "layer_decay": 0.5}, ""),
        ("resnet", {"layer_decay": 0.5}, ""),
        ("albert", {"layer_decay": 0.5}, "AlbertForSequenceClassification has no repeated layers with weights"),
    ],
)
def test_layers_that_the_model_lacks_are_told_before_anything_is_prepared(
    tmp_path: Path, kind: str, given: dict[str, Any], told: str
) -> None:
    shape = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]} if kind == "resnet" else SMALL
    place = written(tmp_path / kind, transformers.AutoConfig.for_model(kind, **shape))
    task = "text_classification" if kind == "albert" else "image_classification"
    said = TrainingSettings(model=place, **given).problems_here(task, 0)
    assert told in " ".join(said)
    assert bool(said) == bool(told), said


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "awq", "fp8"])
def test_quantized_weights_are_refused(tmp_path: Path, method: str) -> None:
    held = {"quant_method": method, "load_in_4bit": True, "bits": 4}
    place = written(tmp_path / "llama", transformers.LlamaConfig(**SMALL, quantization_config=held))
    said = wrong("causal_lm", place)
    assert f"are quantized ({method})" in said
    assert "-p quantize_base=nf4" in said
    (tmp_path / "llama/model.safetensors").unlink()  # from scratch
    assert wrong("causal_lm", place) == ""


def test_a_model_in_a_bucket_is_looked_at_there(bucket: str, tmp_path: Path) -> None:
    local = written(tmp_path / "vit", transformers.ViTConfig(**SMALL))
    storage, path = connected(f"{bucket}/models/vit")
    for name in ("config.json", "model.safetensors"):
        storage.put(f"{local}/{name}", f"{path}/{name}")
    assert "is of the kind 'vit'" in wrong("text_classification", f"{bucket}/models/vit")
    assert wrong("image_classification", f"{bucket}/models/vit") == ""


def test_the_pipeline_refuses_it_before_anything_runs(tmp_path: Path) -> None:
    written(tmp_path / "vit", transformers.ViTConfig(**SMALL))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": f"row {n}"}) + "\n" for n in range(50)))
    given = ["-p", "task=causal_lm", "-p", "source=texts.jsonl", "-p", "model=./vit"]
    done = command("run", PIPELINE, *given, cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert "The model ./vit is of the kind 'vit'" in done.err
    assert not (tmp_path / "runs").exists()


def test_the_size_of_a_model_of_the_hub_is_read_without_its_weights_and_without_torch(tmp_path: Path) -> None:
    written(tmp_path / "owner/bert/v1", transformers.BertConfig(**SMALL))
    (tmp_path / "owner/bert/v1/model.safetensors").unlink()
    code = (
        "import sys\n"
        "from gpu_pipelines import workload_of_model\n"
        "print(workload_of_model('owner/bert@v1', samples=1e6).family)\n"
        "print(*({'torch', 'transformers'} & set(sys.modules)))\n"
        "workload_of_model('owner/gone', samples=1e6)\n"
    )
    with hub_of(tmp_path) as address:
        environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
        )
    assert done.stdout.splitlines() == ["bert", ""], done.stderr
    assert "UserError: The model 'owner/gone', which is no directory here, cannot be read from the hub" in done.stderr


def test_a_proxy_that_refuses_the_hub_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class TransportError(Exception):
        """Not of Python's own kinds, as that of httpx."""

    def refused(*_: object, **__: object) -> None:
        raise TransportError("403 Forbidden")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refused)
    with pytest.raises(UserError, match=r"cannot be read from the hub: 403 Forbidden\n  Check the network"):
        with_file("owner/bert", "config.json", tmp_path)


def test_a_model_of_the_hub_is_looked_at_there(tmp_path: Path) -> None:
    hub, held = tmp_path / "owner", {"quant_method": "bitsandbytes", "load_in_4bit": True}
    written(hub / "bert/main", transformers.BertConfig(**SMALL))
    written(hub / "bert/v1", transformers.ViTConfig(**SMALL))
    written(hub / "bert-4bit/main", transformers.BertConfig(**SMALL, quantization_config=held))
    written(hub / "pickled/main", transformers.ViTConfig(**SMALL), "pytorch_model.bin")
    (hub / "pickled/main/onnx").mkdir()
    save_file({}, hub / "pickled/main/onnx/model.safetensors")
    written(hub / "half/main", transformers.ViTConfig(**SMALL), "model-00001-of-00002.safetensors")
    named = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (hub / "half/main/model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    (hub / "adapters/main").mkdir(parents=True)
    (hub / "adapters/main/adapter_config.json").write_text("{}")
    models = "bert gated gone bert@v2 adapters pickled half bert@v1 bert-4bit"
    code = (
        "from gpu_pipelines.tasks.model_check import problems_of_configuration as wrong\n"
        "from gpu_pipelines.tasks.tasks import task_named\n"
        f"for model in {models.split()}: print(*wrong(task_named('image_classification'), 'owner/' + model, 0))\n"
        "print(*wrong(task_named('text_classification'), 'owner/bert-4bit', 0))\n"
    )
    kind, gated, gone, other, adapters, pickled, half, older, _, quantized = printed_beside_hub(
        tmp_path, code
    ).splitlines()
    assert "owner/bert is of the kind 'bert'" in kind
    assert gated.endswith("Agree to its owner's terms on the model's page, and set HF_TOKEN where the steps run.")
    assert gone.endswith("Check its name; for a private one set HF_TOKEN where the steps run.")
    assert other.endswith("Check the revision behind the @: a branch, a tag, or a commit.")
    assert adapters.endswith("Give a whole model in Hugging Face layout; adapters alone are none.")
    assert pickled.startswith("The weights of owner/pickled are pickled")
    assert half.startswith("The model owner/half lacks model-00002-of-00002.safetensors; it has model-00001")
    assert older == ""
    assert "The weights of owner/bert-4bit are quantized (bitsandbytes)" in quantized
