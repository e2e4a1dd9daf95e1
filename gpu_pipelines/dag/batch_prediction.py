"""What can be wrong with a request for `batch_prediction`: asked by commands, before it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_pipelines.component_interface.parameter import Parameter, parameters_in
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag.places import DATA, DIRECTORY, REGISTRY, Place
from gpu_pipelines.errors import UserError
from gpu_pipelines.prediction.settings import PredictSettings

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.dag.placement import Placement

#: The settings of the steps whose parameters are fields of `advanced`: all of them stand one by one.
SETTINGS: Mapping[str, type] = {}


def parameters_for(target: Placement) -> dict[str, Parameter]:
    """The parameters of the pipeline: those of its step, and the target's own."""
    found = dict(parameters_in(PredictSettings))
    return {**found, "registry": replace(found["registry"], default=target.registry), **target.parameters}


def require_one_node(plan: AcceleratorPlan | None) -> None:
    """Refuses several nodes, each of which would predict everything. Raises `UserError`."""
    if plan is not None and plan.nodes > 1:
        raise UserError(
            f"batch_prediction runs on one machine, and {plan.nodes} are asked for.",
            "Leave out --nodes and take a machine with more GPUs; or name a Ray cluster with -p ray_address=….",
        )


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the parameters of a run, without reading any data."""
    return fields_from(PredictSettings, arguments).problems()


def places(arguments: Mapping[str, Any]) -> list[Place]:
    """The places that a run reads and writes."""
    settings = fields_from(PredictSettings, arguments)
    found = [Place("source", settings.source, DATA), Place("registry", settings.registry, REGISTRY)]
    if settings.image_root:
        found.append(Place("image_root", settings.image_root, DATA))
    return found if settings.is_table else [*found, Place("output", settings.output, DIRECTORY)]


def problems_of_access(arguments: Mapping[str, Any], storage: str = "") -> list[str]:
    """What cannot be opened from where this is asked, which is to be where the step runs.

    Args:
        arguments: all parameters.
        storage: where the run leaves its artifacts; empty for this machine.
    """
    # Compiling a pipeline needs none of the packages of the steps; looking at models does.
    from gpu_pipelines.prediction.model import registered_version

    settings = fields_from(PredictSettings, arguments)
    try:
        registered_version(settings.registry, settings.model_name, settings.model_version)
    except UserError as error:
        return [f"{error.problem} {error.remedy}".strip()]
    return []
