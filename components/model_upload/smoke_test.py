"""The last check before a version counts: the server is started on what was uploaded, and predicts as evaluated."""

from __future__ import annotations

import time
from pathlib import Path

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.examples import EXAMPLES, Examples
from gpu_pipelines.errors import UserError
from gpu_pipelines.recipes.tasks import TASKS
from gpu_pipelines.serving.comparison import TOLERANCE, differences
from gpu_pipelines.serving.started import started_server

_MOST_SHOWN = 3


class SmokeTest:
    """Compares what a server predicts with what was evaluated.

    Args:
        model: the exported model, as the evaluation left it.
        other_server: what serves it in place of this project's server, such as "the container …"; empty if none does.
    """

    def __init__(self, model: Path, other_server: str = "") -> None:
        self._model = model
        self._other_server = other_server

    def __call__(self, place: str) -> None:
        """Tests the files at a place, where the model was uploaded to; prints what was done.

        Raises:
            UserError: a prediction is another than the evaluated one, or the server does not start.
        """
        if why := self._why_not():
            print(f"no smoke test: {why}", flush=True)
            return
        examples, started = Examples.load(self._model), time.monotonic()
        try:
            with started_server(place) as server:
                found = differences(examples, server.predict(examples.instances))
        except UserError as error:
            raise UserError(f"The smoke test of the uploaded model failed. {error.problem}", error.remedy) from None
        if found:
            more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
            raise UserError(
                "The smoke test of the uploaded model failed: served predictions are not the evaluated ones. "
                f"{'; '.join(found[:_MOST_SHOWN])}{more}.",
                f"Off by more than {TOLERANCE:g} they are another model's. Compare preprocessor and tokenizer of the "
                "exported model with those of the dataset.",
            )
        took = time.monotonic() - started
        print(f"smoke test: {len(examples.instances)} examples served as evaluated, in {took:.1f} s", flush=True)

    def _why_not(self) -> str:
        evaluation = Evaluation.load(self._model)
        if evaluation.scoring_function:
            return f"{evaluation.scoring_function} scores this model, and no server of this project serves it"
        if recipe := evaluation.configuration["settings"].get("recipe"):
            return f"the recipe {recipe} trained this model, and no server of this project serves it"
        if not evaluation.configuration["settings"] and evaluation.task == "image_classification":
            return "another program trained this model, and may prepare images in another way than the server"
        if evaluation.task not in TASKS:
            return f"no server of this project serves the task {evaluation.task}"
        if self._other_server:
            return f"{self._other_server} serves this model"
        return "" if (self._model / EXAMPLES).is_file() else f"the model has no {EXAMPLES}"
