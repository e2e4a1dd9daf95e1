"""All components by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gpu_pipelines.component_interface.parameter import Parameter, parameters_in

# The folder of each component, by its name; in the order of their parameters in a pipeline's form. A folder with the
# name of a component would be imported in its place.
COMPONENTS = {
    "prepare_data": "data_prep",
    "train_model": "training",
    "tune_model": "tuning",
    "run_training_script": "training_script",
    "evaluate_checkpoints": "evaluation",
    "upload_model": "model_upload",
    "check_for_new_data": "data_watch",
    "check_for_drift": "drift",
    "predict_batch": "prediction",
    "check_request": "request",
    "send_message": "notifications",
}
# Components that only this project places: of a search by a service, put around it by a target, and `check_prediction`.
UNLISTED = {"begin_study": "study_begin", "finish_study": "study_finish", "check_prediction": "check_prediction"}
# The dataclass that declares the parameters of each, as `module:class`.
_SETTINGS = {
    "prepare_data": "gpu_pipelines.data.settings:PrepareSettings",
    "train_model": "gpu_pipelines.training.settings:TrainingSettings",
    "tune_model": "gpu_pipelines.tuning.settings:TuningSettings",
    "begin_study": "gpu_pipelines.tuning.settings:TuningSettings",
    "finish_study": "gpu_pipelines.tuning.service.settings:FinishSettings",
    "run_training_script": "gpu_pipelines.training.script.settings:ScriptSettings",
    "evaluate_checkpoints": "gpu_pipelines.evaluation.settings:EvaluationSettings",
    "upload_model": "gpu_pipelines.registry.upload:UploadSettings",
    "check_for_new_data": "gpu_pipelines.data.watch:WatchSettings",
    "check_for_drift": "gpu_pipelines.drift.settings:DriftSettings",
    "predict_batch": "gpu_pipelines.prediction.settings:PredictSettings",
    "check_prediction": "gpu_pipelines.prediction.settings:PredictSettings",
    "check_request": "gpu_pipelines.dag.request:Request",
    "send_message": "gpu_pipelines.notifications.settings:MessageSettings",
}
# It is a pipeline of its own, whose form has its own parameters.
_PREDICTS = "predict_batch"


def load_component(name: str) -> Any:
    """The KFP component of that name."""
    folder = {**COMPONENTS, **UNLISTED}[name]
    return getattr(import_module(f"gpu_pipelines.components.{folder}.component"), name)


def settings_of(name: str) -> type[Any]:
    """The dataclass that declares the parameters of the component of that name; needs no compiler of KFP."""
    module, _, settings = _SETTINGS[name].partition(":")
    found: type[Any] = getattr(import_module(module), settings)
    return found


def flagged_parameters() -> dict[str, Parameter]:
    """The parameters that have a command line option of their own, by name."""
    return {
        name: declared
        for component in COMPONENTS
        for name, declared in parameters_in(settings_of(component)).items()
        if declared.flag
    }


def common_parameters() -> dict[str, str]:
    """The parameters that have inputs of their own in forms of trainings, each with the first component that has it."""
    found: dict[str, str] = {}
    for component in COMPONENTS:
        for name, declared in parameters_in(settings_of(component)).items() if component != _PREDICTS else ():
            if declared.common:
                found.setdefault(name, component)
    return found
