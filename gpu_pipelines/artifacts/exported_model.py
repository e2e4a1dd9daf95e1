"""The exported model: Hugging Face layout, with a model card and its evaluation."""

from __future__ import annotations

from pathlib import Path

from gpu_pipelines import __version__
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.errors import UserError

MODEL_CARD = "MODEL_CARD.md"
REQUIRED_FILES = ("config.json", "model.safetensors", EVALUATION, MODEL_CARD)


def require_exported_model(directory: Path) -> None:
    """Checks that a directory has the files of an exported model.

    Raises:
        UserError: it lacks one.
    """
    missing = [name for name in REQUIRED_FILES if not (directory / name).is_file()]
    if missing:
        raise UserError(f"{directory} is not an exported model: it has no {' and no '.join(missing)}.")


def write_model_card(directory: Path, evaluation: Evaluation, data_source: str) -> None:
    """Writes `MODEL_CARD.md` with the front matter that Hugging Face's hub reads.

    Args:
        directory: the exported model.
        evaluation: its evaluation.
        data_source: where the training data came from, as the user named it.
    """
    settings = evaluation.configuration["settings"]
    gates = "\n".join(f"- {'passed' if gate['passed'] else 'FAILED'}: {gate['why']}" for gate in evaluation.gates)
    metrics = "\n".join(
        f"| {name} | {metric['value']:.4f} | {metric['low']:.4f} to {metric['high']:.4f} |"
        for name, metric in evaluation.test["metrics"].items()
    )
    labels = ", ".join(f"`{label}`" for label in evaluation.labels[:50])
    more = f" and {len(evaluation.labels) - 50} more" if len(evaluation.labels) > 50 else ""
    text = f"""---
library_name: transformers
pipeline_tag: {evaluation.task.replace("_", "-")}
tags: [gpu-pipelines]
---

# {settings["model"]} for {evaluation.task.replace("_", " ")}

Checkpoint `{evaluation.best}`, chosen among {len(evaluation.checkpoints)} by {evaluation.select_by} on the validation
split. The figures below are on {evaluation.test["rows"]:,} test rows that neither training nor the choice has seen.

| metric | test | 95% interval |
|---|---|---|
{metrics}

## Gates

{gates}

## Data

Source: `{data_source}`. Dataset fingerprint: `{evaluation.dataset_fingerprint}`.

{len(evaluation.labels)} classes: {labels}{more}.

## Training

| parameter | value |
|---|---|
{chr(10).join(f"| {name} | {value} |" for name, value in settings.items())}

Made with gpu-pipelines {__version__}.
"""
    (directory / MODEL_CARD).write_text(text, encoding="utf-8")
