"""Lustre file systems on the machines of jobs, and names that a network resolves for them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from gpu_pipelines.errors import UserError

#: The service mounts them below this folder, each under its own name (`LustreMount.mount_point`).
MOUNTED = "/mnt/lustre"
_FIELDS = {"ip": "instance_ip", "volume": "volume_handle", "filesystem": "filesystem", "mount": "mount_point"}
_FORM = "ip=10.0.0.2,filesystem=NAME,volume=projects/P/locations/ZONE/instances/ID,mount=data"
_NAMES = {
    "filesystem": (r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", "the name of the file system"),
    "mount": (r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}", f"the name of a folder, which will be below {MOUNTED}"),
    "volume": (r"[^\s,]+", "what the instance is identified by"),
}
#: `DnsPeeringConfig`: the domain ends with a dot, as in Cloud DNS.
_PEERING = re.compile(r"(?P<domain>([a-z0-9-]+\.)+)=(?P<project>[a-z][a-z0-9:.-]+)/(?P<network>[a-z][a-z0-9-]{0,62})")


def lustre_mounts(texts: Sequence[str] | None) -> list[dict[str, str]]:
    """`WorkerPoolSpec.lustre_mounts` from the given texts.

    Args:
        texts: each of the form ip=…,filesystem=…,volume=…,mount=….

    Raises:
        UserError: lists everything that is wrong.
    """
    found, problems = [], []
    for text in texts or ():
        pairs = [part.partition("=") for part in text.split(",")]
        given = {name.strip(): value.strip() for name, _, value in pairs}
        if set(given) != set(_FIELDS) or len(pairs) != len(_FIELDS):
            problems.append(f"--lustre {text[:100]!r} is not of the form {_FORM}.")
            continue
        problems += _problems(given)
        found.append({field: given[name] for name, field in _FIELDS.items()})
    mounts = [each["mount_point"] for each in found]
    problems += [f"Two file systems are to be mounted at {name}." for name in {*mounts} if mounts.count(name) > 1]
    if problems:
        raise UserError.of_all(problems)
    return found


def _problems(given: dict[str, str]) -> list[str]:
    found = [
        f"--lustre has {name}={given[name][:60]}, which is not {meant}."
        for name, (pattern, meant) in _NAMES.items()
        if not re.fullmatch(pattern, given[name])
    ]
    try:
        ipaddress.ip_address(given["ip"])
    except ValueError:
        found.append(f"--lustre has ip={given['ip'][:60]}, which is not an IP address.")
    return found


def dns_peerings(texts: Sequence[str] | None) -> list[dict[str, str]]:
    """`PscInterfaceConfig.dns_peering_configs` from the given texts.

    Args:
        texts: each of the form DOMAIN.=PROJECT/NETWORK.

    Raises:
        UserError: lists everything that is wrong.
    """
    found, problems = [], []
    for text in texts or ():
        match = _PEERING.fullmatch(text.strip())
        if match is None:
            problems.append(
                f"--dns-peering {text[:100]!r} is not of the form DOMAIN.=PROJECT/NETWORK, as in "
                "corp.example.com.=my-project/my-network."
            )
            continue
        fields = {"domain": match["domain"], "target_project": match["project"], "target_network": match["network"]}
        found.append(fields)
    if problems:
        raise UserError.of_all(problems)
    return found
