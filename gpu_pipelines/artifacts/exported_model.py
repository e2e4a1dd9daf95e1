"""The exported model: Hugging Face layout, or a user's own files, with a model card and its evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines import __version__
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.errors import UserError
from gpu_pipelines.numbers import figure

MODEL_CARD = "MODEL_CARD.md"
#: A profile of the training data, for later checks for drift; see gpu_pipelines/profiles.
PROFILE = "reference_profile.npz"
DOCUMENTS = (EVALUATION, MODEL_CARD)
CONFIG, WEIGHTS = "config.json", "model.safetensors"
#: Index of the weights of a large model: the files into which `save_pretrained` split them, by weight.
INDEX = "model.safetensors.index.json"
#: The description of a model in the format of another program, beside its files; see gpu_pipelines/exporting.
EXPORT = "export.json"
LABELS_LISTED = 50


def weight_files(directory: Path) -> list[str]:
    """The names of the files with the weights of an exported model: one, or those that its index names.

    If there are both, `save_pretrained` left an index of files that it deleted, and transformers takes the one file.

    Raises:
        UserError: the index cannot be read.
    """
    path = directory / INDEX
    if (directory / WEIGHTS).is_file() or not path.is_file():
        return [WEIGHTS]
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted({Path(str(name)).name for name in files}) or [WEIGHTS]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} does not say which files the weights are in (weight_map).") from None


def require_exported_model(directory: Path) -> None:
    """Checks that a directory has the files of an exported model.

    A model scored by a user's function may have any files: at least one.

    Raises:
        UserError: a file is missing.
    """
    missing = [name for name in DOCUMENTS if not (directory / name).is_file()]
    if not missing and Evaluation.load(directory).scoring_function:
        if any(path.name not in DOCUMENTS for path in directory.iterdir()):
            return
        raise UserError(f"{directory} is not an exported model: it has no files but {' and '.join(DOCUMENTS)}.")
    missing = [name for name in (CONFIG, *weight_files(directory)) if not (directory / name).is_file()] + missing
    if missing:
        raise UserError(f"{directory} is not an exported model: it has no {' and no '.join(missing)}.")


def write_model_card(
    directory: Path, evaluation: Evaluation, data_source: str, pipeline_tag: str = "", base_model: str = ""
) -> None:
    """Writes `MODEL_CARD.md` with the front matter that Hugging Face's hub reads.

    Args:
        directory: the exported model.
        evaluation: its evaluation.
        data_source: where the training data came from, as the user named it.
        pipeline_tag: the hub's name of the task; empty for none.
        base_model: the hub id of the model that was fine-tuned; empty for none.
    """
    settings = evaluation.configuration["settings"]
    parts = [
        _front_matter(evaluation, pipeline_tag, base_model),
        f"# {settings.get('model') or evaluation.model_name} for {evaluation.task.replace('_', ' ')}",
        _figures(evaluation),
        *_benchmarks(evaluation),
        "## Gates",
        "\n".join(f"- {'passed' if gate['passed'] else 'FAILED'}: {gate['why']}" for gate in evaluation.gates),
        "## Data",
        f"Source: `{data_source}`. Dataset fingerprint: `{evaluation.dataset_fingerprint}`.",
    ]
    if evaluation.labels:
        labels = ", ".join(f"`{label}`" for label in evaluation.labels[:LABELS_LISTED])
        more = len(evaluation.labels) - LABELS_LISTED
        parts.append(f"{len(evaluation.labels)} classes: {labels}{f' and {more} more' if more > 0 else ''}.")
    if evaluation.rehearsal:
        parts.append("**A rehearsal:** trained on CPU processes instead of the chosen GPUs.")
    if settings:
        rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        parts += ["## Training", f"| parameter | value |\n|---|---|\n{rows}"]
    parts.append(f"Made with gpu-pipelines {__version__}.\n")
    (directory / MODEL_CARD).write_text("\n\n".join(parts), encoding="utf-8")


def _benchmarks(evaluation: Evaluation) -> list[str]:
    if evaluation.benchmarks is None:
        return []
    told, metrics = evaluation.benchmarks, evaluation.benchmarks["checkpoints"][0]["metrics"]
    return ["## Benchmarks", f"By lm-eval {told['lm_eval']}.\n\n{_with_intervals(metrics, 'value')}"]


def _with_intervals(metrics: Mapping[str, Any], title: str) -> str:
    rows = "\n".join(
        f"| {name} | {figure(metric['value'])} | {figure(metric['low'])} to {figure(metric['high'])} |"
        for name, metric in metrics.items()
    )
    return f"| metric | {title} | 95% interval |\n|---|---|---|\n{rows}"


def _front_matter(evaluation: Evaluation, pipeline_tag: str, base_model: str) -> str:
    named = {"pipeline_tag": pipeline_tag, "base_model": base_model}
    lines = [*(f"{name}: {value}" for name, value in named.items() if value), "tags: [gpu-pipelines]"]
    # Models of a user's own function or recipe may have files that transformers cannot open.
    if not evaluation.scoring_function and not evaluation.configuration["settings"].get("recipe"):
        lines.insert(0, "library_name: transformers")
    return "\n".join(["---", *lines, "---"])


def _figures(evaluation: Evaluation) -> str:
    metrics = evaluation.test["metrics"]
    if evaluation.scoring_function:
        rows = "\n".join(f"| {name} | {figure(metric['value'])} |" for name, metric in metrics.items())
        where = f"on the {evaluation.test['rows']:,} rows of the test split, by `{evaluation.scoring_function}`"
        table = f"| metric | test |\n|---|---|\n{rows}"
    else:
        where = (
            f"on {evaluation.test['rows']:,} test rows that neither training nor the choice of the checkpoint has seen"
        )
        table = _with_intervals(metrics, "test")
    return (
        f"Checkpoint `{evaluation.best}`, chosen among {len(evaluation.checkpoints)} by {evaluation.select_by} on the "
        f"validation split. The figures below are {where}.\n\n{table}"
    )
