"""The components, and what places them in a pipeline of one's own: `from gpu_pipelines.components import …`.

A component is imported when it is asked for; none of them needs what its step needs to run, such as torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.accelerate import accelerate
    from gpu_pipelines.component_interface.image import STEPS_IMAGE
    from gpu_pipelines.components.data_prep.component import prepare_data
    from gpu_pipelines.components.data_watch.component import check_for_new_data
    from gpu_pipelines.components.drift.component import check_for_drift
    from gpu_pipelines.components.evaluation.component import evaluate_checkpoints
    from gpu_pipelines.components.model_upload.component import upload_model
    from gpu_pipelines.components.notifications.component import send_message
    from gpu_pipelines.components.prediction.component import predict_batch
    from gpu_pipelines.components.request.component import check_request
    from gpu_pipelines.components.training.component import train_model
    from gpu_pipelines.components.training_script.component import run_training_script
    from gpu_pipelines.components.tuning.component import tune_model

__all__ = [
    "STEPS_IMAGE",
    "accelerate",
    "check_for_drift",
    "check_for_new_data",
    "check_request",
    "evaluate_checkpoints",
    "predict_batch",
    "prepare_data",
    "run_training_script",
    "send_message",
    "train_model",
    "tune_model",
    "upload_model",
]
#: What is no component, and where it is.
_OTHERS = {"STEPS_IMAGE": "image", "accelerate": "accelerate"}


def __getattr__(name: str) -> Any:
    if name in _OTHERS:
        return getattr(import_module(f"gpu_pipelines.component_interface.{_OTHERS[name]}"), name)
    from gpu_pipelines.component_interface.catalog import COMPONENTS, load_component

    if name in COMPONENTS:
        return load_component(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
