"""Exported models of each task that have not been trained, with the examples that an evaluation would leave."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.artifacts.exported_model import write_model_card
from gpu_pipelines.artifacts.image_features import ImageGeometry
from gpu_pipelines.tasks.batch_encoding import BatchEncoder
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification
from gpu_pipelines.tasks.text_classification.recipe import TextClassification
from gpu_pipelines.tasks.text_encoding import TextEncoder
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

LABELS = ["ant", "bee", "cat"]
LENGTH = 32
TEXTS = ["the bee sees the cat", "a cat", "an ant and a bee and a cat and an ant"]
MODELS = {"image_classification": "vit-micro", "text_classification": "bert-micro", "causal_lm": "gpt2-micro"}


def export(task: str, directory: Path, seed: int = 0, max_shard_size: str = "50GB") -> Path:
    """An exported model of a task, whose weights are random but always the same for a seed."""
    directory.mkdir(parents=True)
    torch.manual_seed(seed)
    recipe = _recipe(task, directory)
    model = recipe.build_model(MODELS[task]).eval()
    recipe.max_shard_size = max_shard_size
    recipe.export(model, directory)
    instances, rows = _images() if task == "image_classification" else _texts(task, directory)
    with torch.inference_mode():
        found = [recipe.predict(model, recipe.batch(row, torch.device("cpu")))[0] for row in rows]
    Examples(task, instances, [_prediction(task, row) for row in found]).save(directory)
    evaluation = _evaluation(task)
    evaluation.save(directory)
    write_model_card(directory, evaluation, "sample:none")
    return directory


def png(pixels: np.ndarray) -> str:
    """The base64 of a PNG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _recipe(task: str, directory: Path) -> Any:
    if task == "image_classification":
        geometry = ImageGeometry(16, "RGB")
        return ImageClassification(LABELS, geometry.preprocessing(), geometry.shape)
    classifies = task == "text_classification"
    made = directory.with_name(f"{directory.name}-tokenizer")
    TextEncoder.train(TEXTS * 20, 0, ends=classifies).save(made, LENGTH)
    tokenizer = TextTokenizer.read(made)
    return TextClassification(LABELS, tokenizer, LENGTH) if classifies else CausalLanguageModel(tokenizer, LENGTH)


def _images() -> tuple[list[dict[str, Any]], list[dict[str, np.ndarray]]]:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    label = np.zeros(1, dtype=np.int32)
    rows = [{"image": image.transpose(2, 0, 1)[None].copy(), "label": label} for image in images]
    return [{"b64": png(image)} for image in images], rows


def _texts(task: str, directory: Path) -> tuple[list[dict[str, Any]], list[dict[str, np.ndarray]]]:
    encoder, rows = BatchEncoder(directory), []
    for text in TEXTS:
        if task == "text_classification":
            tokens = encoder.classified([text], LENGTH)[0]
            padded = np.pad(tokens, (0, LENGTH - len(tokens)))[None]
            one = np.array([len(tokens)], dtype=np.int32)
            rows.append({"input_ids": padded, "length": one, "label": one * 0})
        else:
            encoded = encoder.completions([(text, "")])[0]
            tokens = encoded.tokens[encoded.targets == 0][None]
            positions = np.arange(tokens.shape[1], dtype=np.int32)[None]
            rows.append({"input_ids": tokens, "loss_mask": np.ones_like(tokens), "position_ids": positions})
    return [{"text" if task == "text_classification" else "prompt": text} for text in TEXTS], rows


def _prediction(task: str, row: torch.Tensor) -> dict[str, Any]:
    if task == "causal_lm":
        return {"loss": float(row[0] / row[1]), "tokens": int(row[1])}
    scores = dict(zip(LABELS, row.tolist(), strict=True))
    return {"label": LABELS[int(row.argmax())], "scores": scores}


def _evaluation(task: str) -> Evaluation:
    metric = {"value": 0.5, "low": 0.4, "high": 0.6}
    return Evaluation(
        model_name="animals",
        task=task,
        labels=[] if task == "causal_lm" else LABELS,
        dataset_fingerprint="0" * 64,
        configuration={"settings": {"model": MODELS[task]}, "devices": {}},
        select_by="loss",
        checkpoints=[{"name": "step-00000001", "step": 1, "epoch": 1.0, "val": {"loss": metric}}],
        best="step-00000001",
        test={"rows": 3, "metrics": {"loss": metric}},
        champion=None,
        gates=[],
        passed=True,
        mistakes=[],
    )
