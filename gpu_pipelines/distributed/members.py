"""The machines that work on a step together, and which of them this is, from variables of the platform.

The first of these that is set decides:

1. `CLUSTER_SPEC`, which Vertex AI sets on every replica of a custom job;
2. `TF_CONFIG`, of TensorFlow, set by Vertex AI and by Kubeflow's TFJob;
3. torchrun's variables: `PET_NNODES`, `PET_NODE_RANK`, `PET_MASTER_ADDR`, `PET_MASTER_PORT` as Kubeflow Trainer sets
   them, or the same without `PET_` (`NNODES`, `NODE_RANK` or `GROUP_RANK`, `MASTER_ADDR`, `MASTER_PORT`);
4. none of them: one machine.

If another of them is set as well, with another number of nodes or another rank, that is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.errors import UserError

CLUSTER_SPEC = "CLUSTER_SPEC"
TF_CONFIG = "TF_CONFIG"

# Seconds for which a node waits for the others at the start.
JOIN_TIMEOUT = "GPU_PIPELINES_JOIN_TIMEOUT"

DEFAULT_PORT = 29500  # torchrun's
DEFAULT_JOIN_SECONDS = 900.0

_TRAINING_POOLS = ("workerpool0", "workerpool1")
_OTHER_POOLS = {
    "workerpool2": "parameter servers or the Reduction Server",
    "workerpool3": "evaluators",
}
_CHIEFS = ("chief", "master")
_TORCHRUN_NAMES = {
    "nodes": ("PET_NNODES", "NNODES"),
    "node_rank": ("PET_NODE_RANK", "NODE_RANK", "GROUP_RANK"),
    "rank_0_address": ("PET_MASTER_ADDR", "MASTER_ADDR"),
    "rank_0_port": ("PET_MASTER_PORT", "MASTER_PORT"),
}


@dataclass(frozen=True)
class Cluster:
    """The machines that work together, as one of them sees them.

    Attributes:
        nodes: number of machines.
        node_rank: which of them this is, from 0; only rank 0 writes files.
        addresses: `host:port` of each node, by rank; empty if only rank 0's is known.
        rank_0_address: host name or address of rank 0.
        rank_0_port: port on which the others reach rank 0.
        join_seconds: how long a node waits for the others at the start.
    """

    nodes: int = 1
    node_rank: int = 0
    addresses: tuple[str, ...] = ()
    rank_0_address: str = "localhost"
    rank_0_port: int = DEFAULT_PORT
    join_seconds: float = DEFAULT_JOIN_SECONDS

    @property
    def is_rank_0(self) -> bool:
        return self.node_rank == 0

    def name_of(self, rank: int) -> str:
        """A node in messages, such as "node 1 (10.0.0.2)"."""
        if self.addresses:
            return f"node {rank} ({split_address(self.addresses[rank])[0]})"
        return f"node {rank} ({self.rank_0_address})" if rank == 0 else f"node {rank}"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Cluster:
        """Reads the variables named above.

        Args:
            environment: such as `os.environ`.

        Raises:
            UserError: a variable cannot be read, two contradict each other, or this replica does not train.
        """
        join_seconds = _seconds(environment)
        if int(environment.get("LOCAL_WORLD_SIZE") or 1) > 1:
            raise UserError(
                "This process was started by torchrun (LOCAL_WORLD_SIZE is set), once for each GPU.",
                "Start the step once per node, without torchrun: it starts its processes itself.",
            )
        found = [
            (name, read(environment, join_seconds))
            for name, read in (
                (CLUSTER_SPEC, _from_cluster_spec),
                (TF_CONFIG, _from_tf_config),
                ("torchrun's variables", _from_torchrun),
            )
        ]
        said = [(name, cluster) for name, cluster in found if cluster is not None]
        if not said:
            return cls(join_seconds=join_seconds)
        (first, chosen), others = said[0], said[1:]
        for name, other in others:
            if (other.nodes, other.node_rank) != (chosen.nodes, chosen.node_rank):
                raise UserError(
                    f"{first} says node {chosen.node_rank} of {chosen.nodes}, "
                    f"but {name} node {other.node_rank} of {other.nodes}.",
                    f"Remove {name} from the environment, or make them agree.",
                )
        return chosen


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`; an IPv6 address is in square brackets."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"{address!r} is not an address of the form host:port.")
    return host.strip("[]"), int(port)


def _seconds(environment: Mapping[str, str]) -> float:
    text = environment.get(JOIN_TIMEOUT, "")
    try:
        seconds = float(text) if text else DEFAULT_JOIN_SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise UserError(f"{JOIN_TIMEOUT} is {text!r}.", "Give seconds, above 0 and at most 86400.")
    return seconds


def _from_cluster_spec(environment: Mapping[str, str], join_seconds: float) -> Cluster | None:
    spec = _json(environment, CLUSTER_SPEC)
    if spec is None:
        return None
    pools, task = _cluster_and_task(spec, CLUSTER_SPEC)
    kind, index = task
    if kind in _OTHER_POOLS:
        raise UserError(
            f"This replica is in {kind}, which is for {_OTHER_POOLS[kind]} and does not train.",
            "Give only workerpool0 and workerpool1 this step's image.",
        )
    return _of(CLUSTER_SPEC, [(pool, pools.get(pool, [])) for pool in _TRAINING_POOLS], kind, index, join_seconds)


def _from_tf_config(environment: Mapping[str, str], join_seconds: float) -> Cluster | None:
    config = _json(environment, TF_CONFIG)
    # TensorFlow takes a TF_CONFIG without a cluster as one machine.
    if config is None or not (isinstance(config, dict) and config.get("cluster")):
        return None
    groups, task = _cluster_and_task(config, TF_CONFIG)
    kind, index = task
    if kind in ("ps", "evaluator"):
        what = "a parameter server" if kind == "ps" else "an evaluator"
        raise UserError(
            f"This replica is {what} by its TF_CONFIG and does not train.",
            "Use a strategy without them, such as MultiWorkerMirroredStrategy.",
        )
    order = [(name, groups.get(name, [])) for name in (*_CHIEFS, "worker")]
    return _of(TF_CONFIG, order, kind, index, join_seconds)


def _from_torchrun(environment: Mapping[str, str], join_seconds: float) -> Cluster | None:
    given = {field: _first(environment, names) for field, names in _TORCHRUN_NAMES.items()}
    name, nodes_text = given["nodes"]
    # The same number twice is how torchrun writes a fixed number of nodes in its elastic form.
    fewest, _, most = nodes_text.partition(":")
    nodes = _whole(name, fewest, 1) if nodes_text else 1
    if most and most != fewest:
        raise UserError(f"{name} is {nodes_text!r}.", "The number of nodes is fixed here: give one number.")
    rank_name, rank_text = given["node_rank"]
    if nodes == 1:
        if rank_text not in ("", "0"):
            raise UserError(f"{rank_name} is {rank_text!r}, but NNODES is not set.", "Set NNODES.")
        return Cluster(join_seconds=join_seconds) if nodes_text else None
    address_name, address = given["rank_0_address"]
    for missing, value in ((rank_name, rank_text), (address_name, address)):
        if not value:
            raise UserError(
                f"{name} is {nodes}, but {missing} is not set.", "Set NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT."
            )
    rank = _whole(rank_name, rank_text, 0)
    if rank >= nodes:
        raise UserError(f"{rank_name} is {rank}, but there are {nodes} nodes.", f"Ranks go from 0 to {nodes - 1}.")
    port_name, port_text = given["rank_0_port"]
    port = _whole(port_name, port_text, 1) if port_text else DEFAULT_PORT
    return Cluster(nodes, rank, (), address, port, join_seconds)


def _json(environment: Mapping[str, str], name: str) -> Any:
    text = environment.get(name, "")
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{name} is not JSON: {error}.") from None


def _cluster_and_task(content: Any, name: str) -> tuple[dict[str, list[str]], tuple[str, int]]:
    """The addresses by group, and group and index of this replica."""
    try:
        groups = {str(group): [str(address) for address in at or []] for group, at in content["cluster"].items()}
        return groups, (str(content["task"]["type"]), int(content["task"]["index"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(
            f"{name} is not understood: {json.dumps(content)[:200]}.",
            'It holds {"cluster": {group: [addresses]}, "task": {"type": group, "index": number}}.',
        ) from None


def _of(name: str, groups: list[tuple[str, list[str]]], kind: str, index: int, join_seconds: float) -> Cluster:
    """The cluster with the nodes of `groups`, in order; this is number `index` of the group `kind`."""
    members = [(group, number) for group, addresses in groups for number in range(len(addresses))]
    if (kind, index) not in members:
        raise UserError(f"{name} says that this is {kind} {index}, which is not in its cluster.")
    addresses = tuple(address for _, group in groups for address in group)
    host, port = split_address(addresses[0])
    for address in addresses:
        split_address(address)
    return Cluster(len(members), members.index((kind, index)), addresses, host, port, join_seconds)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    """The first of some variables that is set, with its value; the plain name and "" if none is set."""
    for name in names:
        if environment.get(name):
            return name, environment[name]
    return names[1], ""


def _whole(name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) < 65536):
        raise UserError(f"{name} is {text!r}.", f"Give a whole number from {least}.")
    return int(text)
