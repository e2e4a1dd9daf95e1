"""The file that `gcloud ai-platform jobs submit training --config` took: a `Job` as YAML or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.migration.job_fields import JOB, TRAINING_INPUT
from gpu_pipelines.migration.job_values import value_of
from gpu_pipelines.yaml_input import node_of, read_text, text_of


def read_job_file(path: Path) -> dict[str, Any]:
    """A job from a file; see `read_job`.

    Raises:
        UserError: the file cannot be read, or is no job.
    """
    return read_job(read_text(path, f"The file {path}"), str(path))


def read_job(text: str, origin: str) -> dict[str, Any]:
    """A `Job`, with every field checked and of its type; fields without a value are left out.

    Args:
        text: YAML or JSON.
        origin: what it is called in messages.

    Raises:
        UserError: lists all that is wrong.
    """
    root = node_of(text, origin)
    if root is None:
        raise UserError(f"{origin} is empty.", "Leave it out if the flags say all of the job.")
    document = text_of(root)
    if not isinstance(document, dict):
        raise UserError(f"{origin} is no job: it is not a mapping.", "It begins with trainingInput:.")
    problems: list[str] = []
    _look_at_the_top(document, origin)
    job: dict[str, Any] = value_of(JOB, document, "", problems) or {}
    if problems:
        raise UserError.of_all([f"{origin}: {problem}" for problem in problems])
    return job


def _look_at_the_top(document: dict[Any, Any], origin: str) -> None:
    """Refuses files of other kinds in words that say which."""
    if "trainingInput" not in document and any(name in TRAINING_INPUT.fields for name in document):
        raise UserError(f"{origin} has the fields of a training at its top.", "Put them below trainingInput:.")
    if "workerPoolSpecs" in document or "trialJobSpec" in document:
        raise UserError(f"{origin} is a config of Vertex AI already.", "Submit it with gpu-pipelines job submit.")
    if document.get("predictionInput"):
        raise UserError(f"{origin} is a batch prediction; only trainings are migrated here.")
