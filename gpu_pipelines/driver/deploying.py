"""A registered model behind an endpoint of Vertex AI, in a Python program and for the command `models deploy`."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from gpu_pipelines.driver.run import teller
from gpu_pipelines.errors import InvalidRequestError

if TYPE_CHECKING:
    from gpu_pipelines.registry.vertex_endpoint import Deployed, DeploymentRequest


def deploy(
    model: str,
    endpoint: str,
    *,
    registry: str = "vertex://",
    traffic: int = 100,
    accelerator: str = "",
    machine_type: str = "",
    min_replicas: int = 1,
    max_replicas: int = 1,
    keep: bool = False,
    force: bool = False,
    examples: str | PathLike[str] = "",
    untested: bool = False,
    progress: bool = True,
) -> Deployed:
    """Deploys a version of a model to a Vertex AI endpoint, as `gpu-pipelines models deploy`.

    It gets requests only after its predictions match its evaluation. A SIGTERM ends it as Ctrl-C does; no machine of
    the test stays.

    Args:
        model: `NAME@ALIAS` or `NAME@VERSION`; NAME alone is its champion.
        endpoint: display name of the endpoint; made if there is none.
        registry: `vertex://PROJECT/REGION`; `vertex://` alone is that of the project.
        traffic: percent of the requests that the version gets, 1 to 100.
        accelerator: GPUs of each machine, such as l4:1; empty for none.
        machine_type: empty for the smallest that fits.
        min_replicas: fewest machines.
        max_replicas: most machines.
        keep: leave models that no longer get requests deployed; they cost as before.
        force: deploy a version anew that is deployed already.
        examples: a file with requests and expected answers, for a container with a format of its own; empty for the
            examples of the version.
        untested: deploy without testing the predictions.
        progress: say on stderr what was done.

    Returns:
        The endpoint's resource name, and the percent of its requests that the version gets.

    Raises:
        UserError: it cannot be deployed, or predicts something else. The endpoint's traffic is as before then.
    """
    from gpu_pipelines.registry.vertex_endpoint import DeploymentRequest

    place = fspath(examples)
    request = DeploymentRequest(
        endpoint, traffic, accelerator, machine_type, min_replicas, max_replicas, keep, force, place, untested
    )
    return deployed(model, request, registry, teller(progress))


def deployed(model: str, request: DeploymentRequest, registry: str, say: Callable[[str], None]) -> Deployed:
    """Deploys a version; errors as those of `deploy`.

    Args:
        model: the version.
        request: endpoint, traffic and machines.
        registry: where the version is.
        say: called with each line about what was done.
    """
    from gpu_pipelines.distributed.signals import ENDING, handled, interrupt
    from gpu_pipelines.registry import VERTEX, open_registry
    from gpu_pipelines.registry.vertex_endpoint import EndpointDeployer

    if not registry.startswith(VERTEX):
        raise InvalidRequestError(
            f"{registry} is not a registry of Vertex AI.", "Give --registry vertex://PROJECT/REGION."
        )
    opened: Any = open_registry(registry)
    name, _, reference = model.partition("@")
    deployer = EndpointDeployer(opened.settings, say)
    version = opened.version(name, reference or "champion")
    # A cancelled CI job gets a SIGTERM: no machine may stay on the endpoint of the test.
    with handled(interrupt, ENDING):
        return deployer.deploy(version, request)
