"""A registered version behind an endpoint of Vertex AI, with a share of its traffic, and back if it predicts wrongly.

API: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.endpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from gpu_pipelines.accelerators import plan
from gpu_pipelines.artifacts.examples import EXAMPLES, Examples
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.registry.registered import RegisteredVersion
from gpu_pipelines.registry.serving_container import ServingContainer
from gpu_pipelines.registry.vertex_operations import wait_for
from gpu_pipelines.serving.comparison import differences
from gpu_pipelines.targets.vertex.connection import (
    endpoint_service,
    location_of,
    model_service,
    prediction_service,
    service_errors,
    tried_again,
)
from gpu_pipelines.targets.vertex.job_spec import machine_spec

_MANAGED_BY = {"managed-by": "gpu-pipelines"}
#: The smallest machine with room for PyTorch that the service takes for predictions.
CPU_MACHINE = "n1-standard-2"
#: In a traffic split, the model that is being deployed.
_NEW = "0"
_POLL_SECONDS, _MOST_SECONDS = 5.0, 7200.0
#: How unlikely it may be that a test of the endpoint misses the new model, which gets a share of the requests only.
_MISSED = 1e-6


@dataclass(frozen=True)
class DeploymentRequest:
    """What to deploy a version with.

    Attributes:
        endpoint: display name of the endpoint; made if there is none.
        traffic_percent: of its requests that the version gets; the others keep their shares of the rest.
        accelerator: GPUs of each machine, `l4:1`; empty for none.
        machine_type: empty for the smallest that fits.
        min_replicas, max_replicas: machines.
        keep: leave models that no longer get requests deployed; they cost as before.
    """

    endpoint: str
    traffic_percent: int = 100
    accelerator: str = ""
    machine_type: str = ""
    min_replicas: int = 1
    max_replicas: int = 1
    keep: bool = False

    def problems(self) -> list[str]:
        """Everything that is wrong with the values but for the accelerator."""
        found = []
        if not 1 <= self.traffic_percent <= 100:
            found.append(f"The traffic is {self.traffic_percent} percent; give 1 to 100.")
        if not 1 <= self.min_replicas <= self.max_replicas:
            found.append(
                f"There are {self.min_replicas} to {self.max_replicas} replicas; give 1 or more, not fewer at most."
            )
        if not 1 <= len(self.endpoint) <= 128:
            found.append("The name of the endpoint has 1 to 128 characters.")
        return found

    def machine(self, region: str | None) -> dict[str, Any]:
        """The machine in the terms of the service.

        Raises:
            UserError: there is no such machine.
        """
        if not self.accelerator:
            return {"machine_type": self.machine_type or CPU_MACHINE}
        planned = plan(self.accelerator, region=region, machine_type=self.machine_type or None)
        if planned.is_local:
            raise UserError(
                f"{self.accelerator} is for this machine.", "Leave the accelerator out to deploy without GPUs."
            )
        return machine_spec(planned)


class Deployed(NamedTuple):
    """A version behind an endpoint: the endpoint's resource name, and the percent of its requests that it gets."""

    endpoint: str
    percent: int


class EndpointDeployer:
    """Deploys versions of a project's registry.

    Args:
        settings: project and region.
        say: called with what was done.
    """

    def __init__(self, settings: ProjectSettings, say: Callable[[str], None] = print) -> None:
        self._settings = settings
        self._say = say

    def deploy(self, version: RegisteredVersion, request: DeploymentRequest) -> Deployed:
        """Deploys a version, tests it on the endpoint, and takes it back if a prediction is not the evaluated one.

        Args:
            version: of Vertex AI Model Registry.
            request: endpoint, traffic and machines.

        Returns:
            The endpoint, and the share that it gives the version: all of its requests if it is the first one.

        Raises:
            UserError: it cannot be deployed, or predicts something else. The endpoint's traffic is as before then.
        """
        if problems := request.problems():
            raise UserError.of_all(problems)
        machine = request.machine(self._settings.region)
        version.require_undamaged()
        endpoint = self._endpoint(request.endpoint)
        before = dict(endpoint.traffic_split)
        split = shared(before, request.traffic_percent)
        number = self._add(endpoint, version, request, machine, split)
        try:
            self._test(endpoint.name, number, version, split[_NEW])
        except BaseException as error:
            self._take_back(endpoint.name, number, before)
            if isinstance(error, UserError):
                raise UserError(
                    f"{error.problem} The endpoint's traffic is as it was before, and the version is not deployed.",
                    error.remedy,
                ) from None
            raise
        if not request.keep:
            self._remove_idle(endpoint.name)
        return Deployed(endpoint.name, split[_NEW])

    @cached_property
    def _client(self) -> Any:
        return endpoint_service(self._settings)

    def _endpoint(self, name: str) -> Any:
        """The endpoint of that display name; made if there is none."""
        parent = location_of(self._settings)
        with service_errors(f"Looking for the endpoint {name!r}"):
            wanted = {"parent": parent, "filter": f'display_name="{name}"'}
            found = list(self._client.list_endpoints(request=wanted, retry=tried_again()))
        if len(found) > 1:
            raise UserError(
                f"{parent} has {len(found)} endpoints of the name {name!r}.",
                "Delete or rename all but one: " + ", ".join(each.name for each in found),
            )
        if found:
            return found[0]
        from google.cloud.aiplatform_v1.types import CreateEndpointRequest

        with service_errors(f"Making the endpoint {name!r}"):
            made = {"parent": parent, "endpoint": {"display_name": name, "labels": _MANAGED_BY}}
            self._wait(self._client.transport.create_endpoint(CreateEndpointRequest(made)))
            (endpoint,) = self._client.list_endpoints(request=wanted, retry=tried_again())
        self._say(f"made the endpoint {endpoint.name}")
        return endpoint

    def _add(
        self,
        endpoint: Any,
        version: RegisteredVersion,
        request: DeploymentRequest,
        machine: Mapping[str, Any],
        traffic: Mapping[str, int],
    ) -> str:
        """Deploys the version and gives the id that the endpoint knows it by."""
        from google.cloud.aiplatform_v1.types import DeployModelRequest

        there = {deployed.id for deployed in endpoint.deployed_models}
        asked = DeployModelRequest(
            endpoint=endpoint.name,
            deployed_model={
                "model": version.resource_name,
                "display_name": f"{version.name}-{version.number}",
                "dedicated_resources": {
                    "machine_spec": machine,
                    "min_replica_count": request.min_replicas,
                    "max_replica_count": request.max_replicas,
                },
            },
            traffic_split=traffic,
        )
        self._say(f"deploying {version.name} version {version.number} on {machine['machine_type']}; this takes minutes")
        failed: UserError | None = None
        try:
            with service_errors(f"Deploying {version.name} version {version.number}"):
                self._wait(self._client.transport.deploy_model(asked))
        except UserError as error:
            failed = error
        # If the answer was lost the version may be there nevertheless.
        added = [deployed.id for deployed in self._read(endpoint.name).deployed_models if deployed.id not in there]
        if added:
            return str(added[0])
        raise failed or UserError("The service says it has deployed the version, but does not list it.")

    def _test(self, endpoint: str, number: str, version: RegisteredVersion, percent: int) -> None:
        """Asks the endpoint until the new model has answered every example.

        Raises:
            UserError: an answer is not the evaluated one, or none came from the new model.
        """
        if why := self._why_not(version):
            self._say(f"no test on the endpoint: {why}")
            return
        examples = Examples.load(version.path)
        tries = 1 if percent == 100 else math.ceil(math.log(_MISSED) / math.log(1 - percent / 100))
        predictions = [self._prediction(endpoint, number, each, tries) for each in examples.instances]
        if found := differences(examples, predictions):
            raise UserError(
                f"The endpoint does not predict as {version.name} version {version.number} was evaluated: {found[0]}.",
                "Compare the image that serves it with the version of gpu-pipelines that evaluated it.",
            )
        self._say(f"the endpoint predicts {len(predictions)} examples as they were evaluated")

    def _why_not(self, version: RegisteredVersion) -> str:
        client = model_service(self._settings)
        with service_errors(f"Looking at {version.resource_name}"):
            model = client.get_model(request={"name": version.resource_name}, retry=tried_again())
        if not ServingContainer(model.container_spec.image_uri).is_ours:
            return f"{model.container_spec.image_uri} answers in a form of its own"
        return "" if (version.path / EXAMPLES).is_file() else f"the version has no {EXAMPLES}"

    def _prediction(self, endpoint: str, number: str, instance: Mapping[str, Any], tries: int) -> Any:
        from google.cloud.aiplatform_v1.types import PredictRequest
        from google.protobuf import json_format

        asked = PredictRequest(endpoint=endpoint)
        json_format.ParseDict(instance, PredictRequest.pb(asked).instances.add())
        client = prediction_service(self._settings)
        for _ in range(tries):
            with service_errors("Asking the endpoint for a prediction"):
                answer = client.predict(request=asked, retry=tried_again())
            if answer.deployed_model_id == number:
                return json_format.MessageToDict(type(answer).pb(answer))["predictions"][0]
        raise UserError(f"None of {tries} requests to the endpoint was answered by the new version.")

    def _take_back(self, endpoint: str, number: str, before: Mapping[str, int]) -> None:
        """The traffic first, at once; then the machines."""
        from google.cloud.aiplatform_v1.types import UndeployModelRequest

        self._say("taking the version back")
        with service_errors("Restoring the traffic of the endpoint"):
            if before:
                changed = {"name": endpoint, "traffic_split": dict(before)}
                mask = {"paths": ["traffic_split"]}
                self._client.update_endpoint(request={"endpoint": changed, "update_mask": mask}, retry=tried_again())
        with service_errors(f"Removing the deployed model {number} of the endpoint", "Remove it in the console."):
            asked = UndeployModelRequest(endpoint=endpoint, deployed_model_id=number)
            self._wait(self._client.transport.undeploy_model(asked))

    def _remove_idle(self, endpoint: str) -> None:
        """Models without traffic, which cost what they cost with it."""
        from google.cloud.aiplatform_v1.types import UndeployModelRequest

        found = self._read(endpoint)
        for deployed in found.deployed_models:
            if not found.traffic_split.get(deployed.id):
                with service_errors(f"Removing the deployed model {deployed.id} of the endpoint"):
                    asked = UndeployModelRequest(endpoint=endpoint, deployed_model_id=deployed.id)
                    self._wait(self._client.transport.undeploy_model(asked))
                self._say(f"removed {deployed.display_name or deployed.id}, which no longer gets requests")

    def _read(self, endpoint: str) -> Any:
        with service_errors("Looking at the endpoint"):
            return self._client.get_endpoint(request={"name": endpoint}, retry=tried_again())

    def _wait(self, operation: Any) -> None:
        wait_for(self._client, operation, _POLL_SECONDS, _MOST_SECONDS)


def shared(before: Mapping[str, int], percent: int) -> dict[str, int]:
    """A traffic split in which a new model gets a share, and those before share the rest as they did.

    Args:
        before: percent by deployed model; all together 100, or nothing.
        percent: of the new model, which gets all where there is no other.
    """
    with_traffic = {number: share for number, share in before.items() if share}
    if not with_traffic or percent == 100:
        return {**dict.fromkeys(with_traffic, 0), _NEW: 100}
    left = 100 - percent
    split = {number: share * left // 100 for number, share in with_traffic.items()}
    # What rounding leaves over goes to those from whom it took the most.
    by_rest = sorted(split, key=lambda number: -(with_traffic[number] * left % 100))
    for number in by_rest[: left - sum(split.values())]:
        split[number] += 1
    return {**split, _NEW: percent}
