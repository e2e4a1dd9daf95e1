"""Train again if there is new data, compare with the champion on the same rows, and send a message."""

from typing import Any

from kfp import dsl

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.component_interface.parameter import Parameter
from gpu_pipelines.components.data_watch.component import check_for_new_data
from gpu_pipelines.dag.parameters import inputs_from, with_parameters
from gpu_pipelines.dag.placement import Placement
from gpu_pipelines.dag.steps import STEPS as TRAINING_STEPS
from gpu_pipelines.dag.steps import Steps, pipeline_parameters
from gpu_pipelines.dag.telling import Telling

_NOTIFY = Parameter(
    "List",
    optional=False,
    text="One to three e-mail addresses that are told how each run ended: succeeded or failed, and where it is.",
)
#: The components, by the output of `check_request` with those of their parameters that are fields of `advanced`.
STEPS = {**TRAINING_STEPS, "watch": check_for_new_data}


def build(
    target: Placement, plan: AcceleratorPlan | None, evaluation: AcceleratorPlan | None = None, *, task: str = ""
) -> Any:
    """Builds the pipeline.

    Args:
        target: where it will run; places each step, and says who is told of the end.
        plan: accelerators of the training; None for those that the target has.
        evaluation: those of the evaluation; None for one GPU of the training's.
        task: the one that the pipeline is for; empty to leave that a parameter.

    Returns:
        A KFP pipeline (`kfp.dsl.GraphComponent`).
    """
    look = target.place(check_for_new_data, None)
    steps = Steps(target, plan, evaluation, task=task)
    mail = None if target.recipients else target.notification
    telling = Telling(target, "scheduled_retraining", plan, steps.outcome_uri, mail)
    parameters = {**pipeline_parameters(target, STEPS, task), **telling.parameters}
    if mail is not None:
        parameters["notify"] = _NOTIFY

    @dsl.pipeline(name="scheduled-retraining")
    @with_parameters(parameters, target.note)
    def scheduled_retraining(values: dict[str, Any]) -> None:
        """Trains again if the data has changed since the champion, and promotes the new model only if it is better."""
        with telling.around(values, "retraining"):
            checked = steps.checked("scheduled_retraining", values)
            looked = look(
                source_fingerprint=checked.outputs["source_fingerprint"],
                advanced=checked.outputs["watch"],
                **inputs_from(check_for_new_data, steps.direct(values)),
            )
            with dsl.If(looked.outputs["Output"] == True, name="new-data"):  # noqa: E712 (KFP makes a condition of it)
                found = {name: looked.outputs[name] for name in ("model", "tokenizer", "image_processor")}
                steps.joined({**values, **found}, checked)

    return scheduled_retraining
