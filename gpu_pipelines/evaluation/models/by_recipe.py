"""The models in a folder that a training has written, or that are in Hugging Face layout there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint import (
    CONFIGURATION,
    MARKER,
    Checkpoint,
    complete_checkpoints,
    read_configuration,
)
from gpu_pipelines.artifacts.copied_checkpoints import damaged_weights
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.evaluation.models.candidates import MOST_NAMED, Candidate, left_in
from gpu_pipelines.evaluation.models.hugging_face import damaged_file, models_in, why_none, without_model

#: The name of a model that lies beside the folders of checkpoints, and not in one of its own.
_SAVED_BESIDE = "model"


def foreign_models(directory: Path) -> bool:
    """Whether a directory holds models in Hugging Face layout instead of a training's checkpoints."""
    return directory.is_dir() and not (directory / CONFIGURATION).is_file() and bool(models_in(directory))


def _require_written(directory: Path) -> None:
    """Checks that a training has written there what can be scored.

    Raises:
        UserError: it is another format, or nothing.
    """
    if not directory.is_dir() or (directory / CONFIGURATION).is_file():
        return
    if (directory / MARKER).is_file():
        raise UserError(f"{directory} is one checkpoint of a training.", f"Give the folder of all: {directory.parent}.")
    # As `artifacts/checkpoints` of a run, with a folder for the run.
    trainings = [path.parent for depth in ("*", "*/*") for path in directory.glob(f"{depth}/{CONFIGURATION}")]
    if trainings:
        problem = f"{directory} has no checkpoints itself: it is a folder of trainings."
        raise UserError(problem, f"Give one of them: {some_of(sorted(map(str, trainings)), MOST_NAMED)}.")
    problem = f"{directory} has no checkpoint that can be scored: the training left {left_in(directory)} there."
    raise UserError(
        f"{problem} {why_none(directory)}".rstrip(),
        "A script writes to GPU_PIPELINES_CHECKPOINTS, and each model in Hugging Face layout (config.json and "
        "*.safetensors), or its adapters in peft's layout, in a folder such as checkpoint-100. For a format of its own "
        "give scoring_function. You can also add what is missing to the folders: with run --resume the training is not "
        "repeated.",
    )


def configuration_in(directory: Path) -> dict[str, Any]:
    """Settings and devices of the training that wrote a folder of checkpoints.

    Raises:
        UserError: they do not name a model.
    """
    configuration = read_configuration(directory)
    settings = configuration.get("settings")
    if not isinstance(settings, dict) or "model" not in settings:
        raise UserError(f"The training.json of {directory} does not name the model that was trained.")
    return {"settings": settings, "devices": configuration.get("devices", {})}


def trained_candidates(checkpoints: list[Checkpoint], has_ema: bool) -> list[Candidate]:
    """The weights of each checkpoint, and behind them their moving average where there is one."""
    return [
        Candidate(c.path, step=c.info.step, epoch=c.info.epoch, rehearsal=c.info.rehearsal, ema=ema)
        for c in checkpoints
        for ema in (False, True)[: 1 + has_ema]
    ]


def foreign_candidates(directory: Path) -> list[Candidate]:
    """The models in Hugging Face layout in a folder; those that are damaged are passed over, with a warning.

    Raises:
        UserError: none is whole.
    """
    found, models = [], models_in(directory)
    for path, number in models:
        if damaged := damaged_file(path):
            print(f"warning: passing over {path.name}: {damaged} is damaged or missing", flush=True)
        else:
            # The folder of a training is named after its run.
            is_beside = path == directory and len(models) > 1
            found.append(Candidate(path, step=number, called=_SAVED_BESIDE if is_beside else ""))
    for why, names in without_model(directory).items():
        print(f"warning: passing over {some_of(names, MOST_NAMED)}: {why}", flush=True)
    if not found:
        raise UserError(f"{directory} has no model whose weights are whole.", "Train for at least one checkpoint more.")
    return found


def good_checkpoints(directory: Path, dataset: Dataset, training: str) -> list[Checkpoint]:
    """The checkpoints of a training on a dataset; those that are damaged are passed over, with a warning.

    Args:
        directory: of the checkpoints.
        dataset: that they are scored on.
        training: its name, where there are several; else empty.

    Raises:
        UserError: there is none, or they were trained on other data or for another task.
    """
    _require_written(directory)
    configuration_in(directory)
    ours, theirs = dataset.manifest.task, read_configuration(directory).get("task", dataset.manifest.task)
    if theirs != ours:
        raise UserError(
            f"The training {training or directory} is for {theirs}, and the dataset for {ours}.",
            "Give the dataset it was trained on.",
        )
    good, before = [], f"{training}/" if training else ""
    for checkpoint in complete_checkpoints(directory):
        if checkpoint.info.dataset_fingerprint != dataset.manifest.fingerprint:
            raise UserError(
                f"The checkpoint {before}{checkpoint.name} was trained on another dataset, so these val and test rows "
                "may be among its training rows.",
                "Give the dataset it was trained on.",
            )
        if damaged := damaged_weights(checkpoint):
            print(f"warning: passing over {before}{checkpoint.name}: {damaged} is damaged", flush=True)
        else:
            good.append(checkpoint)
    if not good:
        raise UserError(f"{directory} has no complete checkpoint.", "Train for at least one checkpoint interval.")
    return good
