"""The HTML report of `prepare_data`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import LABEL_CONFLICTS, REJECTED, Dataset, Manifest
from gpu_pipelines.data.text.report import padding_share, text_examples, text_lengths
from gpu_pipelines.reports.page import image_data, render, write_page

CLASSES_SHOWN = 40
EXAMPLES_SHOWN = 20
REJECTED_SHOWN = 5
CONFLICTS_SHOWN = 10


def write_report(directory: Path, path: Path) -> None:
    """Writes the report of a dataset.

    Args:
        directory: the dataset.
        path: the HTML file.
    """
    dataset = Dataset(directory)
    manifest = dataset.manifest
    classes = _classes(manifest)
    image, tokens = manifest.features.get("image"), manifest.features.get("input_ids")
    sections = render(
        Path(__file__).with_name("report.html"),
        m=manifest,
        shape=image.shape if image else (),
        tokens=tokens.shape[0] if tokens else None,
        lengths=text_lengths(dataset) if tokens else [],
        padding=padding_share(dataset) if tokens else 0,
        texts=text_examples(dataset) if tokens else [],
        classes=classes,
        hidden_classes=len(manifest.labels) - len(classes),
        rejected_examples=_rejected_examples(directory / REJECTED),
        conflicts=_conflicts(directory / LABEL_CONFLICTS),
        examples=_examples(dataset) if image else [],
    )
    write_page(path, f"Data: {manifest.source}", sections)


def _classes(manifest: Manifest) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"label": label, "rows": {split: manifest.class_rows[split][index] for split in manifest.splits}}
        for index, label in enumerate(manifest.labels)
    ]
    if not rows:
        return []
    totals = [sum(row["rows"].values()) for row in rows]
    for row, total in zip(rows, totals, strict=True):
        row["share"] = round(100 * total / max(totals), 1)
    if len(rows) > CLASSES_SHOWN:
        rows = sorted(rows, key=lambda row: -row["share"])[:CLASSES_SHOWN]
    return rows


def _rejected_examples(path: Path) -> dict[str, list[dict[str, str]]]:
    examples: dict[str, list[dict[str, str]]] = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            of_reason = examples.setdefault(row["reason"], [])
            if len(of_reason) < REJECTED_SHOWN:
                of_reason.append(row)
    return examples


def _conflicts(path: Path) -> list[dict[str, Any]]:
    """Pairs of classes with the same content, the most frequent first, and a row of each."""
    if not path.is_file():
        return []
    rows: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            classes = (row["other_label"], row["label"])
            rows[classes] += 1
            first.setdefault(classes, row["source"])
    return [
        {"classes": classes, "rows": number, "first": first[classes]}
        for classes, number in rows.most_common(CONFLICTS_SHOWN)
    ]


def _examples(dataset: Dataset) -> list[dict[str, str]]:
    """Two rounds of one row of each class, as far as they go; without classes the first rows."""
    train = dataset.split("train")
    if not dataset.manifest.labels:
        taken = train.take(np.arange(min(EXAMPLES_SHOWN, len(train))))
        return [{"image": image_data(image), "label": ""} for image in taken["image"]]
    labels = np.concatenate([columns["label"] for columns in train.columns(0, len(train))])
    rows = [
        int(np.flatnonzero(labels == label)[turn])
        for turn in range(2)
        for label in np.unique(labels)
        if np.count_nonzero(labels == label) > turn
    ]
    taken = train.take(np.array(rows[:EXAMPLES_SHOWN]))
    return [
        {"image": image_data(image), "label": dataset.manifest.labels[label]}
        for image, label in zip(taken["image"], taken["label"], strict=True)
    ]
