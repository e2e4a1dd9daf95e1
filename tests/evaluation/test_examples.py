"""The examples of an exported model are predicted again by whoever opens it with transformers alone."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluations import (
    LENGTH,
    classes_dataset,
    numbers_dataset,
    settings_in,
    text_dataset,
    train_checkpoint,
    train_classes,
    write_regressions,
)
from PIL import Image

from gpu_pipelines.artifacts.dataset import Dataset, Feature
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.artifacts.examples import EXAMPLES, Examples
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints


def test_texts_are_those_that_are_encoded_again_as_they_were(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    dataset = classes_dataset(tmp_path / "data")
    train_classes(tmp_path / "checkpoints", dataset)
    evaluate_checkpoints(settings_in(tmp_path), dataset.directory, tmp_path / "checkpoints", tmp_path / "best")
    examples = Examples.load(tmp_path / "best")
    assert (examples.task, len(examples.instances)) == ("text_classification", 4)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "best").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "best")
    for instance, prediction in zip(examples.instances, examples.predictions, strict=True):
        with torch.no_grad():
            tokens = tokenizer(instance["text"], return_tensors="pt")
            found = model(tokens["input_ids"], tokens["attention_mask"]).logits.softmax(-1)[0]
        assert list(prediction["scores"].values()) == pytest.approx(found.tolist(), abs=1e-5)
        assert prediction["label"] == max(prediction["scores"], key=prediction["scores"].__getitem__)


def test_a_prompt_has_the_loss_of_its_tokens(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dataset = text_dataset(tmp_path / "data")
    train_checkpoint(tmp_path / "checkpoints", dataset, "causal_lm", "gpt2-micro")
    evaluate_checkpoints(settings_in(tmp_path), dataset.directory, tmp_path / "checkpoints", tmp_path / "best")
    examples = Examples.load(tmp_path / "best")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "best").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "best")
    assert len(examples.instances) == 4
    for instance, prediction in zip(examples.instances, examples.predictions, strict=True):
        tokens = tokenizer(instance["prompt"], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            loss = model(tokens, labels=tokens).loss.item()
        assert prediction == {"loss": pytest.approx(loss, rel=1e-4), "tokens": tokens.shape[1] - 1}
        assert tokens.shape[1] <= LENGTH


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_rows_of_test_without_loss(tmp_path: Path, channels: int) -> None:
    from transformers import AutoModelForImageClassification

    generator = np.random.default_rng(0)
    features = {"image": Feature("uint8", (channels, 8, 8)), "label": Feature("int32")}
    preprocessing = {"image_mean": [0.5] * channels, "size": {"height": 8, "width": 8}}
    options = {"task": "image_classification", "source": "noise", "labels": ["a", "b"]}
    with DatasetWriter(tmp_path / "data", features=features, preprocessing=preprocessing, **options) as writer:
        for number in range(30):
            image = generator.integers(0, 256, (channels, 8, 8), dtype=np.uint8)
            split = ("train", "val", "test")[number % 3]
            writer.add(split, f"noise:{number}", {"image": image, "label": number % 2})
        writer.finish()
    dataset = Dataset(tmp_path / "data")
    train_checkpoint(tmp_path / "checkpoints", dataset, "image_classification", "vit-micro")
    evaluate_checkpoints(settings_in(tmp_path), dataset.directory, tmp_path / "checkpoints", tmp_path / "best")
    examples = Examples.load(tmp_path / "best")
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "best").eval()
    rows = dataset.split("test").take(np.arange(10))["image"]
    assert len(examples.instances) == 4
    for instance, prediction in zip(examples.instances, examples.predictions, strict=True):
        with Image.open(io.BytesIO(base64.b64decode(instance["b64"]))) as image:
            pixels = np.asarray(image).reshape(8, 8, channels).transpose(2, 0, 1)
        assert any(np.array_equal(pixels, row) for row in rows)
        with torch.no_grad():
            as_coloured = np.broadcast_to(pixels, (3, 8, 8))  # as transformers gives images to a model
            found = model(torch.from_numpy(as_coloured / 127.5 - 1).float()[None]).logits.softmax(-1)[0]
        assert list(prediction["scores"].values()) == pytest.approx(found.tolist(), abs=1e-5)


def test_a_task_of_ones_own_has_no_examples(tmp_path: Path) -> None:
    numbers = numbers_dataset(tmp_path / "data")
    write_regressions(tmp_path / "checkpoints", numbers, [0.1])
    evaluate_checkpoints(settings_in(tmp_path), numbers.directory, tmp_path / "checkpoints", tmp_path / "best")
    assert not (tmp_path / "best" / EXAMPLES).exists()


def test_examples_without_their_predictions_are_refused(tmp_path: Path) -> None:
    Examples("causal_lm", [{"prompt": "a"}], []).save(tmp_path)
    with pytest.raises(UserError, match="1 instances and 0 predictions"):
        Examples.load(tmp_path)
