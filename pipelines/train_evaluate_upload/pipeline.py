"""Prepare data, train, evaluate every checkpoint, upload the best one."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Artifact, Model

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.artifacts.digests import digest_of_files, digest_of_program
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.dag.parameters import with_parameters
from gpu_pipelines.dag.steps import STEPS, Steps, pipeline_parameters
from gpu_pipelines.dag.train_evaluate_upload import (
    problems,
    problems_here,
    problems_on_kubeflow,
    problems_on_vertex,
)
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.registry import model_name_for, open_registry
from gpu_pipelines.targets.target import Target

__all__ = ["build", "problems", "problems_here", "problems_on_kubeflow", "problems_on_vertex", "state_here"]


class Outputs(NamedTuple):
    """What a run of the pipeline leaves."""

    data_report: HTML
    training_report: HTML
    evaluation_report: HTML
    best_checkpoint: Model
    # On Vertex AI it is a google.VertexModel.
    model: Artifact


def build(
    target: Target, plan: AcceleratorPlan | None, evaluation: AcceleratorPlan | None = None, *, task: str = ""
) -> Any:
    """Builds the pipeline.

    Args:
        target: where it will run; places each step.
        plan: accelerators of the training; None for those that the target has.
        evaluation: those of the evaluation; None for one GPU of the training's.
        task: the one that the pipeline is for; empty to leave that a parameter.

    Returns:
        A KFP pipeline (`kfp.dsl.GraphComponent`).
    """
    steps = Steps(target, plan, evaluation, task=task)

    @dsl.pipeline(name="train-evaluate-upload")
    @with_parameters(pipeline_parameters(target, STEPS, task), target.note)
    def train_evaluate_upload(values: dict[str, Any]) -> Outputs:
        """Checks the request, prepares data, trains a model, evaluates every checkpoint and uploads the best one.

        Returns:
            data_report: Rows, rejected rows by reason, class balance and examples.
            training_report: Curves of loss, learning rate and throughput.
            evaluation_report: Verdict, checkpoints over time, test metrics, confusion matrix and mistakes.
            best_checkpoint: The best checkpoint in Hugging Face layout with evaluation.json and a model card.
            model: The version in the registry.
        """
        tasks = steps.joined(values, steps.checked("train_evaluate_upload", values))
        return Outputs(
            data_report=tasks.prepared.outputs["report"],
            training_report=tasks.trained.outputs["training_report"],
            evaluation_report=tasks.evaluated.outputs["report"],
            best_checkpoint=tasks.evaluated.outputs["best_checkpoint"],
            model=tasks.uploaded.outputs["model"],
        )

    return train_evaluate_upload


def state_here(arguments: Mapping[str, Any]) -> dict[str, str]:
    """For each step that reads more than its inputs on this machine, a digest of that; the key for `--reuse`."""
    program = digest_of_program()
    source = arguments["source"]
    champion = open_registry(arguments["registry"]).champion(arguments["model_name"] or model_name_for(source))
    seen = f"{champion.place} {champion.digest}" if champion else ""
    if scoring := fields_from(EvaluationSettings, arguments).scoring_file:
        seen += digest_of_files(scoring.resolve())
    return {"prepare-data": program, "train-model": program, "evaluate-checkpoints": program + seen}
