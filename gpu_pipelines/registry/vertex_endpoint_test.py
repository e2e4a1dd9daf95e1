"""The test of a version on an endpoint: its answers are compared with the evaluated ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.examples import EXAMPLES, Examples
from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.connection import model_service, prediction_service, service_errors, tried_again
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.registry.endpoint_forms import form_of, judged
from gpu_pipelines.registry.registered import RegisteredVersion
from gpu_pipelines.registry.serving_container import ServingContainer

#: The highest probability that a test misses the new model, which gets only a share of the requests.
_MISSED = 1e-6


class EndpointTest:
    """Examples of a version, and its container's request format.

    Args:
        settings: project and region.
        version: a version in Vertex AI Model Registry.
        examples: a file in the form of `examples.json`, for containers with their own form of answers; empty for the
            examples of the version.

    Raises:
        UserError: there are no examples.
    """

    def __init__(self, settings: ProjectSettings, version: RegisteredVersion, examples: str = "") -> None:
        self._settings, self._version, self._of_the_user = settings, version, bool(examples)
        self._container = _container_of(settings, version)
        self._form = form_of(self._container)
        folder, name = (Path(examples).parent, Path(examples).name) if examples else (version.path, EXAMPLES)
        if not (folder / name).is_file():
            raise UserError(
                f"{version.name} version {version.number} cannot be tested on an endpoint: there is no "
                f"{examples or EXAMPLES}.",
                f"Give --examples FILE in the form of {EXAMPLES} (docs/serving.md), or --untested to deploy without.",
            )
        self._examples = Examples.load(folder, name)

    def run(self, endpoint: str, number: str, percent: int) -> str:
        """Sends requests until the model has answered every example.

        Args:
            endpoint: its resource name.
            number: the deployed model, which has to answer.
            percent: its percent of the requests.

        Returns:
            The result, for people.

        Raises:
            UserError: an answer differs from the evaluated one, or none came from the model.
        """
        version, examples = self._version, self._examples
        tries = 1 if percent == 100 else math.ceil(math.log(_MISSED) / math.log(1 - percent / 100))
        answers = [
            self._answer(endpoint, number, *self._form_of_question(instance, expected), tries)
            for instance, expected in zip(examples.instances, examples.predictions, strict=True)
        ]
        found, compared = judged(examples, answers, self._form, self._of_the_user)
        if found:
            raise UserError(
                f"The endpoint does not predict as {version.name} version {version.number} was evaluated: {found[0]}.",
                f"{self._container.image} serves it. Compare it with the version of gpu-pipelines that evaluated the "
                "model.",
            )
        if compared:
            return f"the endpoint predicts {compared} examples as they were evaluated"
        return (
            f"the endpoint answers {len(answers)} examples; {self._container.image} answers in a form that has nothing "
            "of what was evaluated, so they are not compared"
        )

    def _form_of_question(self, instance: Any, expected: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        return (instance, {}) if self._of_the_user else self._form.question(instance, expected)

    def _answer(self, endpoint: str, number: str, instance: Any, parameters: dict[str, Any], tries: int) -> Any:
        from google.cloud.aiplatform_v1.types import PredictRequest
        from google.protobuf import json_format

        asked = PredictRequest(endpoint=endpoint)
        json_format.ParseDict(instance, PredictRequest.pb(asked).instances.add())
        if parameters:
            json_format.ParseDict(parameters, PredictRequest.pb(asked).parameters)
        client = prediction_service(self._settings)
        for _ in range(tries):
            with service_errors("Asking the endpoint for a prediction"):
                answer = client.predict(request=asked, retry=tried_again())
            if answer.deployed_model_id == number:
                found = json_format.MessageToDict(type(answer).pb(answer)).get("predictions") or [None]
                return found[0]
        raise UserError(f"None of {tries} requests to the endpoint was answered by the new version.")


def _container_of(settings: ProjectSettings, version: RegisteredVersion) -> ServingContainer:
    client: Any = model_service(settings)
    with service_errors(f"Looking at {version.resource_name}"):
        spec = client.get_model(request={"name": version.resource_name}, retry=tried_again()).container_spec
    return ServingContainer(spec.image_uri, tuple(spec.command), tuple(spec.args))
