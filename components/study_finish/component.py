"""The KFP interface of `finish_study`."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Artifact, Dataset, Input, Metrics, Output

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def finish_study(
    dataset: Input[Dataset],
    checkpoints: Output[Artifact],
    training_metrics: Output[Metrics],
    training_report: Output[HTML],
    folder: Output[Artifact],
    study: str = "",
    job: str = "",
    tracking: str = "none",
) -> NamedTuple("Outputs", [("best_parameters", dict)]):  # type: ignore[valid-type]
    """Takes stock of a search whose trials a service has started, and trains longer with the best parameters if asked.

    Args:
        dataset: The dataset of the trials.
        study: Directory of the study, local or gs://, in which each trial has left a record.
        job: Job that ran the trials; its value is not used, but it must have ended before.
        tracking: Tracker that shows the run, as for check_request; none for no tracker.

    Returns:
        checkpoints: Checkpoints of the trial with the lowest loss, or of the longer training, as of train_model.
        training_metrics: Lowest loss on val, trials, rows and seconds, dollars, and the best parameters.
        training_report: Trials, importance of the parameters, parallel coordinates, curves, and what it cost.
        folder: The directory of the study: its request, result.json, and each trial with its curve and its checkpoints.
        best_parameters: The parameters that were searched for, with the values of the best trial.
    """
    from gpu_pipelines.tuning.service.step import FinishSettings, run_finish

    return run_finish(
        FinishSettings(
            study=study,
            job=job,
        ),
        dataset=dataset,
        checkpoints=checkpoints,
        training_metrics=training_metrics,
        training_report=training_report,
        folder=folder,
        tracking=tracking,
    )
