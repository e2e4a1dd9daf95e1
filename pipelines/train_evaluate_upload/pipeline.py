"""Prepare data, train, evaluate every checkpoint, upload the best one."""

from typing import Any, NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Artifact, Model

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.dag.parameters import with_parameters
from gpu_pipelines.dag.placement import Placement
from gpu_pipelines.dag.steps import STEPS, Steps, Tasks, pipeline_parameters
from gpu_pipelines.dag.telling import Telling


class Outputs(NamedTuple):
    """What a run of the pipeline leaves."""

    data_report: HTML
    training_report: HTML
    evaluation_report: HTML
    best_checkpoint: Model
    # On Vertex AI it is a google.VertexModel.
    model: Artifact


def outputs_of(tasks: Tasks) -> Outputs:
    """What the steps leave, whichever of them trained."""
    return Outputs(
        data_report=tasks.prepared.outputs["report"],
        training_report=tasks.trained.outputs["training_report"],
        evaluation_report=tasks.evaluated.outputs["report"],
        best_checkpoint=tasks.evaluated.outputs["best_checkpoint"],
        model=tasks.uploaded.outputs["model"],
    )


def build(
    target: Placement, plan: AcceleratorPlan | None, evaluation: AcceleratorPlan | None = None, *, task: str = ""
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
    telling = Telling(target, "train_evaluate_upload", plan, steps.outcome_uri)
    parameters = {**pipeline_parameters(target, STEPS, task), **telling.parameters}

    @dsl.pipeline(name="train-evaluate-upload")
    @with_parameters(parameters, target.note, has_outputs=telling.keeps_outputs)
    def train_evaluate_upload(values: dict[str, Any]) -> Outputs:
        """Checks the request, prepares data, trains a model, evaluates every checkpoint and uploads the best one.

        Returns:
            data_report: Rows, rejected rows by reason, class balance and examples.
            training_report: Curves of loss, learning rate and throughput.
            evaluation_report: Verdict, checkpoints over time, test metrics, confusion matrix and mistakes.
            best_checkpoint: The best checkpoint in Hugging Face layout with evaluation.json and a model card.
            model: The version in the registry.
        """
        with telling.around(values, "training"):
            tasks = steps.joined(values, steps.checked("train_evaluate_upload", values))
        return outputs_of(tasks)

    return train_evaluate_upload
