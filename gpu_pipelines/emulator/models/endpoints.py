"""Endpoints: deployed models, the split of traffic between them, and predictions."""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

import requests
from google.cloud import aiplatform_v1 as api
from google.protobuf import json_format

from gpu_pipelines.emulator.api_error import ApiError, not_found
from gpu_pipelines.emulator.jobs.job_states import now
from gpu_pipelines.emulator.jobs.rules import check_name_and_labels, raise_found
from gpu_pipelines.emulator.models.model_servers import ModelServers
from gpu_pipelines.emulator.models.models import Models
from gpu_pipelines.emulator.names import Names, Resources
from gpu_pipelines.emulator.operations import Operations
from gpu_pipelines.emulator.project.logs import Logs
from gpu_pipelines.emulator.state_folder import StateFolder
from gpu_pipelines.emulator.transcoding import as_json

#: `endpoint_id` of CreateEndpointRequest.
_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


#: https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements: 1.5 MB, either way.
_MOST_BYTES = 1_572_864
#: The most predictions that are remembered.
_LAST = 1000


class Endpoints(Resources):
    """The endpoints of all projects.

    Attributes:
        endpoints: by name.
        servers: the servers of the deployed models.
        asked: the deployed model of each of the last predictions.
    """

    def __init__(
        self,
        names: Names,
        operations: Operations,
        models: Models,
        servers: ModelServers,
        logs: Logs,
        page_size: int,
        state: StateFolder,
    ) -> None:
        super().__init__(names, api.ListEndpointsResponse, page_size, state)
        self.endpoints = self.held
        self.servers, self._logs = servers, logs
        self.asked: deque[str] = deque(maxlen=_LAST)
        self._predictions = 0
        self._operations, self._models = operations, models
        numbers = [int(deployed.id) for each in self.held.values() for deployed in each.deployed_models]
        self._last = max(numbers, default=0)

    def create(self, request: Any) -> Any:
        """CreateEndpoint."""
        raise_found([(f"endpoint.{name}", text) for name, text in check_name_and_labels(request.endpoint)])
        endpoint = api.Endpoint(request.endpoint)
        key = request.endpoint_id
        if key and not _ID.fullmatch(key):
            raise ApiError(400, f"The endpoint id {key!r} does not match {_ID.pattern}.")
        with self._lock:
            endpoint.name = self._names.new(request.parent, "endpoints", key)
            if endpoint.name in self.held:
                raise ApiError(409, f"Endpoint {endpoint.name} already exists.")
            endpoint.create_time = endpoint.update_time = now()
            self.keep(endpoint)
        return self._operations.done(endpoint.name, endpoint)

    def update(self, request: Any) -> Any:
        """UpdateEndpoint, for the fields in the mask."""
        held = self.one(request.endpoint.name)
        endpoint = self._copy(held)
        for path in request.update_mask.paths:
            if path not in ("traffic_split", "display_name", "labels"):
                raise ApiError(400, f"The field {path} of an endpoint cannot be updated.")
            if path == "traffic_split":
                self._check_split(endpoint, dict(request.endpoint.traffic_split))
            setattr(endpoint, path, getattr(request.endpoint, path))
        raise_found([(f"endpoint.{name}", text) for name, text in check_name_and_labels(endpoint)])
        self.keep(endpoint)
        return endpoint

    def delete(self, request: Any) -> Any:
        """DeleteEndpoint, for one without models."""
        endpoint = self.one(request.name)
        if endpoint.deployed_models:
            raise ApiError(400, f"Endpoint {endpoint.name} has deployed models.", "FAILED_PRECONDITION")
        self.forget(endpoint.name)
        return self._operations.done(endpoint.name)

    def endpoint_with(self, model: str, version: str) -> str:
        """The name of an endpoint that has a version of a model, or any version; empty if there is none."""
        with self._lock:
            for endpoint in self.held.values():
                for each in endpoint.deployed_models:
                    if each.model == model and version in ("", each.model_version_id):
                        return str(endpoint.name)
        return ""

    def deploy(self, request: Any) -> Any:
        """DeployModel: `0` in the split is the new model; without a split that of the endpoint stays."""
        endpoint, deployed = self.one(request.endpoint), api.DeployedModel(request.deployed_model)
        model = self._models.get(api.GetModelRequest(name=deployed.model))
        resources = deployed.dedicated_resources
        if not resources.machine_spec.machine_type or resources.min_replica_count < 1:
            raise ApiError(400, "dedicated_resources needs a machine_type and at least one replica.")
        spec = resources.machine_spec
        if bool(spec.accelerator_type) != bool(spec.accelerator_count):
            raise ApiError(400, "Both `accelerator_type` and `accelerator_count` should be specified or none.")
        with self._lock:
            self._last += 1
            deployed.id = str(self._last)
            deployed.model, deployed.model_version_id = model.name, model.version_id
            split = {deployed.id if number == "0" else number: share for number, share in request.traffic_split.items()}
            if split:
                self._check_split(endpoint, split, deployed.id)
                endpoint.traffic_split = split
            endpoint.deployed_models.append(deployed)
            self.keep(endpoint)
        return self._operations.done(endpoint.name, api.DeployModelResponse(deployed_model=deployed))

    def undeploy(self, request: Any) -> Any:
        """UndeployModel: a model with traffic can only be removed if it is the last one."""
        endpoint, number = self.one(request.endpoint), request.deployed_model_id
        left = [deployed for deployed in endpoint.deployed_models if deployed.id != number]
        if len(left) == len(endpoint.deployed_models):
            raise not_found(f"{request.endpoint}/deployedModels/{number}")
        split = {held: share for held, share in endpoint.traffic_split.items() if held != number}
        if left and endpoint.traffic_split.get(number):
            raise ApiError(400, f"The deployed model {number} has traffic.", "FAILED_PRECONDITION")
        endpoint.deployed_models = left
        endpoint.traffic_split = split if left else {}
        self.keep(endpoint)
        self.servers.stop(_key(endpoint, number))
        return self._operations.done(endpoint.name, api.UndeployModelResponse())

    def predict(self, request: Any) -> Any:
        """Predict: each deployed model gets its share of every hundred requests, in turns."""
        endpoint = self.one(request.endpoint)
        turn, number = self._predictions * 37 % 100, ""
        for held, share in endpoint.traffic_split.items():
            if 0 <= turn < share:
                number = held
            turn -= share
        if not number:
            raise ApiError(400, f"Endpoint {endpoint.name} doesn't have traffic_split.", "FAILED_PRECONDITION")
        content = json_format.MessageToDict(api.PredictRequest.pb(request))
        body = {name: content[name] for name in ("instances", "parameters") if name in content}
        _check_size("Request", json.dumps(body).encode())
        deployed = next(each for each in endpoint.deployed_models if each.id == number)
        url = self._url_of(endpoint, deployed)
        self.asked.append(number)
        self._predictions += 1
        answer = requests.post(url, json=body, timeout=60)
        if answer.status_code != 200:
            raise ApiError(400, answer.text)
        _check_size("Response", answer.content)
        response = api.PredictResponse(
            deployed_model_id=number, model=deployed.model, model_version_id=deployed.model_version_id
        )
        json_format.ParseDict({"predictions": answer.json()["predictions"]}, api.PredictResponse.pb(response))
        return response

    def _url_of(self, endpoint: Any, deployed: Any) -> str:
        """The address of a deployed model's server; the first request waits until it has started."""
        model = self._models.get(api.GetModelRequest(name=f"{deployed.model}@{deployed.model_version_id}"))
        labels = {"endpoint_id": endpoint.name.rpartition("/")[2], "task_name": "prediction_container"}

        def say(line: str, severity: str) -> None:
            project = self._names.project(endpoint.name)
            self._logs.write(project, "aiplatform.googleapis.com/Endpoint", labels, line, severity)

        return self.servers.predict_url(_key(endpoint, deployed.id), model, deployed.service_account, say)

    def _check_split(self, endpoint: Any, split: dict[str, int], new: str = "") -> None:
        there = {deployed.id for deployed in endpoint.deployed_models} | {new}
        if unknown := set(split) - there:
            raise ApiError(400, f"The traffic split names {', '.join(sorted(unknown))}, which is not deployed.")
        if sum(split.values()) != 100:
            raise ApiError(400, f"The traffic split must add up to 100: {as_json(endpoint).get('trafficSplit')}.")


def _key(endpoint: Any, number: str) -> str:
    return f"{endpoint.name}/deployedModels/{number}"


def _check_size(what: str, content: bytes) -> None:
    if len(content) > _MOST_BYTES:
        raise ApiError(400, f"{what} payload size exceeds the limit: {_MOST_BYTES} bytes.")
