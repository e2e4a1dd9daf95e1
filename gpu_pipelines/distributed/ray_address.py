"""The address of an existing Ray cluster, as `ray.init` takes it, and its forms."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_pipelines.distributed.members import split_address
from gpu_pipelines.errors import UserError

#: The possible forms, for messages and documents.
FORMS = (
    "HOST:PORT, such as raycluster-head-svc:6379, if the step's machine is part of the cluster; ray://HOST:10001, "
    "if it is not, as in front of KubeRay; vertex_ray://projects/P/locations/R/persistentResources/NAME for Ray on "
    "Vertex AI; anyscale://… for Anyscale; auto for the cluster of the machine itself"
)
_AUTO, _CLIENT, _VERTEX, _ANYSCALE = "auto", "ray://", "vertex_ray://", "anyscale://"
#: `PersistentResource.name`, or its last part, which aiplatform completes.
_RESOURCE = re.compile(r"(projects/[^/\s]+/locations/[^/\s]+/persistentResources/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


@dataclass(frozen=True)
class RayEndpoint:
    """The parts of an address of a Ray cluster.

    Attributes:
        host: name or address; empty if the cluster is found by its scheme or on this machine.
        port: 0 without a host.
        package: pip package that the scheme needs besides Ray; empty for none.
        module: the module that Ray imports for the scheme.
    """

    host: str = ""
    port: int = 0
    package: str = ""
    module: str = ""


def ray_endpoint(address: str) -> RayEndpoint:
    """The parts of an address.

    Raises:
        UserError: it has none of the forms.
    """
    scheme, sign, rest = address.partition("://")
    if address == _AUTO:
        return RayEndpoint()
    if address.startswith(_VERTEX) and _RESOURCE.fullmatch(rest):
        return RayEndpoint(package="google-cloud-aiplatform[ray]", module="vertex_ray")
    if address.startswith(_ANYSCALE) and not re.search(r"\s", rest):
        return RayEndpoint(package="anyscale", module="anyscale")
    if not sign or scheme == _CLIENT.removesuffix("://"):
        place = rest if sign else address
        host = place.rpartition(":")[0]
        port = place.rpartition(":")[2]
        if _HOST.fullmatch(host) and port.isdecimal() and 0 < int(port) < 65536:
            return RayEndpoint(*split_address(place))
    raise UserError(f"{address[:200]!r} is not the address of a Ray cluster.", f"Give {FORMS}.")


def problems_of_ray_address(address: str) -> list[str]:
    """What is wrong with a value of `ray_address`, as far as its text shows.

    Args:
        address: any text; an empty one stands for processes of the step's own machines.
    """
    if not address:
        return []
    if address.startswith(("http://", "https://")):
        dashboard = f"ray_address is {address[:200]!r}, the address of a dashboard, which takes no work."
        return [f"{dashboard} Give the cluster's own: ray://HOST:10001, or HOST:6379 on a machine of the cluster."]
    try:
        ray_endpoint(address)
    except UserError as error:
        return [f"ray_address: {error.problem} {error.remedy}"]
    return []
