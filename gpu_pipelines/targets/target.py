"""What a pipeline builder knows of the place where its pipeline will run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gpu_pipelines import __version__

# The image that all steps run in where they run in containers.
STEPS_IMAGE = f"gpu-pipelines/steps:{__version__}"


@dataclass(frozen=True)
class LocalPlan:
    """Accelerators of this machine: `cpu:N`, or empty for all GPUs, else two CPU processes."""

    spec: str = ""


class Target(Protocol):
    """Places the steps of a pipeline."""

    def place(self, component: Any, plan: LocalPlan | None) -> Callable[..., Any]:
        """The component to use in the pipeline instead of `component`.

        Args:
            component: a KFP component.
            plan: the accelerators it needs; None for a step that needs none.
        """
        ...
