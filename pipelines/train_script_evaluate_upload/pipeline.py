"""Prepare data, train by a script of your own, evaluate every checkpoint, upload the best one."""

from typing import Any

from kfp import dsl

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.components.training_script.component import run_training_script
from gpu_pipelines.dag.parameters import with_parameters
from gpu_pipelines.dag.placement import Placement
from gpu_pipelines.dag.steps import STEPS, Steps, pipeline_parameters
from gpu_pipelines.dag.telling import Telling
from gpu_pipelines.dag.train_script_evaluate_upload import of_script, script_parameters
from gpu_pipelines.pipelines.train_evaluate_upload.pipeline import Outputs, outputs_of

#: The components of which parameters stand in the form, and in `advanced`, as in the other pipelines.
_OTHERS = {name: component for name, component in STEPS.items() if name != "train"}


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
    steps = Steps(target, plan, evaluation, task=task, training=run_training_script)
    parameters = {**pipeline_parameters(target, _OTHERS, task), **script_parameters()}
    # An empty one would be the artifact's own place, which a second attempt at the step does not have.
    del parameters["checkpoint_uri"]

    telling = Telling(target, "train_script_evaluate_upload", plan, steps.outcome_uri)
    parameters |= telling.parameters

    @dsl.pipeline(name="train-script-evaluate-upload")
    @with_parameters(parameters, target.note, has_outputs=telling.keeps_outputs)
    def train_script_evaluate_upload(values: dict[str, Any]) -> Outputs:
        """Checks the request, prepares data, trains by a script, evaluates every checkpoint and uploads the best one.

        Returns:
            data_report: Rows, rejected rows by reason, class balance and examples.
            training_report: Curves of the metrics that the script wrote.
            evaluation_report: Verdict, checkpoints over time, test metrics, confusion matrix and mistakes.
            best_checkpoint: The best checkpoint in Hugging Face layout with evaluation.json and a model card.
            model: The version in the registry.
        """
        with telling.around(values, "training"):
            checked = steps.checked("train_script_evaluate_upload", values)
            tasks = steps.joined({**values, **of_script(values)}, checked)
        return outputs_of(tasks)

    return train_script_evaluate_upload
