"""What can be wrong with a request for `train_evaluate_upload`: asked by commands, and by the first step of each run.

This module is imported in a step, where KFP's compiler is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpu_pipelines.artifacts.checkpoint_store import require_same_training
from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.names import READ_ANYWHERE
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.registry import is_local, open_registry
from gpu_pipelines.registry.upload import UploadSettings
from gpu_pipelines.tasks.tasks import task_problems
from gpu_pipelines.training.settings import TrainingSettings

#: The settings of the steps, by the output of `check_request` with those of them that are fields of `advanced`.
SETTINGS = {
    "prepare": PrepareSettings,
    "train": TrainingSettings,
    "evaluate": EvaluationSettings,
    "upload": UploadSettings,
}


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the parameters of a run, without reading any data.

    Args:
        arguments: all parameters; and `processes`, where it is known how many will train.
    """
    prepare = fields_from(PrepareSettings, arguments)
    training = fields_from(TrainingSettings, arguments)
    evaluation = fields_from(EvaluationSettings, arguments)
    # Of a task that does not exist nothing is known, and prepare says so already.
    task = "" if task_problems(prepare.task) else prepare.task
    found = [
        *prepare.problems(),
        *training.problems(task),
        *training.problems_on(arguments.get("processes", 0)),
    ]
    return [*found, *evaluation.problems(task)] if task else found


def problems_here(arguments: Mapping[str, Any], storage: str = "", data_nodes: int = 1) -> list[str]:
    """What is wrong with the parameters of a run whose steps run where this is asked: what they could not open.

    Args:
        arguments: all parameters.
        storage: where the run leaves its artifacts; empty for this machine.
        data_nodes: machines that prepare the data.
    """
    prepare = fields_from(PrepareSettings, arguments)
    found = [*prepare.problems_on(data_nodes), *prepare.problems_here()]
    found += fields_from(TrainingSettings, arguments).problems_here(prepare.task)
    found += fields_from(EvaluationSettings, arguments).problems_here()
    registry, near = arguments["registry"], storage if is_remote(storage) else ""
    if near and is_local(registry):
        found.append(_lost(registry))
    else:
        found += _said_by(lambda: open_registry(registry, near).require_writable())
    if uri := arguments.get("checkpoint_uri"):
        settings = fields_from(TrainingSettings, arguments)
        found += _said_by(lambda: require_same_training(uri, settings.configuration_hash()))
    return found


def _said_by(look: Callable[[], None]) -> list[str]:
    """What a look at something says is wrong with it."""
    try:
        look()
    except UserError as error:
        return [f"{error.problem} {error.remedy}".strip()]
    return []


def _lost(registry: str) -> str:
    return (
        f"The registry {registry} would be a directory of the container, lost at its end. Give registry=vertex:// for "
        "Vertex AI Model Registry."
    )


def problems_on_vertex(arguments: Mapping[str, Any], data_nodes: int = 1) -> list[str]:
    """What is wrong with the parameters of a run on Vertex AI: whatever is on this machine alone, or would be lost.

    Args:
        arguments: all parameters.
        data_nodes: machines that prepare the data.
    """
    prepare, evaluation = fields_from(PrepareSettings, arguments), fields_from(EvaluationSettings, arguments)
    found = prepare.problems_on(data_nodes)
    registry = evaluation.registry
    for name, source in prepare.places.items():
        if not source.startswith(READ_ANYWHERE) and not _in_mounted_bucket(source):
            found.append(
                f"The {name} {source} is not where Vertex AI can read it. Copy it into a bucket and give "
                "gs://BUCKET/FOLDER."
            )
    if is_local(registry):
        found.append(_lost(registry))
    model = fields_from(TrainingSettings, arguments).model
    places = {"model": model, "tokenizer": prepare.tokenizer, "checkpoint_uri": arguments.get("checkpoint_uri", "")}
    for name, value in places.items():
        if value.startswith((".", "/", "~")) and not _in_mounted_bucket(value):
            found.append(f"{name} is {value}, a directory of this machine. Copy it into a bucket: {_MOUNTED}BUCKET/….")
    scoring = evaluation.scoring_file
    if scoring is not None and not _in_mounted_bucket(str(scoring)):
        found.append(
            f"scoring_function is in {scoring}, a file of this machine. Copy it into a bucket, {_MOUNTED}BUCKET/…, or "
            "add it to the image and give package.module:function."
        )
    return found


#: Where Vertex AI mounts the buckets of a project in the containers of its jobs.
_MOUNTED = "/gcs/"


def _in_mounted_bucket(path: str) -> bool:
    return path.startswith(_MOUNTED) and path != _MOUNTED


def problems_on_kubeflow(arguments: Mapping[str, Any], mounted: str) -> list[str]:
    """What is wrong with the parameters of a run on Kubeflow: whatever is on this machine alone, or would be lost.

    Args:
        arguments: all parameters.
        mounted: where a claim is mounted in the steps, with a slash at the end; empty if none is.
    """

    def is_there(path: str) -> bool:
        return bool(mounted) and path.startswith(mounted) and path != mounted

    found = []
    prepare, evaluation = fields_from(PrepareSettings, arguments), fields_from(EvaluationSettings, arguments)
    where = f"the mounted claim, {mounted}…" if mounted else "a bucket, gs://BUCKET/FOLDER"
    for name, source in prepare.places.items():
        if not source.startswith(READ_ANYWHERE) and not is_there(source):
            found.append(f"The {name} {source} is not where the pods can read it. Copy it into {where}.")
    if is_local(evaluation.registry) and not is_there(evaluation.registry):
        found.append(
            f"The registry {evaluation.registry} would be a directory of the container, lost at its end. Give "
            + (f"registry={mounted}registry, or " if mounted else "")
            + "registry=vertex://PROJECT/REGION for Vertex AI Model Registry."
        )
    paths = {"model": fields_from(TrainingSettings, arguments).model, "tokenizer": prepare.tokenizer}
    paths["checkpoint_uri"] = arguments.get("checkpoint_uri", "")
    if evaluation.scoring_file is not None:
        paths["scoring_function"] = str(evaluation.scoring_file)
    for name, value in paths.items():
        if value.startswith((".", "/", "~")) and not is_there(value):
            found.append(f"{name} is {value}, which is on this machine. Copy it into {where}, or add it to the image.")
    return found
