"""The file that `gcloud ai-platform jobs submit training --config` took: a `Job` as YAML or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpu_pipelines.errors import UserError
from gpu_pipelines.migration.job_fields import JOB, TRAINING_INPUT
from gpu_pipelines.migration.job_values import value_of

#: A file larger than this is no job: a limit of this project.
_LARGEST_BYTES = 1_000_000


def read_job_file(path: Path) -> dict[str, Any]:
    """A job from a file; see `read_job`.

    Raises:
        UserError: the file cannot be read, or is no job.
    """
    try:
        if path.is_file() and path.stat().st_size > _LARGEST_BYTES:
            raise UserError(f"The file {path} has more than {_LARGEST_BYTES} bytes, so it is no config of a job.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"The file {path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise UserError(f"The file {path} is not UTF-8.") from None
    return read_job(text, str(path))


def read_job(text: str, origin: str) -> dict[str, Any]:
    """A `Job`, with every field checked and of its type; fields without a value are left out.

    Args:
        text: YAML or JSON.
        origin: what it is called in messages.

    Raises:
        UserError: lists all that is wrong.
    """
    try:
        # This loader leaves each scalar the text that it is written as: YAML would make the version 2.10 a 2.1.
        document = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 (BaseLoader builds nothing but texts)
    except RecursionError:
        raise UserError(f"{origin} is not YAML: it is nested too deeply.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{origin} is not YAML: {' '.join(str(error).split())[:300]}.") from None
    if document in (None, ""):
        return {}
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
