"""Models and sources for batch prediction, what it writes, and predictions in processes of their own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from exported_models import LENGTH, MODELS, TEXTS, _evaluation, export
from processes import Started, start_python

from gpu_pipelines.prediction.model import model_in
from gpu_pipelines.prediction.outputs import Predictions
from gpu_pipelines.prediction.predict import predict_batch
from gpu_pipelines.prediction.settings import PredictSettings
from gpu_pipelines.tasks.regression.recipe import Form, Regression
from gpu_pipelines.tasks.text_encoding import TextEncoder
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer
from gpu_pipelines.tasks.token_classification.recipe import TokenClassification

TAGS = ["O", "B-animal", "I-animal"]
PREDICT = """
import json, sys
from pathlib import Path
from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.prediction.model import model_in
from gpu_pipelines.prediction.predict import predict_batch
from gpu_pipelines.prediction.settings import PredictSettings

if __name__ == "__main__":
    settings, model, output, unfinished, rows = json.loads(sys.argv[1])
    with own_process():
        predict_batch(PredictSettings(**settings), model_in(Path(model), model), output, unfinished, rows)
"""


def exported(task: str, directory: Path) -> Path:
    """An exported model of any task, whose weights are random but always the same."""
    if task in MODELS:
        return export(task, directory)
    directory.mkdir(parents=True)
    torch.manual_seed(0)
    recipe: Any
    if task == "regression":
        recipe = Regression(Form("numbers", ["price"], [10.0], [2.0], ["size", "age"], [5.0, 50.0], [2.0, 20.0]))
        model = recipe.build_model("mlp-small")
    else:
        made = directory.with_name(f"{directory.name}-tokenizer")
        TextEncoder.train(TEXTS * 20, 0, ends=True).save(made, LENGTH)
        recipe = TokenClassification(TAGS, TextTokenizer.read(made), LENGTH)
        model = recipe.build_model("bert-micro")
    recipe.export(model.eval(), directory)
    evaluation = replace(_evaluation("causal_lm"), task=task, configuration={"settings": {"model": "m"}, "devices": {}})
    evaluation.save(directory)
    return directory


def exported_of_small_numbers(directory: Path) -> Path:
    """One of numbers that varied by thousandths where it was trained: far from them float32 overflows."""
    config = exported("regression", directory) / "config.json"
    content = json.loads(config.read_text())
    content["regression"]["inputs_deviation"] = [1e-3, 1e-3]
    config.write_text(json.dumps(content))
    return directory


def predicted(model: Path, source: Path | str, place: Path, piece_rows: int = 0, **parameters: Any) -> Predictions:
    """Predicts a source, in this process."""
    settings = PredictSettings(source=str(source), **parameters)
    return predict_batch(settings, model_in(model, str(model)), str(place), f"{place}-unfinished", piece_rows)


def start(model: Path, output: str, unfinished: str, settings: PredictSettings, folder: Path, rows: int) -> Started:
    """Begins the same in a process of its own."""
    script, log = folder / "predict.py", folder / f"{time.monotonic_ns()}.log"
    script.write_text(PREDICT)
    given = json.dumps([asdict(settings), str(model), output, unfinished, rows])
    return start_python([str(script), given], log, dict(os.environ))


def written(output: Path) -> list[dict[str, Any]]:
    """The predictions in a folder, in their order."""
    return [
        json.loads(line)
        for file in Predictions.load(output).files
        for line in (output / file.path).read_text(encoding="utf-8").splitlines()
    ]


def rejected(output: Path) -> list[dict[str, Any]]:
    """The rejected rows that are listed in a folder."""
    return [json.loads(line) for line in (output / "rejected.jsonl").read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    """JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
