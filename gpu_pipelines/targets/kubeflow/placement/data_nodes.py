"""Data preparation on several nodes of GKE: their number, and the way to buy them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpu_pipelines.dag.placement import PREPARES
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.data_nodes import SPOT, STANDARD, problems_of_data_nodes
from gpu_pipelines.targets.kubeflow.placement.pods import SPOT_LABEL, PodNeeds, Toleration
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import SPEC_ARGUMENT, TrainJobSpec

#: Share of a node's memory for exchange between workers.
_SHARED_MEMORY_GIB = 8


@dataclass(frozen=True)
class DataNodes:
    """The nodes that prepare the data.

    Attributes:
        nodes: number of nodes.
        strategy: the way to buy them, one of `STRATEGIES`.
    """

    nodes: int = 1
    strategy: str = STANDARD

    @property
    def is_spot(self) -> bool:
        """Whether they may be taken away."""
        return self.strategy == SPOT

    def require(self) -> None:
        """Checks them.

        Raises:
            UserError: lists what is wrong.
        """
        number, bought = problems_of_data_nodes(self.nodes, self.strategy, "nodes")
        if problems := [*number, *bought]:
            raise UserError.of_all(problems)

    def needs(self, of_one: PodNeeds) -> PodNeeds:
        """The needs of the pod on each node.

        Args:
            of_one: the needs of the step's pod if it is alone.
        """
        shared = replace(of_one, shared_memory_gib=_SHARED_MEMORY_GIB)
        if not self.is_spot:
            return shared
        return replace(shared, node_selector={SPOT_LABEL: "true"}, tolerations=(Toleration(SPOT_LABEL, "true"),))


def data_nodes_of(spec: Mapping[str, Any]) -> int:
    """The number of nodes on which a compiled pipeline prepares its data."""
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    arguments = executors.get(f"exec-{PREPARES}", {}).get("container", {}).get("args", [])
    return TrainJobSpec.loads(arguments[1]).nodes if arguments[:1] == [SPEC_ARGUMENT] else 1
