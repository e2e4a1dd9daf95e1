"""Prepare data, train, evaluate every checkpoint, upload the best one."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Model

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.evaluation.settings import EvaluationSettings
from gpu_pipelines.components.training.settings import TrainingSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.pipelines.parameters import with_parameters
from gpu_pipelines.pipelines.steps import Steps, parameters_of_steps
from gpu_pipelines.recipes.tasks import TASKS
from gpu_pipelines.registry import is_local, model_name_for, open_registry
from gpu_pipelines.sources.fingerprint import source_fingerprint
from gpu_pipelines.sources.names import READ_ANYWHERE
from gpu_pipelines.step_interface import fields_from
from gpu_pipelines.targets.local import digest_of_files, digest_of_program
from gpu_pipelines.targets.target import Target


class Outputs(NamedTuple):
    """What a run of the pipeline leaves."""

    data_report: HTML
    training_report: HTML
    evaluation_report: HTML
    best_checkpoint: Model
    model: Model


def build(target: Target, plan: AcceleratorPlan | None) -> Any:
    """Builds the pipeline.

    Args:
        target: where it will run; places each step.
        plan: accelerators of the steps that use them; None for those that the target has.

    Returns:
        A KFP pipeline (`kfp.dsl.GraphComponent`).
    """
    steps = Steps(target, plan)

    @dsl.pipeline(name="train-evaluate-upload")
    @with_parameters(parameters_of_steps(target))
    def train_evaluate_upload(values: dict[str, Any]) -> Outputs:
        """Prepares data, trains a model, evaluates every checkpoint and uploads the best one.

        Returns:
            data_report: Rows, rejected rows by reason, class balance and examples.
            training_report: Curves of loss, learning rate and throughput.
            evaluation_report: Verdict, checkpoints over time, test metrics, confusion matrix and mistakes.
            best_checkpoint: The best checkpoint in Hugging Face layout with evaluation.json and a model card.
            model: The version in the registry.
        """
        tasks = steps.joined(values)
        return Outputs(
            data_report=tasks.prepared.outputs["report"],
            training_report=tasks.trained.outputs["training_report"],
            evaluation_report=tasks.evaluated.outputs["report"],
            best_checkpoint=tasks.evaluated.outputs["best_checkpoint"],
            model=tasks.uploaded.outputs["model"],
        )

    return train_evaluate_upload


def problems(arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the parameters of a run, without reading any data."""
    prepare = fields_from(PrepareSettings, arguments)
    training = fields_from(TrainingSettings, arguments)
    evaluation = fields_from(EvaluationSettings, arguments)
    found = [*prepare.problems(), *training.problems(prepare.task)]
    # Of a task that does not exist nothing is known, and prepare says so already.
    return [*found, *evaluation.problems(prepare.task)] if prepare.task in TASKS else found


def problems_here(arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the parameters of a run on this machine: data that is not here, a registry not writable."""
    found = fields_from(PrepareSettings, arguments).problems_here()
    found += fields_from(EvaluationSettings, arguments).problems_here()
    try:
        open_registry(arguments["registry"]).require_writable()
    except UserError as error:
        found.append(f"{error.problem} {error.remedy}")
    return found


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
        found.append(
            f"The registry {registry} would be a directory of the container, lost at its end. Give registry=vertex:// "
            "for Vertex AI Model Registry."
        )
    model = fields_from(TrainingSettings, arguments).model
    for name, value in (("model", model), ("tokenizer", prepare.tokenizer)):
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
    if evaluation.scoring_file is not None:
        paths["scoring_function"] = str(evaluation.scoring_file)
    for name, value in paths.items():
        if value.startswith((".", "/", "~")) and not is_there(value):
            found.append(f"{name} is {value}, which is on this machine. Copy it into {where}, or add it to the image.")
    return found


def state_here(arguments: Mapping[str, Any]) -> dict[str, str]:
    """For each step that reads more than its inputs on this machine, a digest of that; the key for `--reuse`."""
    program = digest_of_program()
    source = arguments["source"]
    sources = fields_from(PrepareSettings, arguments).sources.values()
    data = "".join(source_fingerprint(place, arguments["billing_project"]) for place in sources)
    champion = open_registry(arguments["registry"]).champion(arguments["model_name"] or model_name_for(source))
    seen = f"{champion.place} {champion.info['created']}" if champion else ""
    if scoring := fields_from(EvaluationSettings, arguments).scoring_file:
        seen += digest_of_files(scoring.resolve())
    return {"prepare-data": program + data, "train-model": program, "evaluate-checkpoints": program + seen}
