"""Checks of a request for `train_script_evaluate_upload`; see `train_evaluate_upload`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu_pipelines.component_interface.parameter import Parameter, parameters_in
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag import train_evaluate_upload as one_training
from gpu_pipelines.dag.places import Place, places_of_script
from gpu_pipelines.training.script.settings import ScriptSettings

#: The settings of the steps whose parameters are fields of `advanced`, by the output of `check_request` that has these.
#: The script's parameters have inputs of their own.
SETTINGS = {name: settings for name, settings in one_training.SETTINGS.items() if name != "train"}
#: The pipeline's names for those parameters of the script whose own names would be unclear among the others.
_CALLED = {"arguments": "script_arguments", "environment": "script_environment"}


def script_parameters() -> dict[str, Parameter]:
    """The parameters of the script, by their names in the pipeline; the script itself is required."""
    found = {_CALLED.get(name, name): each for name, each in parameters_in(ScriptSettings).items()}
    return {**found, "script": replace(found["script"], optional=False)}


def of_script(values: Mapping[str, Any]) -> dict[str, Any]:
    """The pipeline's values for the script, by their names in its step."""
    names = {name: _CALLED.get(name, name) for name in parameters_in(ScriptSettings)}
    return {name: values[called] for name, called in names.items() if called in values}


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the parameters of a run, without reading any data.

    Args:
        arguments: all parameters. The first step of a run does not get those of the script; its own step checks them.
    """
    script = fields_from(ScriptSettings, of_script(arguments))
    return one_training.problems_around(arguments, lambda task: script.problems() if "script" in arguments else [])


def places(arguments: Mapping[str, Any]) -> list[Place]:
    """The places that a run reads from and writes to."""
    script = fields_from(ScriptSettings, of_script(arguments))
    return [*one_training.places(arguments), *places_of_script(script)]


def problems_of_access(arguments: Mapping[str, Any], storage: str = "") -> list[str]:
    """What cannot be opened from this process; the script only if its parameters are known."""
    script = fields_from(ScriptSettings, of_script(arguments))
    return one_training.problems_of_access_around(
        arguments, storage, lambda prepare: script.problems_here() if "script" in arguments else []
    )
