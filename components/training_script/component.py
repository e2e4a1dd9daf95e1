"""The KFP interface of `run_training_script`."""

from kfp import dsl
from kfp.dsl import HTML, Artifact, Dataset, Input, Metrics, Output

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def run_training_script(
    dataset: Input[Dataset],
    checkpoints: Output[Artifact],
    training_metrics: Output[Metrics],
    training_report: Output[HTML],
    script: str = "",
    code: str = "",
    arguments: list = [],  # noqa: B006 (KFP takes the default from here)
    launcher: str = "torchrun",
    processes_per_node: int = 0,
    environment: dict = {},  # noqa: B006
    idle_stop: float = 30.0,
    checkpoint_uri: str = "",
    tracking: str = "none",
) -> None:
    """Runs a training script of your own on all GPUs of one or more machines, or on CPU processes.

    Args:
        dataset: Made by prepare_data, or any directory; its path is in GPU_PIPELINES_DATASET.
        script: A .py file, local or gs://, or -m package.module as on Python's command line. With code, a path inside
            it.
        code: Folder or .tar.gz, local or gs://, that holds the script and what it imports. Empty for none.
        arguments: Arguments of the script, texts and numbers, as after the script on torchrun's command line.
            {checkpoints}, {dataset} and {metrics} in them become the paths that the script also gets in environment
            variables.
        launcher: torchrun; tensorflow (one process per node, with TF_CONFIG); horovod (one node, by horovodrun); or
            plain (one process per node, nothing set).
        processes_per_node: Processes on each node, for torchrun and horovod; 0 for one per GPU, or two without a GPU.
        environment: Environment variables for the script, by name.
        idle_stop: Minutes after which a training is stopped, with a checkpoint, if its GPUs, or its processes on CPUs,
            do nothing; the step then fails. 0 never.
        checkpoint_uri: Directory of the checkpoints, the same over restarts of one run, so that the script can continue
            from what is there. Empty for the artifact's own place.
        tracking: Tracker that shows the run, as for check_request; none for no tracker.

    Returns:
        checkpoints: What the script wrote to GPU_PIPELINES_CHECKPOINTS, which is also AIP_CHECKPOINT_DIR.
        training_metrics: Last value of each metric that the script wrote to GPU_PIPELINES_METRICS, and the duration.
        training_report: Curves of these metrics.
    """
    from gpu_pipelines.training.script.step import ScriptSettings, run

    run(
        ScriptSettings(
            script=script,
            code=code,
            arguments=arguments,
            launcher=launcher,
            processes_per_node=processes_per_node,
            environment=environment,
            idle_stop=idle_stop,
        ),
        dataset=dataset,
        checkpoints=checkpoints,
        training_metrics=training_metrics,
        training_report=training_report,
        checkpoint_uri=checkpoint_uri,
        tracking=tracking,
    )
