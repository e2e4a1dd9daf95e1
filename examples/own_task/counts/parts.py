"""counts/parts.py: the parts of the task, each imported by the step that needs it."""

import json

import numpy as np
import torch
from safetensors.torch import load_file, save_model
from torch import nn

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.data.row_preparation import RowPreparation
from gpu_pipelines.data.sources.row_streams import Problem
from gpu_pipelines.evaluation.scores import SummedScores
from gpu_pipelines.evaluation.scoring import Scoring
from gpu_pipelines.serving.predictor import Predictor
from gpu_pipelines.serving.preparation import Pending
from gpu_pipelines.serving.request_body import WrongRequest, text_of
from gpu_pipelines.tasks.recipe import Recipe


class Table(RowPreparation):
    def features(self):
        return {"inputs": Feature("float32", (2,)), "target": Feature("float32")}

    def values(self, row):
        try:
            count = float(row[self.settings.label_column])
            return {"inputs": [float(row["x"]), float(row["y"])], "target": count}
        except (TypeError, ValueError) as error:
            return Problem("no number", str(error))


class Poisson(Recipe):
    @classmethod
    def for_dataset(cls, dataset):
        return cls()

    def build_model(self, name):
        return nn.Linear(2, 1)

    def batch(self, columns, device):
        return {name: torch.from_numpy(columns[name]).to(device) for name in ("inputs", "target")}

    def loss(self, model, batch):
        return nn.functional.poisson_nll_loss(model(batch["inputs"])[:, 0].float(), batch["target"])

    def predict(self, model, batch):
        return model(batch["inputs"]).float().exp()

    def export(self, model, directory):
        save_model(model, str(directory / "model.safetensors"))
        (directory / "config.json").write_text(json.dumps({"model_type": "poisson"}))


class DevianceScores(SummedScores):
    def of_totals(self, totals):
        return {"deviance": totals[:, 0] / totals[:, 2], "mean_error": totals[:, 1] / totals[:, 2]}


class Deviance(Scoring):
    def width(self, labels):
        return 1

    def shape(self, rows, labels):
        return f"expected counts of shape ({rows}, 1)"

    def scores(self, predicted, split):
        rows = self.dataset.split(split)
        target = np.concatenate([columns["target"] for columns in rows.columns(0, len(rows))]).astype(float)
        expected = np.maximum(predicted[:, 0].astype(float), 1e-9)
        deviance = 2 * (target * np.log(np.maximum(target, 1e-9) / expected) - target + expected)
        return DevianceScores(np.column_stack([deviance, abs(target - expected), np.ones(len(target))]))

    def examples(self, rows):
        instances = [{"numbers": f"{x:.9g} {y:.9g}"} for x, y in rows["inputs"]]
        return instances, [{name: values[[n]] for name, values in rows.items()} for n in range(len(instances))]

    def prediction(self, predicted, labels, instance):
        return {"expected": float(predicted[0])}


class Expected(Predictor):
    field = "numbers"
    example = {"numbers": "0.5 0.5"}
    answer = {"type": "object", "properties": {"expected": {"type": "number"}}, "required": ["expected"]}

    def __init__(self, directory, settings, device):
        self.device, self.recipe = device, Poisson()
        self.model = nn.Linear(2, 1)
        self.model.load_state_dict(load_file(directory / "model.safetensors"))
        self.model.to(device).eval()

    def read(self, instance, parameters):
        text = text_of(instance, "numbers", 100)
        try:
            x, y = map(float, text.split())
        except ValueError:
            raise WrongRequest("numbers are not two numbers with a blank between them.") from None
        return Pending(1, lambda: [x, y])

    def predict(self, rows):
        numbers = np.array(rows, dtype=np.float32)
        batch = self.recipe.batch({"inputs": numbers, "target": numbers[:, 0]}, self.device)
        with torch.inference_mode():
            found = self.recipe.predict(self.model, batch)[:, 0].tolist()
        return [{"expected": each} for each in found]
