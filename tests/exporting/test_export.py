"""Models of each task are exported, and what was exported is what was evaluated; or nothing is left of it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SmallDatasets
from exported import evaluated, export, numbers_dataset

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.documents import sha256_of_file
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.settings import Ranking
from gpu_pipelines.exporting import gguf_model, onnx_model
from gpu_pipelines.exporting.comparison import lost
from gpu_pipelines.exporting.export import EXPORT, require_free
from gpu_pipelines.exporting.settings import ExportSettings
from gpu_pipelines.tasks.building import load_recipe
from gpu_pipelines.tasks.model_places import ADAPTER

#: What logits may be off, as a share of the largest.
AGREES = {"f32": 1e-5, "f16": 1e-3, "q8_0": 0.05}


def require_agreement(done: Any) -> None:
    content = done.content
    assert content["logits"]["share"] <= AGREES[content["dtype"]]
    assert content["lost"] <= content["margin"] == 0.01
    if content["dtype"] == "f32":
        assert content["after"] == pytest.approx(content["before"], rel=1e-3, abs=1e-4)


def run_onnx(folder: Path, **inputs: Any) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / onnx_model.FILE), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def test_numbers_as_onnx_for_any_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = numbers_dataset(tmp_path)
    model = evaluated(dataset, tmp_path, "mlp-small")
    # A folder that cannot be replaced, as a mount point cannot, with what a killed export has left.
    (tmp_path / "out" / f".export-{socket.gethostname()}-1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "out")
    done = export(model, dataset, Path(), format="onnx")
    require_agreement(done)
    assert done.content["inputs"] == {"inputs": {"dtype": "float32", "shape": ["batch", 2]}}
    assert (done.content["metric"], done.content["rows"]) == ("rmse", Dataset(dataset).manifest.rows("test"))
    assert done.content["files"]["model.onnx"] == sha256_of_file(tmp_path / "out/model.onnx")
    for rows in (1, 7):
        assert run_onnx(tmp_path / "out", inputs=np.zeros((rows, 2), np.float32)).shape == (rows, 2)


@pytest.mark.slow
def test_a_model_of_pairs_of_texts_as_onnx_takes_the_types_of_tokens(tmp_path: Path) -> None:
    rows = [{"text": f"one {n}", "text_pair": f"other {n % 7}", "label": "ab"[n % 2]} for n in range(80)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"source": str(tmp_path / "pairs.jsonl"), "text_pair_column": "text_pair", "sequence_length": 16}
    prepare_data(PrepareSettings(task="text_classification", **given), tmp_path / "dataset")
    model = evaluated(tmp_path / "dataset", tmp_path, "bert-micro")
    done = export(model, tmp_path / "dataset", tmp_path / "out", format="onnx")
    require_agreement(done)
    assert done.content["inputs"].keys() == {"input_ids", "attention_mask", "token_type_ids"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "dtype"),
    [
        *(
            (task, dtype)
            for task in ("texts", "images", "lm", "tokens", "regression of texts")
            for dtype in ("f32", "f16")
        ),
        ("mixture", "f32"),  # in f16, a token may go to another expert
    ],
)
def test_each_task_as_onnx(datasets: SmallDatasets, tmp_path: Path, task: str, dtype: str) -> None:
    names = {"texts": "bert-micro", "images": "vit-micro", "lm": "llama-micro", "mixture": "mixtral-micro"}
    if task == "tokens":
        dataset = tmp_path / "dataset"
        prepare_data(
            PrepareSettings(
                task="token_classification", source="sample:manual", sequence_length=32, vocabulary_size=600
            ),
            dataset,
        )
    elif task == "regression of texts":
        dataset = _lengths(tmp_path)
    else:
        dataset = datasets["lm" if task == "mixture" else task]
    model = evaluated(dataset, tmp_path, names.get(task, "bert-micro"))
    done = export(model, dataset, tmp_path / "out", format="onnx", dtype=dtype)
    require_agreement(done)
    assert done.content["evaluated_by"].startswith("onnxruntime")
    files = {"preprocessor_config.json"} if task == "images" else {"tokenizer.json", "tokenizer_config.json"}
    assert done.content["files"].keys() >= {"model.onnx", "config.json", *files}


def _lengths(folder: Path) -> Path:
    """Texts, and how long they are."""
    texts = [" ".join(["word"] * (1 + number % 9)) + f" {number}" for number in range(120)]
    lines = [json.dumps({"text": text, "label": len(text)}) for text in texts]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    settings = PrepareSettings(task="regression", source=str(folder / "texts.jsonl"), text_column="text")
    prepare_data(settings, folder / "dataset")
    return folder / "dataset"


@pytest.mark.slow
def test_a_language_model_as_gguf(datasets: SmallDatasets, tmp_path: Path) -> None:
    model = evaluated(datasets["lm"], tmp_path, "llama-micro")
    for dtype in ("f16", "f32", "q8_0"):
        done = export(model, datasets["lm"], tmp_path / dtype, format="gguf", dtype=dtype)
        require_agreement(done)
        assert (done.content["metric"], list(done.content["files"])) == ("loss", ["model.gguf"])
    with pytest.raises(UserError, match="is not empty"):
        export(model, datasets["lm"], tmp_path / "f16", format="gguf")


def test_a_model_of_preferences_is_a_language_model(tmp_path: Path) -> None:
    lines = [{"prompt": f"{n} is", "chosen": f" {n}, yes", "rejected": f" {n + 1}"} for n in range(100, 160)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = PrepareSettings(task="preference", source=str(tmp_path / "pairs.jsonl"), sequence_length=32)
    prepare_data(settings, tmp_path / "dataset")
    model = evaluated(tmp_path / "dataset", tmp_path, "llama-micro")
    done = export(model, tmp_path / "dataset", tmp_path / "out", format="gguf", dtype="f32")
    require_agreement(done)
    assert (done.content["metric"], done.content["without_reference"]) == ("accuracy", True)


def test_what_would_lose_too_much_is_not_there(
    datasets: SmallDatasets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = evaluated(datasets["lm"], tmp_path, "llama-micro")
    out, real = tmp_path / "out", gguf_model.weights

    def worse(given: Any) -> Any:
        for name, weight in real(given):
            yield name, torch.roll(weight, 1, 0) if name == "token_embd.weight" else weight

    monkeypatch.setattr(gguf_model, "weights", worse)
    with pytest.raises(UserError, match=r"would lose [0-9.]+% of its loss, and the margin is 0\.00%") as refused:
        export(model, datasets["lm"], out, format="gguf", margin=0.0)
    assert "before" in refused.value.problem
    with pytest.raises(UserError, match="its logits on 32 test rows would be off by"):
        export(model, datasets["lm"], out, format="gguf", dtype="f32")
    assert {path.name for path in tmp_path.iterdir()} == {"best", "checkpoints"}


@pytest.mark.slow
def test_the_evaluated_model_has_its_adapters_beside_it(datasets: SmallDatasets, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    recipe = load_recipe("", "causal_lm").for_dataset(Dataset(datasets["lm"]))
    recipe.export(recipe.build_model("llama-micro"), tmp_path / "base")
    model = evaluated(datasets["lm"], tmp_path, str(tmp_path / "base"), lora_rank=4, learning_rate=0.05)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    tokens = torch.arange(3, 23)[None]
    with torch.no_grad():
        untouched = base(tokens).logits
        wanted = AutoModelForCausalLM.from_pretrained(model)(tokens).logits
        found = PeftModel.from_pretrained(base, str(model / ADAPTER)).eval()(tokens).logits
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert (untouched - wanted).abs().max() > 1e-3
    require_agreement(export(model, datasets["lm"], tmp_path / "out", format="gguf", dtype="f32"))


def test_a_model_of_another_task_is_no_gguf(tmp_path: Path) -> None:
    dataset = numbers_dataset(tmp_path)
    with pytest.raises(UserError, match="GGUF is for language models; mine version 1 is for regression"):
        export(tmp_path / "no model", dataset, tmp_path / "out", format="gguf")


def test_settings_that_cannot_be_are_named_together() -> None:
    found = ExportSettings("gguf", "", "f8", 1.5, 3).problems()
    assert [problem.split()[0] for problem in found] == ["dtype", "margin", "opset", "to"]
    assert ExportSettings("tflite", "out").problems() == ["format is 'tflite'; give onnx or gguf."]
    assert ExportSettings("onnx", "out", "f16").problems() == []


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    require_free(str(tmp_path))
    (tmp_path / EXPORT).touch()
    (tmp_path / "link").symlink_to("nowhere")
    for taken in (tmp_path, tmp_path / EXPORT, tmp_path / "link"):
        with pytest.raises(UserError, match="is not empty"):
            require_free(str(taken))
    with pytest.raises(UserError, match="cannot be read: File name too long"):
        require_free(str(tmp_path / ("a" * 300)))


def test_less_of_a_loss_and_more_of_an_accuracy_is_better() -> None:
    assert lost({"loss": 2.0}, {"loss": 2.1}, Ranking("loss", False)) == pytest.approx(0.05)
    assert lost({"accuracy": 0.8}, {"accuracy": 0.72}, Ranking("accuracy", True)) == pytest.approx(0.1)
    assert lost({"accuracy": 0.8}, {"accuracy": 0.9}, Ranking("accuracy", True)) < 0
    assert lost({"loss": 0.0}, {"loss": 1e-6}, Ranking("loss", False)) == pytest.approx(1e-3)
