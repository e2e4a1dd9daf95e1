"""The step `check_for_drift` with its KFP inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.large_dataset import dataset_to_evaluate
from gpu_pipelines.component_interface.step import log_metrics, own_process, place_of, with_advanced
from gpu_pipelines.drift.check import DriftCheck, check_for_drift
from gpu_pipelines.drift.report import write_report
from gpu_pipelines.drift.settings import DriftSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.prediction.model import registered_model


def run(
    settings: DriftSettings,
    *,
    dataset: Any = None,
    findings: Any,
    report: Any,
    metrics: Any,
    advanced: Mapping[str, Any],
) -> tuple[bool, str]:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        dataset: a KFP artifact, as are the others; the model's training dataset, None for none.
        findings: gets `drift.json`.
        report: gets the report.
        metrics: gets the figures.
        advanced: values of parameters by name, which take precedence.

    Returns:
        The outputs of the component that are not artifacts: whether there is drift, and why.
    """
    with own_process():
        settings = with_advanced(settings, advanced)
        # Parameters of a pipeline are checked when it is sent; those of a step here, before anything is read.
        if problems := settings.problems():
            raise UserError.of_all(problems)
        model = registered_model(settings.registry, settings.model_name, settings.model_version)
        found = check_for_drift(settings, model, _dataset(dataset))
        found.save(Path(findings.path))
        leave(found, report, metrics)
        print(found.reason, flush=True)
    return found.has_drift, found.reason


def leave(found: DriftCheck, report: Any, metrics: Any) -> None:
    """Leaves the report and the figures of a check in two KFP artifacts."""
    write_report(found, Path(report.path))
    log_metrics(metrics, figures_of(found))


def figures_of(found: DriftCheck) -> dict[str, float]:
    """The figures to log as metrics: those of the check, and the effect of each test."""
    figures: dict[str, float] = {
        "drift": int(found.has_drift),
        "drifted": len(found.drifted),
        "tests": len(found.findings),
        "rows": found.rows_used,
    }
    for finding in found.findings:
        figures[f"effect_{_as_name(finding.name)}"] = round(finding.effect, 4)
    return figures


def _as_name(text: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in text.lower())


def _dataset(artifact: Any) -> Callable[[], Dataset] | None:
    return None if artifact is None else lambda: Dataset(dataset_to_evaluate(place_of(artifact)))
