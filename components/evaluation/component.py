"""The KFP interface of `evaluate_checkpoints`."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Artifact, ClassificationMetrics, Dataset, Input, Metrics, Model, Output

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def evaluate_checkpoints(
    dataset: Input[Dataset],
    best_checkpoint: Output[Model],
    evaluation: Output[Metrics],
    confusion: Output[ClassificationMetrics],
    report: Output[HTML],
    checkpoints: Input[Artifact] | None = None,
    more_checkpoints: Input[Artifact] | None = None,
    collected: Input[list[Artifact]] | None = None,
    gates: list = [],  # noqa: B006 (KFP takes the default from here)
    select_by: str = "",
    scoring_function: str = "",
    average_last: int = 0,
    slice_by: str = "",
    registry: str = "./registry",
    model_name: str = "",
    accept_shift: bool = False,
    tracking: str = "none",
    advanced: dict = {},  # noqa: B006
) -> NamedTuple("Outputs", [("passed", bool)]):  # type: ignore[valid-type]
    """Scores every checkpoint on val, the best one on test, and compares it with the champion on the same rows.

    Args:
        dataset: Made by prepare_data; the one the checkpoints were trained on.
        checkpoints: Made by train_model or run_training_script; or a model in Hugging Face layout, or a folder of
            them, with safetensors weights.
        more_checkpoints: Those of another training, which are ranked together with them.
        collected: Those of any number of other trainings, which are ranked together with them: after a ParallelFor,
            dsl.Collected(train.outputs["checkpoints"]). A checkpoint is then called TRAINING/step-NUMBER.
        gates: Conditions on test metrics that a champion must meet, such as accuracy>=0.95. Metrics of the
            classification tasks: accuracy, macro_f1, macro_recall, min_recall, roc_auc, ece (calibration error),
            log_loss, and per_class.recall.min (also precision, f1; also mean); of causal_lm: loss, perplexity,
            bits_per_byte, token_accuracy, completion_accuracy; of regression: rmse, mae, r2, coverage; of
            token_classification: f1, precision, recall, macro_f1, token_accuracy; of preference: accuracy, margin,
            loss; of tasks of your own: loss, perplexity, token_accuracy. Of all, slices.METRIC.min and .max, and
            latency_p95_ms and latency_p50_ms of one row on the device of this step. better_than_champion by 0.005 at
            95% asks for a difference whose 95% interval lies above 0.005; by and at can be left out. Empty for the
            default of the task: accuracy>=0.9 for image_classification, none for others.
        select_by: Metric on val that chooses the best checkpoint, and on test compares it with the champion; empty for
            the first metric of the task. Of metrics of a scoring_function more is better, unless a minus stands
            before the name, as in -error_rate.
        scoring_function: A function of your own for checkpoints in a format of your own, as package.module:function or
            path/to/file.py:function. It is called with the path of a checkpoint, the path of the dataset and the name
            of a split, and returns a dict of metrics. Checkpoints are the folders or files step-NUMBER,
            checkpoint-NUMBER and epoch-NUMBER.
        average_last: How many of the last checkpoints are averaged into one more candidate, 2 or more; 0 for none.
        slice_by: Column whose values are scored apart as well; prepare_data must have kept it. Empty for none.
        registry: Model registry whose champion is compared with: a directory, vertex://PROJECT/REGION for Vertex AI
            Model Registry, vertex:// alone for that of the job's own project and region, or mlflow:https://HOST for
            that of an MLflow server.
        model_name: Name of the model in the registry; empty to name it after the source of the data.
        accept_shift: Whether the data is meant to be another than the champion was evaluated on. Otherwise no model
            passes where the champion's own score has fallen by more than chance allows, where classes or columns that
            it knew are gone, or where the shares of the classes have moved.
        tracking: Tracker that shows the run, as for check_request; none tells nobody.
        advanced: Parameters by name that win over those above, as check_request hands them on.

    Returns:
        best_checkpoint: The best checkpoint in Hugging Face layout with evaluation.json, a model card and
            examples.json, a few inputs with the model's outputs; if a scoring_function chose it, with its own files
            instead.
        evaluation: Test metrics of the best checkpoint.
        confusion: Its confusion matrix on test; empty for a task without classes.
        report: Verdict, checkpoints over time, test metrics with intervals beside the champion's, slices, the worst
            rows, and for a classifier confusion matrix and calibration.
        passed: True if all gates passed, the model is better than the champion, and the data has not shifted.
    """
    from gpu_pipelines.evaluation.step import EvaluationSettings, run

    return run(
        EvaluationSettings(
            gates=gates,
            select_by=select_by,
            scoring_function=scoring_function,
            average_last=average_last,
            slice_by=slice_by,
            registry=registry,
            model_name=model_name,
            accept_shift=accept_shift,
        ),
        dataset=dataset,
        best_checkpoint=best_checkpoint,
        evaluation=evaluation,
        confusion=confusion,
        report=report,
        checkpoints=checkpoints,
        more_checkpoints=more_checkpoints,
        collected=collected,
        tracking=tracking,
        advanced=advanced,
    )
