"""Checks of a request for `batch_prediction`, which commands make before it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_pipelines.component_interface.parameter import Parameter, parameters_in
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag.advanced import ADVANCED, fields_of_advanced, parameter_with
from gpu_pipelines.dag.places import DATA, OUTPUT, REGISTRY, Place
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError, said_by
from gpu_pipelines.prediction.settings import PredictSettings

if TYPE_CHECKING:
    from gpu_pipelines.accelerators import AcceleratorPlan
    from gpu_pipelines.dag.placement import Placement

#: The settings of the step, whose parameters that are not common are fields of `advanced`.
SETTINGS: Mapping[str, type] = {"predict": PredictSettings}
#: What stands in the place of a text that `prepare_data` has.
_AS_FOR = "As for prepare_data."


def parameters_for(target: Placement) -> dict[str, Parameter]:
    """The parameters of the pipeline: the common ones of its step, `advanced` with all others, and the target's own."""
    common = {name: _in_words(name, each) for name, each in parameters_in(PredictSettings).items() if each.common}
    common["registry"] = replace(common["registry"], default=target.registry)
    fields = {name: _in_words(name, each) for name, each in fields_of_advanced(SETTINGS.values()).items()}
    return {**common, ADVANCED: parameter_with(fields, {"encoding": "latin-1"}), **target.parameters}


def _in_words(name: str, parameter: Parameter) -> Parameter:
    """A parameter as the form shows it, without references to `prepare_data`."""
    if not parameter.text.startswith(_AS_FOR):
        return parameter
    text = parameters_in(PrepareSettings)[name].text
    return replace(parameter, text=text + parameter.text.removeprefix(_AS_FOR))


def require_one_node(plan: AcceleratorPlan | None) -> None:
    """Refuses several nodes, each of which would predict everything. Raises `UserError`."""
    if plan is not None and plan.nodes > 1:
        raise UserError(
            f"batch_prediction runs on one machine, not on {plan.nodes}.",
            "Leave out --nodes and take a machine with more GPUs; or name a Ray cluster with -p ray_address=….",
        )


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the parameters of a run, without reading any data."""
    return fields_from(PredictSettings, arguments).problems()


def places(arguments: Mapping[str, Any]) -> list[Place]:
    """The places that a run reads from and writes to."""
    settings = fields_from(PredictSettings, arguments)
    found = [Place("source", settings.source, DATA), Place("registry", settings.registry, REGISTRY)]
    if settings.image_root:
        found.append(Place("image_root", settings.image_root, DATA))
    if settings.output and not settings.is_table:
        found.append(Place("output", settings.output, OUTPUT))
    return found


def problems_of_access(arguments: Mapping[str, Any], storage: str = "") -> list[str]:
    """What cannot be opened from this process, which should be where the step runs.

    Args:
        arguments: all parameters.
        storage: where the run leaves its artifacts; empty for this machine.
    """
    # Compiling a pipeline needs none of the packages of the steps, but checking models does.
    from gpu_pipelines.prediction.check import require_possible

    settings = fields_from(PredictSettings, arguments)
    return said_by(lambda: require_possible(settings))
