"""Prepare data, search for the parameters of a training, evaluate the checkpoints of the best, upload one."""

from dataclasses import replace
from typing import Any

from kfp import dsl

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.cost import dollars_per_hour
from gpu_pipelines.components.tuning.component import tune_model
from gpu_pipelines.dag.parameters import with_parameters
from gpu_pipelines.dag.placement import Placement
from gpu_pipelines.dag.steps import STEPS as TRAINING_STEPS
from gpu_pipelines.dag.steps import Steps, pipeline_parameters
from gpu_pipelines.dag.telling import Telling
from gpu_pipelines.pipelines.train_evaluate_upload.pipeline import Outputs, outputs_of

#: The components, by the output of `check_request` with those of their parameters that are fields of `advanced`.
STEPS = {**TRAINING_STEPS, "train": tune_model}


def build(
    target: Placement, plan: AcceleratorPlan | None, evaluation: AcceleratorPlan | None = None, *, task: str = ""
) -> Any:
    """Builds the pipeline.

    Args:
        target: where it will run; places each step, and the search in a way of its own if it has one.
        plan: accelerators of the search; None for those that the target has.
        evaluation: those of the evaluation; None for one GPU of the search's.
        task: the one that the pipeline is for; empty to leave that a parameter.

    Returns:
        A KFP pipeline (`kfp.dsl.GraphComponent`).
    """
    steps = Steps(target, plan, evaluation, task=task, training=tune_model)
    parameters = pipeline_parameters(target, STEPS, task)
    parameters["space"] = replace(parameters["space"], optional=False)
    price = dollars_per_hour(plan) if plan else None
    parameters["dollars_per_hour"] = replace(parameters["dollars_per_hour"], default=price or 0.0)

    telling = Telling(target, "tune_train_evaluate_upload", plan, steps.outcome_uri)
    parameters |= telling.parameters

    @dsl.pipeline(name="tune-train-evaluate-upload")
    @with_parameters(parameters, target.note, has_outputs=telling.keeps_outputs)
    def tune_train_evaluate_upload(values: dict[str, Any]) -> Outputs:
        """Checks the request, prepares data, searches for parameters, evaluates the best training and uploads it.

        Returns:
            data_report: Rows, rejected rows by reason, class balance and examples.
            training_report: Trials, importance of the parameters, parallel coordinates, curves, and what it cost.
            evaluation_report: Verdict, checkpoints over time, test metrics, confusion matrix and mistakes.
            best_checkpoint: The best checkpoint in Hugging Face layout with evaluation.json and a model card.
            model: The version in the registry.
        """
        with telling.around(values, "training"):
            tasks = steps.joined(values, steps.checked("tune_train_evaluate_upload", values))
        return outputs_of(tasks)

    return tune_train_evaluate_upload
