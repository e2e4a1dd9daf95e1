"""Writes catalog files in the form the loader reads: the same columns, rows sorted: a refresh is a diff."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path

from gpu_pipelines.accelerators.catalog.loader import COLUMNS, Catalog
from gpu_pipelines.accelerators.catalog.records import Availability, Price, Source


def write_prices(directory: Path, prices: Iterable[Price]) -> None:
    """Writes prices.csv."""
    rows = [
        {
            "item": price.item,
            "unit": price.unit,
            "region": price.region,
            "on_demand": _number(price.on_demand),
            "spot": _number(price.spot),
            "unverified": " ".join(price.unverified),
            "source": " ".join(price.sources),
        }
        for price in sorted(prices, key=lambda price: (price.item, price.unit, price.region))
    ]
    _write(directory, "prices.csv", rows)


def write_availability(directory: Path, rows: Iterable[Availability], order: Iterable[str]) -> None:
    """Writes availability.csv, GPUs in the given order."""
    rank = {gpu: number for number, gpu in enumerate(order)}
    written = [
        {
            "gpu": row.gpu,
            "region": row.region,
            "zones": " ".join(row.zones),
            "machine_families": " ".join(row.machine_families),
            "unverified": " ".join(row.unverified),
            "source": " ".join(row.sources),
        }
        for row in sorted(rows, key=lambda row: (rank[row.gpu], row.region))
    ]
    _write(directory, "availability.csv", written)


def write_sources(directory: Path, catalog: Catalog, read: Iterable[Source]) -> None:
    """Writes sources.csv: those of the catalog, with what has just been read in their place or at the end."""
    sources = {**catalog.sources, **{source.id: source for source in read}}
    rows = [
        {"id": each.id, "what": each.what, "where": each.where, "as_of": _day(each.as_of)} for each in sources.values()
    ]
    _write(directory, "sources.csv", rows)


def _write(directory: Path, name: str, rows: Iterable[Mapping[str, str]]) -> None:
    columns = [*COLUMNS[name].split(), *([] if name == "sources.csv" else ["source"])]
    half_written = directory / f".{name}.{os.getpid()}"
    with half_written.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    half_written.replace(directory / name)


def _number(value: float | None) -> str:
    return "" if value is None else f"{round(value, 6):g}" if value < 1e-3 else str(round(value, 6))


def _day(value: date | None) -> str:
    return value.isoformat() if value else ""
