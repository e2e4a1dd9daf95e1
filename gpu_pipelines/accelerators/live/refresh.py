"""Rebuilds prices.csv and availability.csv from Google's APIs, in the form they have in the catalog."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any

from gpu_pipelines.accelerators.catalog.loader import PACKAGED, Catalog, columns, load_catalog
from gpu_pipelines.accelerators.catalog.records import Availability, Price, Source
from gpu_pipelines.accelerators.live import availability, prices
from gpu_pipelines.accelerators.live.clients import Clients
from gpu_pipelines.errors import UserError


@dataclass(frozen=True)
class Refreshed:
    """What a refresh wrote.

    Attributes:
        directory: where the files are.
        prices_read: rows of prices.csv that were read.
        prices_kept: rows for which no complete price was read; they stay as they were.
        availability_read: rows of availability.csv, all read.
        unknown_regions: regions with GPUs that regions.csv does not have; they are left out until it does.
    """

    directory: Path
    prices_read: int
    prices_kept: int
    availability_read: int
    unknown_regions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return {**vars(self), "directory": str(self.directory), "unknown_regions": list(self.unknown_regions)}


def refresh_catalog(output: str | PathLike[str] | None = None, *, project: str | None = None) -> Refreshed:
    """Reads prices and availability from Google's APIs anew, as `gpu-pipelines accelerators catalog refresh`.

    A program that has read the catalog already keeps using that; the next one reads the new files.

    Args:
        output: directory of the files; None writes over those of the catalog itself. The variable
            `GPU_PIPELINES_CATALOG` names another directory to read from.
        project: id of the Google Cloud project to read with; None takes that of the environment or of the credentials.

    Returns:
        Where the files are, and how much of them was read.

    Raises:
        UserError: there are no credentials, an API cannot be read or answers nothing of use, or the directory cannot be
            written.
    """
    return refresh(load_catalog(), Clients(project), None if output is None else Path(output))


def refresh(catalog: Catalog, clients: Clients, output: Path | None, today: date | None = None) -> Refreshed:
    """Reads prices and places and writes the files.

    Args:
        catalog: the facts so far.
        clients: clients of the APIs.
        output: directory to write to; None writes over the files of the catalog itself.
        today: the date to record for what is read; None takes today.

    Raises:
        UserError: if an API cannot be read, answers nothing of use, or the directory cannot be written.
    """
    directory = output or catalog.directory or PACKAGED
    read = prices.prices_of(prices.read_rates(catalog, clients), catalog)
    rows, unknown = availability.availability_of(availability.read_places(catalog, clients), catalog)
    if not read or not rows:
        what = "prices" if not read else "zones with GPUs"
        raise UserError(f"The API returned no {what} that the catalog knows; nothing was written.")
    fresh = {(price.item, price.unit, price.region) for price in read}
    kept = [price for key, price in catalog.prices.items() if key not in fresh]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_prices(directory, [*read, *kept])
        write_availability(directory, rows, catalog.gpus)
        write_sources(directory, catalog, _sources(today or date.today()))
    except OSError as error:
        raise UserError(
            f"{directory} cannot be written: {error.strerror or error}.",
            "Write elsewhere with --output DIR and set GPU_PIPELINES_CATALOG=DIR.",
        ) from error
    return Refreshed(directory, len(read), len(kept), len(rows), tuple(unknown))


def _sources(today: date) -> list[Source]:
    return [
        Source(prices.SOURCE, "Cloud Billing API, price list of Compute Engine", "cloudbilling.googleapis.com", today),
        Source(
            availability.SOURCE,
            "Compute Engine API, accelerator and machine types by zone",
            "compute.googleapis.com",
            today,
        ),
    ]


def write_prices(directory: Path, prices: Iterable[Price]) -> None:
    """Writes prices.csv."""
    _write(directory, "prices.csv", sorted(prices, key=lambda price: (price.item, price.unit, price.region)))


def write_availability(directory: Path, rows: Iterable[Availability], order: Iterable[str]) -> None:
    """Writes availability.csv, GPUs in the given order."""
    rank = {gpu: number for number, gpu in enumerate(order)}
    _write(directory, "availability.csv", sorted(rows, key=lambda row: (rank[row.gpu], row.region)))


def write_sources(directory: Path, catalog: Catalog, read: Iterable[Source]) -> None:
    """Writes sources.csv: the sources of the catalog, in which those just read are replaced or added."""
    _write(directory, "sources.csv", {**catalog.sources, **{source.id: source for source in read}}.values())


def _write(directory: Path, name: str, records: Iterable[Any]) -> None:
    half_written = directory / f".{name}.{os.getpid()}"
    with half_written.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        attributes = columns(name)
        writer.writerow(attributes)
        writer.writerows([_text(getattr(record, each.name)) for each in attributes.values()] for record in records)
    half_written.replace(directory / name)


def _text(value: str | float | date | tuple[str, ...] | None) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, float):
        return f"{round(value, 6):g}" if value < 1e-3 else str(round(value, 6))
    return "" if value is None else str(value)
