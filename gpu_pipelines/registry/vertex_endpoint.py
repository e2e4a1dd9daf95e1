"""Deploys a registered version to a Vertex AI endpoint: tested before it gets requests, and removed if it is wrong.

API: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from gpu_pipelines.accelerators import plan
from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.connection import endpoint_service, location_of, service_errors, tried_again
from gpu_pipelines.google_cloud.machine_spec import machine_spec
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.registry.registered import RegisteredVersion
from gpu_pipelines.registry.vertex_endpoint_test import EndpointTest
from gpu_pipelines.registry.vertex_operations import wait_for

_MANAGED_BY = {"managed-by": "gpu-pipelines"}
#: The smallest machine for predictions that has room for PyTorch.
CPU_MACHINE = "n1-standard-2"
#: Stands for the new model in a traffic split.
_NEW = "0"
_POLL_SECONDS, _MOST_SECONDS = 5.0, 7200.0


@dataclass(frozen=True)
class DeploymentRequest:
    """A request to deploy a version.

    Attributes:
        endpoint: display name of the endpoint; created if there is none.
        traffic_percent: the version's percent of the requests; the others share the rest as before.
        accelerator: GPUs of each machine, `l4:1`; empty for none.
        machine_type: the machine type; empty for the smallest that fits.
        min_replicas, max_replicas: the number of machines.
        keep: leave models without requests deployed; they cost as before.
        force: deploy a version again even if it is already deployed as wanted.
        examples: a file with requests and expected answers for the container; empty for the examples of the version.
        untested: deploy without a test.
    """

    endpoint: str
    traffic_percent: int = 100
    accelerator: str = ""
    machine_type: str = ""
    min_replicas: int = 1
    max_replicas: int = 1
    keep: bool = False
    force: bool = False
    examples: str = ""
    untested: bool = False

    def problems(self) -> list[str]:
        """All problems with the values except the accelerator."""
        found = []
        if not 1 <= self.traffic_percent <= 100:
            found.append(f"The traffic is {self.traffic_percent} percent; give 1 to 100.")
        if not 1 <= self.min_replicas <= self.max_replicas:
            found.append(
                f"There are {self.min_replicas} to {self.max_replicas} replicas; give 1 or more, not fewer at most."
            )
        if not 1 <= len(self.endpoint) <= 128:
            found.append("The name of the endpoint has 1 to 128 characters.")
        if self.untested and self.examples:
            found.append("A deployment without a test needs no examples; leave --examples or --untested out.")
        return found

    def machine(self, region: str | None) -> dict[str, Any]:
        """The machine in the service's form.

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
        say: called with messages; commands follow below the first line.
    """

    def __init__(self, settings: ProjectSettings, say: Callable[[str], None] = print) -> None:
        self._settings = settings
        self._say = say

    def deploy(self, version: RegisteredVersion, request: DeploymentRequest) -> Deployed:
        """Deploys a version and tests it; it takes over requests of other versions only after it has passed.

        If the endpoint already has traffic, the version is first deployed to a separate endpoint, on the same machine,
        and tested there with its examples. The last test is on the endpoint itself. A version that is already deployed
        as wanted stays, and only its share changes.

        Args:
            version: a version in Vertex AI Model Registry.
            request: endpoint, traffic and machines.

        Returns:
            The endpoint, and the share that it gives the version: all of its requests if it is the first one.

        Raises:
            UserError: it cannot be deployed, or predicts something else. The endpoint's traffic is then as before.
        """
        if problems := request.problems():
            raise UserError.of_all(problems)
        machine = request.machine(self._settings.region)
        version.require_undamaged()
        test = None if request.untested else EndpointTest(self._settings, version, request.examples)
        endpoint = self._endpoint(request.endpoint)
        if not request.force and (there := self._deployed_as_wanted(endpoint, version, request, machine)):
            return self._with_share(endpoint, there, version, request, test)
        if test and any(endpoint.traffic_split.values()):
            self._rehearse(version, request, machine, test)
            endpoint = self._read(endpoint.name)
        number = self._add(endpoint, version, request, machine)
        # That took minutes, in which somebody may have rolled back.
        endpoint = self._read(endpoint.name)
        split = shared(endpoint.traffic_split, request.traffic_percent)
        split[number] = split.pop(_NEW)
        with self._back_if_wrong(endpoint, number, split, undeploy=True):
            self._set_traffic(endpoint.name, split)
            self._test(endpoint.name, number, split[number], test)
        if not request.keep:
            self._remove_idle(endpoint.name)
        return Deployed(endpoint.name, split[number])

    def _test(self, endpoint: str, number: str, percent: int, test: EndpointTest | None) -> None:
        self._say(test.run(endpoint, number, percent) if test else "no test on the endpoint: --untested was given")

    def _rehearse(
        self,
        version: RegisteredVersion,
        request: DeploymentRequest,
        machine: Mapping[str, Any],
        test: EndpointTest,
    ) -> None:
        """Tests a version on a separate endpoint without user requests, and removes that again."""
        from google.cloud.aiplatform_v1.types import DeleteEndpointRequest

        self._say(f"{request.endpoint} gets requests already: the version is tested on an endpoint of its own first")
        alone = replace(request, min_replicas=1, max_replicas=1)
        endpoint = self._endpoint(f"{request.endpoint[:100]}-test-{version.name[:20]}-{version.number}")
        # A killed one has left its machine, which costs as long as it exists.
        self._clear(endpoint.name)
        try:
            number = self._add(self._read(endpoint.name), version, alone, machine)
            self._set_traffic(endpoint.name, {number: 100})
            self._test(endpoint.name, number, 100, test)
        except UserError as error:
            raise UserError(f"{error.problem} {request.endpoint} was not touched.", error.remedy) from None
        finally:
            self._clear(endpoint.name)
            with service_errors(f"Deleting the endpoint {endpoint.name}", "Delete it in the console."):
                self._wait(self._client.transport.delete_endpoint(DeleteEndpointRequest(name=endpoint.name)))

    @staticmethod
    def _deployed_as_wanted(
        endpoint: Any, version: RegisteredVersion, request: DeploymentRequest, machine: Mapping[str, Any]
    ) -> str:
        """The id of the deployed model with this version on these machines; empty if there is none."""
        model, _, number = version.resource_name.rpartition("/")[2].partition("@")
        for deployed in endpoint.deployed_models:
            resources = deployed.dedicated_resources
            replicas = (resources.min_replica_count, resources.max_replica_count or resources.min_replica_count)
            if (
                deployed.model.rpartition("/")[2].partition("@")[0] == model
                and deployed.model_version_id == number
                and resources.machine_spec == type(resources.machine_spec)(machine)
                and replicas == (request.min_replicas, request.max_replicas)
            ):
                return str(deployed.id)
        return ""

    def _with_share(
        self,
        endpoint: Any,
        number: str,
        version: RegisteredVersion,
        request: DeploymentRequest,
        test: EndpointTest | None,
    ) -> Deployed:
        """Gives an already deployed version its share of the requests."""
        before = dict(endpoint.traffic_split)
        others = {held: share for held, share in before.items() if held != number}
        split = shared(others, request.traffic_percent)
        split[number] = split.pop(_NEW)
        what = f"{version.name} version {version.number} is deployed to {request.endpoint} already"
        if split[number] == before.get(number, 0):
            self._say(f"{what}, with {split[number]} percent of the requests; --force deploys it anew")
            # The command that deployed it may have been stopped before its test.
            try:
                self._test(endpoint.name, number, split[number], test)
            except UserError as error:
                raise UserError(f"{error.problem} It still gets requests.", error.remedy) from None
            return Deployed(endpoint.name, split[number])
        self._say(f"{what}; its share of the requests goes from {before.get(number, 0)} to {split[number]} percent")
        self._set_traffic(endpoint.name, split)
        with self._back_if_wrong(endpoint, number, split, undeploy=False):
            self._test(endpoint.name, number, split[number], test)
        if not request.keep:
            self._remove_idle(endpoint.name)
        return Deployed(endpoint.name, split[number])

    @contextmanager
    def _back_if_wrong(self, endpoint: Any, number: str, split: Mapping[str, int], undeploy: bool) -> Iterator[None]:
        """Restores the endpoint's traffic if the block fails; the machines are removed after that.

        Traffic that somebody has changed meanwhile stays, except for the share of a removed version.

        Args:
            endpoint: the endpoint as it was before.
            number: the deployed model.
            split: the traffic that the block sets.
            undeploy: whether to remove the deployed model.
        """
        try:
            yield
        except BaseException as error:
            self._say("taking the version back")
            now = self._read(endpoint.name)
            others = {each.id for each in now.deployed_models} - ({number} if undeploy else set())
            held, *known = (_alone(each, each) for each in (now.traffic_split, split, endpoint.traffic_split))
            is_moved = held not in known
            back = (is_moved and _alone(held, others)) or _alone(endpoint.traffic_split, others)
            if back and back != held:
                self._set_traffic(endpoint.name, back)
            if undeploy and number in {each.id for each in now.deployed_models}:
                self._undeploy(endpoint.name, number)
            if isinstance(error, UserError):
                gone = ", and the version is not deployed" if undeploy else ""
                stands = "as somebody has set it meanwhile" if is_moved else "as it was before"
                raise UserError(f"{error.problem} The endpoint's traffic is {stands}{gone}.", error.remedy) from None
            raise

    @cached_property
    def _client(self) -> Any:
        return endpoint_service(self._settings)

    def _endpoint(self, name: str) -> Any:
        """The endpoint with that display name; created if there is none."""
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
    ) -> str:
        """Deploys the version without giving it requests, and returns its id on the endpoint."""
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
        )
        self._say(f"deploying {version.name} version {version.number} on {machine['machine_type']}; this takes minutes")
        failed: UserError | None = None
        try:
            with service_errors(f"Deploying {version.name} version {version.number}"):
                self._wait(self._client.transport.deploy_model(asked))
        except UserError as error:
            failed = error
        except KeyboardInterrupt:
            self._say(_left_deploying(endpoint.name, version))
            raise
        # If the answer was lost, the version may be deployed nevertheless.
        added = [deployed.id for deployed in self._read(endpoint.name).deployed_models if deployed.id not in there]
        if added:
            return str(added[0])
        raise failed or UserError("The service says it has deployed the version, but does not list it.")

    def _set_traffic(self, endpoint: str, split: Mapping[str, int]) -> None:
        with service_errors("Changing the traffic of the endpoint"):
            changed = {"name": endpoint, "traffic_split": dict(split)}
            mask = {"paths": ["traffic_split"]}
            self._client.update_endpoint(request={"endpoint": changed, "update_mask": mask}, retry=tried_again())

    def _undeploy(self, endpoint: str, number: str) -> None:
        from google.cloud.aiplatform_v1.types import UndeployModelRequest

        with service_errors(f"Removing the deployed model {number} of the endpoint", "Remove it in the console."):
            asked = UndeployModelRequest(endpoint=endpoint, deployed_model_id=number)
            self._wait(self._client.transport.undeploy_model(asked))

    def _clear(self, endpoint: str) -> None:
        """Removes all models, the one with traffic last: the service refuses that while there are others."""
        found = self._read(endpoint)
        for deployed in sorted(found.deployed_models, key=lambda each: found.traffic_split.get(each.id, 0)):
            self._undeploy(endpoint, deployed.id)

    def _remove_idle(self, endpoint: str) -> None:
        """Removes models without traffic, which cost as much as with it."""
        found = self._read(endpoint)
        for deployed in found.deployed_models:
            if not found.traffic_split.get(deployed.id):
                self._undeploy(endpoint, deployed.id)
                self._say(f"removed {deployed.display_name or deployed.id}, which no longer gets requests")

    def _read(self, endpoint: str) -> Any:
        with service_errors("Looking at the endpoint"):
            return self._client.get_endpoint(request={"name": endpoint}, retry=tried_again())

    def _wait(self, operation: Any) -> None:
        wait_for(self._client, operation, _POLL_SECONDS, _MOST_SECONDS)


def _left_deploying(endpoint: str, version: RegisteredVersion) -> str:
    """What to do about a deployment that continues in the service; until it ends nobody can remove the version."""
    return (
        f"The service goes on deploying {version.name} version {version.number}, which is not tested and gets no "
        "requests. Its machine costs until it is removed. When the first command lists the version, in some minutes, "
        "the same deployment again tests it, or the second removes it:\n"
        f"  gcloud ai endpoints describe {endpoint}\n"
        f"  gcloud ai endpoints undeploy-model {endpoint} --deployed-model-id=ID"
    )


def _alone(split: Mapping[str, int], models: Collection[str]) -> dict[str, int]:
    """The traffic among some deployed models, as if there were no others; empty if none of them gets any."""
    kept = {number: share for number, share in split.items() if share and number in models}
    return {number: share for number, share in shared(kept, 0).items() if number != _NEW} if kept else {}


def shared(before: Mapping[str, int], percent: int) -> dict[str, int]:
    """A traffic split with a share for a new model; the earlier models divide the rest in the same proportions.

    Args:
        before: percent by deployed model, without the new one, so that the sum may be below 100.
        percent: the new model's percent; it gets all if there is no other.
    """
    with_traffic = {number: share for number, share in before.items() if share}
    if not with_traffic or percent == 100:
        return {**dict.fromkeys(with_traffic, 0), _NEW: 100}
    left, total = 100 - percent, sum(with_traffic.values())
    split = {number: share * left // total for number, share in with_traffic.items()}
    # The remainder of rounding goes to the models that lost the most by it.
    by_rest = sorted(split, key=lambda number: -(with_traffic[number] * left % total))
    for number in by_rest[: left - sum(split.values())]:
        split[number] += 1
    return {**split, _NEW: percent}
