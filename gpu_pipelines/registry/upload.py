"""Uploads a model to a registry; only a better model becomes the champion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines import __version__
from gpu_pipelines.artifacts.checkpoint import MARKER, complete_checkpoints
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.artifacts.exported_model import require_exported_model
from gpu_pipelines.artifacts.integrity import require_undamaged
from gpu_pipelines.artifacts.mlflow_server import MLFLOW_FILE
from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.component_interface.default_registry import DEFAULT_REGISTRY
from gpu_pipelines.component_interface.parameter import parameter
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import RegisteredVersion, Registry, is_local, open_registry, registry_problems
from gpu_pipelines.registry.registered import (
    CHAMPION,
    COMPARED_WITH,
    SOURCE,
    TRACKED_RUN,
    VERSION,
    DamagedVersionError,
    Promotion,
    ServesModels,
)
from gpu_pipelines.registry.smoke_test import SmokeTest


@dataclass(frozen=True)
class UploadSettings:
    """The parameters of `upload_model`."""

    registry: str = parameter(
        DEFAULT_REGISTRY,
        "Directory of the model registry, created if it does not exist; vertex://PROJECT/REGION for Vertex AI Model "
        "Registry, vertex:// alone for the registry of the job's own project and region; or mlflow:https://HOST for "
        "that of an MLflow server.",
        common=True,
    )
    model_name: str = parameter(
        "",
        "Name of the model in the registry: lower-case letters, digits, dots, dashes, underscores. Empty for the name "
        "that the evaluation used; a model without evaluation.json needs one.",
        common=True,
    )
    serving_image: str = parameter(
        "",
        "Container that serves the model, for Vertex AI Model Registry. Empty for the image of this step, for vLLM if "
        "it is a language model of 1 GiB or more, and for Hugging Face's inference container if this project's server "
        "does not serve the model.",
    )
    pipeline_job: str = parameter(
        "",
        "Name of the pipeline job that this is a step of, to be recorded with the version.",
        filled_in=True,
    )
    encryption_key: str = parameter(
        "",
        "Full name of the Cloud KMS key with which Vertex AI encrypts its copy of the model. Empty for the key of the "
        "project's settings, if there is one.",
        filled_in=True,
    )
    smoke_test: bool = parameter(
        True,
        "Whether to start this project's prediction server on the uploaded files and compare its predictions with the "
        "evaluated ones, before any alias moves. A version with another container is marked as not tested.",
    )

    def problems(self) -> list[str]:
        """All problems with the values, each with what to do."""
        return registry_problems(self.registry, self.model_name)


def upload_model(
    settings: UploadSettings, model_directory: Path, passed: bool, place: str = "", tracked_run: str = ""
) -> RegisteredVersion:
    """Adds a version and moves the aliases.

    A model without an evaluation by this project never replaces a champion with one: it is not known which is better.

    Args:
        settings: registry and name.
        model_directory: an exported model with its evaluation; or any files of a model, without evaluation.json.
        passed: whether all gates passed, including the comparison with the champion; for a model that was not
            evaluated, whether it may be the champion if no evaluated model is.
        place: where the step leaves its artifacts; if it is in a bucket, models of Vertex AI are kept there.
        tracked_run: key of the tracker's run of this step; empty for none.

    Returns:
        The version added, with its aliases; or the existing version if it is the same model.

    Raises:
        UserError: the directory is not an exported model, the model has no name, the registry cannot be written, or
            the uploaded model does not predict as it was evaluated. No version is left then.
    """
    if problems := settings.problems():
        raise UserError.of_all(problems)
    evaluation = _evaluation_in(model_directory)
    name = settings.model_name or (evaluation.model_name if evaluation else "")
    if not name:
        raise UserError(f"The model in {model_directory} has no {EVALUATION}, so it has no name.", "Give model_name.")
    registry = _registry(settings, near=place if is_remote(place) else "")
    before = registry.champion(name)
    compared_with = _compared_with(evaluation, name, before)
    version = registry.add(
        name,
        model_directory,
        {
            **_told_of(evaluation, compared_with),
            "passed": passed,
            "gpu_pipelines": __version__,
            "pipeline_job": settings.pipeline_job,
            **({TRACKED_RUN: tracked_run} if tracked_run else {}),
        },
        _promotion(evaluation, compared_with, before, passed),
        _smoke_test(settings, model_directory, registry) if settings.smoke_test else None,
    )
    if evaluation and not version.added:
        _note_source(version, evaluation)
    told = f"{version.name} version {version.number} ({', '.join(version.aliases)})"
    same = f"nothing was added: {told} is the same model, byte for byte"
    print(f"added {told}" if version.added else same, flush=True)
    champion = registry.champion(name)
    if evaluation and passed and champion and champion.number not in (version.number, compared_with):
        print(
            f"warning: the champion is now version {champion.number}, which this model was not compared with; "
            f"it stays. Run the evaluation again with model_name={name} and registry={settings.registry} to compare.",
            flush=True,
        )
    return version


def _note_source(version: RegisteredVersion, evaluation: Evaluation) -> None:
    try:
        version.note_source(evaluation.source_fingerprint)
    except (UserError, OSError) as error:  # a bucket may forbid to replace files, and a disk be full
        print(f"warning: scheduled_retraining will train on this source again. {error}", flush=True)


def _registry(settings: UploadSettings, near: str) -> Registry:
    """The registry of the settings.

    Args:
        settings: the settings of the step.
        near: the step's place for artifacts in a bucket; empty if it is not in a bucket.

    Raises:
        UserError: it would be in the container of a step, or cannot be opened.
    """
    if near and is_local(settings.registry):
        kind = "file" if settings.registry.startswith(MLFLOW_FILE) else "directory"
        raise UserError(
            f"The registry {settings.registry} would be a {kind} of this container, and would be lost with it.",
            "Give registry=vertex:// for Vertex AI Model Registry.",
        )
    return open_registry(settings.registry, near, settings.serving_image, settings.encryption_key)


def _evaluation_in(directory: Path) -> Evaluation | None:
    """The evaluation of a model; None for files without one.

    Raises:
        UserError: there are no files, they are not a whole exported model, are what another step has made, or one has
            the name of a file of the registry.
    """
    if (directory / EVALUATION).is_file():
        require_exported_model(directory)
        require_undamaged(directory)  # of a version of another registry
        return Evaluation.load(directory)
    if (directory / VERSION).exists():
        raise UserError(
            f"{directory} has a file {VERSION}, which the registry writes itself.", "Upload the model without it."
        )
    if not any(path.is_file() for path in directory.rglob("*")):
        raise UserError(f"{directory} has no files to upload.", "Give the folder of a model.")
    if (directory / MARKER).is_file() or complete_checkpoints(directory):
        raise UserError(
            f"{directory} has checkpoints of train_model, which no server loads.",
            "Give evaluate_checkpoints them, and its best_checkpoint to this step.",
        )
    # It brings numpy, which a machine that only compiles has not.
    from gpu_pipelines.artifacts.dataset import MANIFEST

    if (directory / MANIFEST).is_file() and (directory / "train").is_dir():
        raise UserError(f"{directory} is a dataset of prepare_data.", "Give the folder of a model.")
    print(f"the model has no {EVALUATION}: it is registered without metrics", flush=True)
    return None


def _told_of(evaluation: Evaluation | None, compared_with: int | None) -> dict[str, Any]:
    """The facts of a version's evaluation to record with it."""
    if evaluation is None:
        return {"task": "", "metrics": {}}
    return {
        "task": evaluation.task,
        "checkpoint": evaluation.best,
        "dataset_fingerprint": evaluation.dataset_fingerprint,
        SOURCE: evaluation.source_fingerprint,
        "test_source": evaluation.test_source,
        COMPARED_WITH: compared_with,
        "metrics": {name: metric["value"] for name, metric in evaluation.test["metrics"].items()},
    }


def _compared_with(evaluation: Evaluation | None, name: str, champion: RegisteredVersion | None) -> int | None:
    """The version of this registry that a model was compared with: one of another registry may have its number."""
    if evaluation is None or evaluation.champion is None or evaluation.model_name != name:
        return None
    number = evaluation.champion_version
    if champion is None or champion.number != number:
        return number
    digest = champion.recorded_digest
    return number if evaluation.champion.get("digest", digest) == digest else None


def _promotion(
    evaluation: Evaluation | None, compared_with: int | None, champion: RegisteredVersion | None, passed: bool
) -> Promotion:
    """Whether the model may replace the champion; prints why not, unless the gates are the reason."""
    if evaluation is not None:
        return Promotion(passed and _may_be_replaced(champion), compared_with)
    if passed and champion is not None and champion.has_evaluation:
        print(
            f"the champion stays: version {champion.number} was evaluated and this model was not, so nobody knows "
            "whether it is better. Evaluate it with evaluate_checkpoints, or move the alias by hand: gpu-pipelines "
            f"models alias {champion.name} {CHAMPION} NUMBER",
            flush=True,
        )
        passed = False
    return Promotion(passed and _may_be_replaced(champion), champion.number if champion else None)


def _may_be_replaced(champion: RegisteredVersion | None) -> bool:
    """Whether the champion is undamaged; one that was damaged after the comparison stays until a person has looked."""
    try:
        if champion is not None:
            champion.require_undamaged()
    except DamagedVersionError as error:
        print(f"warning: the champion stays. {error}", flush=True)
        return False
    return True


def _smoke_test(settings: UploadSettings, model: Path, registry: Registry) -> SmokeTest:
    """The test of the upload, with the container that will serve it."""
    if not isinstance(registry, ServesModels):
        return SmokeTest(model)
    tested = registry.steps_image(settings.pipeline_job)
    return SmokeTest(model, registry.container_for(model, settings.pipeline_job), tested)
