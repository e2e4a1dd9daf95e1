"""The report of a batch prediction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpu_pipelines.prediction.outputs import Predictions
from gpu_pipelines.reports.page import render, write_page

_CLASSES_SHOWN, _FILES_SHOWN = 40, 20


def write_report(predictions: Predictions, place: str, path: Path) -> None:
    """Writes the report.

    Args:
        predictions: the document.
        place: the place of the predictions.
        path: the HTML file.
    """
    said = predictions.model
    sections = render(
        Path(__file__).with_name("report.html"),
        p=predictions,
        place=place,
        model=f"{said['name']} version {said['version']}" if "version" in said else said["place"],
        labels=list(_labels(predictions)),
        files_shown=_FILES_SHOWN,
    )
    write_page(path, f"Predictions: {predictions.source}", sections)


def _labels(predictions: Predictions) -> Iterator[tuple[str, int, str, float]]:
    """The most frequent classes, each with its rows, its share, and the length of its bar, percent."""
    most = max(predictions.labels.values(), default=0)
    for label, rows in list(predictions.labels.items())[:_CLASSES_SHOWN]:
        yield label, rows, f"{rows / predictions.rows_predicted:.1%}", round(100 * rows / most, 1)
