"""Predict the rows of a source with a registered model, once or by the clock."""

from typing import Any, NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Dataset

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.components.check_prediction.component import check_prediction
from gpu_pipelines.components.prediction.component import predict_batch
from gpu_pipelines.dag.batch_prediction import parameters_for, require_one_node
from gpu_pipelines.dag.parameters import inputs_from, with_parameters
from gpu_pipelines.dag.placement import Placement
from gpu_pipelines.dag.telling import Telling


class Outputs(NamedTuple):
    """What the pipeline leaves."""

    predictions: Dataset
    report: HTML


def build(
    target: Placement, plan: AcceleratorPlan | None, evaluation: AcceleratorPlan | None = None, *, task: str = ""
) -> Any:
    """Builds the pipeline.

    Args:
        target: where it will run; places the steps.
        plan: accelerators of the prediction; None for those that the target has.
        evaluation: not used: nothing is evaluated.
        task: not used: the model says what it is for.

    Returns:
        A KFP pipeline (`kfp.dsl.GraphComponent`).

    Raises:
        UserError: the plan has several nodes.
    """
    require_one_node(plan)
    check, predict = target.place(check_prediction, None), target.place(predict_batch, plan)
    telling = Telling(target, "batch_prediction", plan)

    @dsl.pipeline(name="batch-prediction")
    @with_parameters({**parameters_for(target), **telling.parameters}, target.note, has_outputs=telling.keeps_outputs)
    def batch_prediction(values: dict[str, Any]) -> Outputs:
        """Predicts the rows of a source with a registered model.

        Returns:
            predictions: Files of predictions, rejected.jsonl, and predictions.json, which names the model.
            report: How many rows were predicted and rejected, by reason and by class.
        """
        with telling.around(values, "prediction"):
            checked = check(**inputs_from(check_prediction, values))
            made = predict(**inputs_from(predict_batch, values)).after(checked)
        return Outputs(made.outputs["predictions"], made.outputs["report"])

    return batch_prediction
