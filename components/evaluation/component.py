"""The KFP interface of `evaluate_checkpoints`."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Artifact, ClassificationMetrics, Dataset, Input, Metrics, Model, Output

from gpu_pipelines.targets.target import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def evaluate_checkpoints(
    dataset: Input[Dataset],
    checkpoints: Input[Artifact],
    best_checkpoint: Output[Model],
    evaluation: Output[Metrics],
    confusion: Output[ClassificationMetrics],
    report: Output[HTML],
    gates: list = ["accuracy>=0.9"],  # noqa: B006 (KFP takes the default from here)
    select_by: str = "accuracy",
    registry: str = "./registry",
    model_name: str = "",
) -> NamedTuple("Outputs", [("passed", bool)]):  # type: ignore[valid-type]
    """Scores every checkpoint on val, the best one on test, and compares it with the champion on the same rows.

    Args:
        dataset: Made by prepare_data; the one the checkpoints were trained on.
        checkpoints: Made by train_model.
        gates: Conditions on test metrics that a champion must meet, such as accuracy>=0.95. Metrics: accuracy,
            macro_f1, macro_recall, min_recall, log_loss.
        select_by: Metric on val that chooses the best checkpoint, and on test compares it with the champion.
        registry: Directory of the model registry whose champion is compared with.
        model_name: Name of the model in the registry; empty to name it after the source of the data.

    Returns:
        best_checkpoint: The best checkpoint in Hugging Face layout with evaluation.json and a model card.
        evaluation: Test metrics of the best checkpoint.
        confusion: Its confusion matrix on test.
        report: Verdict, checkpoints over time, test metrics with intervals, confusion matrix and mistakes.
        passed: True if all gates passed and the model is at least as good as the champion.
    """
    from gpu_pipelines.components.evaluation.step import run

    return (run(locals()),)
