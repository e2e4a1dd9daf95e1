"""The last check before a version counts: a server on the uploaded files must predict as evaluated."""

from __future__ import annotations

import time
from pathlib import Path

from gpu_pipelines import __version__
from gpu_pipelines.artifacts.examples import EXAMPLES, Examples
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry.serving_container import ServingContainer
from gpu_pipelines.serving.comparison import TOLERANCE, differences
from gpu_pipelines.serving.served_models import why_not_served
from gpu_pipelines.serving.started import started_server

_MOST_SHOWN = 3


class SmokeTest:
    """Compares a server's predictions with the evaluated ones.

    Args:
        model: the exported model, as the evaluation left it.
        container: the container for serving; None for this project's server as it is here.
        tested_image: the image that runs this test; empty if it is not known.
    """

    def __init__(self, model: Path, container: ServingContainer | None = None, tested_image: str = "") -> None:
        self._model = model
        self._container = container
        self._tested_image = tested_image

    def __call__(self, place: str) -> None:
        """Tests the files at a place of the upload; prints the result.

        Raises:
            UserError: a prediction differs from the evaluated one, or the server does not start.
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
                "The smoke test of the uploaded model failed: served predictions differ from the evaluated ones. "
                f"{'; '.join(found[:_MOST_SHOWN])}{more}.",
                f"A difference of more than {TOLERANCE:g} means that another model is served. Compare preprocessor and "
                "tokenizer "
                "of the exported model with those of the dataset.",
            )
        took = time.monotonic() - started
        print(f"smoke test: {len(examples.instances)} examples served as evaluated, in {took:.1f} s", flush=True)
        print(self._what_it_says(), end="", flush=True)

    def _what_it_says(self) -> str:
        """What the test proves for the container that serves the version on Vertex AI, and what it does not."""
        container = self._container
        if container is None:
            return ""
        if container.image == self._tested_image:
            return f"the version is served by the image that was tested, {container.image}\n"
        later = "models deploy tests it on the endpoint"
        if container.is_ours:
            return (
                f"the test was of gpu-pipelines {__version__} in this step; {container.image} serves the version, and "
                f"was not tested here: {later}\n"
            )
        return (
            f"the test was of the files, with this project's server; {container.image} serves the version, and was not "
            f"tested: {later}\n"
        )

    def _why_not(self) -> str:
        if why := why_not_served(self._model):
            return why
        if self._container and self._container.is_of_others:
            return f"the container {self._container.image} serves this model; models deploy tests it on the endpoint"
        return "" if (self._model / EXAMPLES).is_file() else f"the model has no {EXAMPLES}"
