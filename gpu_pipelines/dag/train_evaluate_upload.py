"""Checks of a request for `train_evaluate_upload`, made by commands, and by the first step of each run.

This module is imported in a step, which lacks KFP's compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_pipelines.artifacts.checkpoint_store import require_same_training
from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag.advanced import problems_of_names
from gpu_pipelines.dag.places import DATA, DIRECTORY, FILE, REGISTRY, Place, lost_registry
from gpu_pipelines.data.default_tokenizer import TRAIN, tokenizer_for
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import said_by
from gpu_pipelines.evaluation.benchmark_request import places_of_benchmarks
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.registry import is_local, open_registry
from gpu_pipelines.registry.upload import UploadSettings
from gpu_pipelines.tasks.tasks import task_problems
from gpu_pipelines.training.settings import TrainingSettings

#: The settings of the steps, by the output of `check_request` that has their fields of `advanced`.
SETTINGS = {
    "prepare": PrepareSettings,
    "train": TrainingSettings,
    "evaluate": EvaluationSettings,
    "upload": UploadSettings,
}


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the parameters of a run, without reading any data.

    Args:
        arguments: all parameters; and, if known, `processes`, the number that will train, and `data_nodes`, the number
            of machines that prepare the data.
    """
    training = fields_from(TrainingSettings, arguments)
    return problems_around(
        arguments, lambda task: [*training.problems(task), *training.problems_on(arguments.get("processes", 0))]
    )


def problems_around(arguments: Mapping[str, Any], of_training: Callable[[str], Sequence[str]]) -> list[str]:
    """Everything that is wrong with the parameters of all steps, whichever component trains.

    Args:
        arguments: all parameters.
        of_training: returns what is wrong with those of the training, for a task; an empty task is not known.
    """
    prepare = fields_from(PrepareSettings, arguments)
    evaluation = fields_from(EvaluationSettings, arguments)
    # Nothing is known about a task that does not exist, and prepare reports that already.
    task = "" if task_problems(prepare.task) else prepare.task
    found = [*prepare.problems(), *prepare.problems_on_nodes(arguments.get("data_nodes", 1)), *of_training(task)]
    return [*found, *problems_of_names(task), *evaluation.problems(task)] if task else found


def places(arguments: Mapping[str, Any]) -> list[Place]:
    """The places that a run reads from and writes to."""
    prepare, evaluation = fields_from(PrepareSettings, arguments), fields_from(EvaluationSettings, arguments)
    found = [Place(name, source, DATA) for name, source in prepare.places.items()]
    found.append(Place("registry", evaluation.registry, REGISTRY))
    directories = {
        "model": fields_from(TrainingSettings, arguments).model,
        "tokenizer": prepare.tokenizer,
        "image_processor": prepare.image_processor,
        "checkpoint_uri": arguments.get("checkpoint_uri", ""),
    }
    found += [Place(name, value, DIRECTORY) for name, value in directories.items()]
    found += [Place("benchmarks", place, DIRECTORY) for place in places_of_benchmarks(evaluation.benchmarks)]
    if evaluation.scoring_file is not None:
        found.append(Place("scoring_function", str(evaluation.scoring_file), FILE))
    found += [Place(name, place, FILE) for name, place in evaluation.texts.places]
    return found


def problems_of_access(arguments: Mapping[str, Any], storage: str = "") -> list[str]:
    """What cannot be opened from this process, which should be where the steps run.

    Args:
        arguments: all parameters.
        storage: where the run leaves its artifacts; empty for this machine.
    """
    training = fields_from(TrainingSettings, arguments)
    found = problems_of_access_around(arguments, storage, lambda prepare: problems_of_model(training, prepare))
    if not found and not training.recipe:
        from gpu_pipelines.data.source_check import model_problems_here

        prepare = fields_from(PrepareSettings, arguments)
        found += model_problems_here(prepare, training.model, training.augmentation)
    if uri := arguments.get("checkpoint_uri"):
        task = fields_from(PrepareSettings, arguments).task
        shaping, configured = training.resolved(task).shaping(), training.possible_hashes(task)
        fixed_in, step = training.fixed_before_rows_are_known, training.resume_from_step
        found += said_by(lambda: require_same_training(uri, shaping, configured, fixed_in, step))
    return found


def problems_of_model(training: TrainingSettings, prepare: PrepareSettings) -> list[str]:
    """What is wrong with a model here, for the rows that would be prepared for it."""
    tokenizer = tokenizer_for(prepare.tokenizer, prepare.task, training.model)
    return training.problems_here(
        prepare.task, prepare.sequence_length, "" if tokenizer == TRAIN else tokenizer, packing=prepare.packing
    )


def problems_of_access_around(
    arguments: Mapping[str, Any], storage: str, of_training: Callable[[PrepareSettings], Sequence[str]]
) -> list[str]:
    """The same for all steps, whichever component trains.

    Args:
        arguments: all parameters.
        storage: where the run leaves its artifacts; empty for this machine.
        of_training: returns what the training cannot open, for settings of the preparation.
    """
    # Compiling a pipeline needs none of the packages of the steps, but checking data does.
    from gpu_pipelines.data import source_check

    prepare = fields_from(PrepareSettings, arguments)
    found = [*source_check.problems_here(prepare), *of_training(prepare)]
    found += fields_from(EvaluationSettings, arguments).problems_here()
    registry, near = arguments["registry"], storage if is_remote(storage) else ""
    if near and is_local(registry):
        found.append(lost_registry(registry, "registry=vertex:// for Vertex AI Model Registry"))
    else:
        found += said_by(lambda: open_registry(registry, near).require_writable())
    return found
