"""Writes catalog files in the form the loader reads: the same columns, rows sorted: a refresh is a diff."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from gpu_pipelines.accelerators.catalog.loader import Catalog, columns
from gpu_pipelines.accelerators.catalog.records import Availability, Price, Source


def write_prices(directory: Path, prices: Iterable[Price]) -> None:
    """Writes prices.csv."""
    _write(directory, "prices.csv", sorted(prices, key=lambda price: (price.item, price.unit, price.region)))


def write_availability(directory: Path, rows: Iterable[Availability], order: Iterable[str]) -> None:
    """Writes availability.csv, GPUs in the given order."""
    rank = {gpu: number for number, gpu in enumerate(order)}
    _write(directory, "availability.csv", sorted(rows, key=lambda row: (rank[row.gpu], row.region)))


def write_sources(directory: Path, catalog: Catalog, read: Iterable[Source]) -> None:
    """Writes sources.csv: those of the catalog, with what has just been read in their place or at the end."""
    _write(directory, "sources.csv", {**catalog.sources, **{source.id: source for source in read}}.values())


def _write(directory: Path, name: str, records: Iterable[Any]) -> None:
    half_written = directory / f".{name}.{os.getpid()}"
    with half_written.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns(name))
        writer.writerows([_text(value) for value in vars(record).values()] for record in records)
    half_written.replace(directory / name)


def _text(value: str | float | date | tuple[str, ...] | None) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, float):
        return f"{round(value, 6):g}" if value < 1e-3 else str(round(value, 6))
    return "" if value is None else str(value)
