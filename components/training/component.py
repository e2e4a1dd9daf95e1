"""The KFP interface of `train_model`."""

from kfp import dsl
from kfp.dsl import HTML, Artifact, Dataset, Input, Metrics, Output

from gpu_pipelines.targets.target import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def train_model(
    dataset: Input[Dataset],
    checkpoints: Output[Artifact],
    training_metrics: Output[Metrics],
    training_report: Output[HTML],
    model: str = "convnext-micro",
    epochs: float = 15.0,
    max_steps: int = 0,
    learning_rate: float = 0.004,
    weight_decay: float = 0.05,
    warmup_steps: int = 30,
    gradient_clip: float = 1.0,
    global_batch_size: int = 64,
    checkpoint_every_steps: int = 0,
    seed: int = 0,
    checkpoint_uri: str = "",
) -> None:
    """Trains a model on all GPUs of the machine, or on CPU processes, and writes checkpoints on the way.

    Args:
        dataset: Made by prepare_data.
        model: Architecture to train from scratch (convnext-micro, convnext-tiny, vit-micro, vit-base), or pretrained
            weights to start from: a directory in Hugging Face layout or a hub id such as organisation/name.
        epochs: Passes over the training rows; not used where max_steps is given.
        max_steps: Optimizer steps; 0 to go by epochs.
        learning_rate: Peak learning rate, reached after the warm-up; a cosine brings it down to 0.
        weight_decay: AdamW's decoupled weight decay, on matrices only.
        warmup_steps: Steps of linear warm-up, at most a tenth of all steps.
        gradient_clip: Largest norm of the gradient; 0 does not clip.
        global_batch_size: Rows per optimizer step over all processes; a multiple of their number.
        checkpoint_every_steps: Optimizer steps between two checkpoints; 0 for about eight in all.
        seed: Of the initial weights, the order of the rows, and dropout.
        checkpoint_uri: Directory of the checkpoints, the same over restarts of one run: training continues from the
            newest checkpoint there. Empty for the artifact's own place.

    Returns:
        checkpoints: Folders step-00000100 and so on, each with its checkpoint.json, and metrics.jsonl.
        training_metrics: Steps, final loss, throughput and number of processes.
        training_report: Curves of loss, learning rate and throughput.
    """
    from gpu_pipelines.components.training.step import run

    run(locals())
