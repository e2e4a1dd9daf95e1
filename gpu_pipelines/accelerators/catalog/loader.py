"""Reads the catalog's files, each when it is first asked for.

The csv module is used, and not YAML or pandas, because the whole of `accelerators plan` has to answer in a fraction of
a second.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from gpu_pipelines.accelerators.catalog.records import (
    Availability,
    CpuFamily,
    ElsewhereGpu,
    Gpu,
    GpuPartition,
    HostLimit,
    MachineType,
    Price,
    Region,
    SkuName,
    Source,
    UnusableMachineType,
)
from gpu_pipelines.errors import UserError

DIRECTORY_VARIABLE = "GPU_PIPELINES_CATALOG"
PACKAGED = Path(__file__).parent

#: The record that each row of a file is.
FILES: dict[str, type] = {}

Row = Mapping[str, str]
T = TypeVar("T")
Key = TypeVar("Key")


class CatalogError(UserError):
    """A catalog file that cannot be read: the file, the line, what is wrong."""


def _table(file: str, kind: type[T], key: Callable[[T], Key], **refers: str) -> cached_property[dict[Key, T]]:
    """The rows of a file by their keys, read when they are first asked for.

    Args:
        file: its name.
        kind: type of a row.
        key: of a row.
        refers: attributes of a row that name rows of another table, each with that table.
    """
    FILES[file] = kind
    tables = {**refers, "sources": "sources"} if kind is not Source else {}

    def read(catalog: Catalog) -> dict[Key, T]:
        rows = {key(row): row for row in catalog._read(file, kind)}
        for attribute, table in tables.items():
            catalog._require_known(file, rows, attribute, table)
        return rows

    return cached_property(read)


class Catalog:
    """The catalog, read lazily.

    Args:
        directory: files found here replace the packaged ones, by name (as `catalog refresh` writes them).
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory

    def path(self, name: str) -> Path:
        """The file that is read under that name."""
        if self.directory is not None and (self.directory / name).is_file():
            return self.directory / name
        return PACKAGED / name

    #: Sources by id.
    sources = _table("sources.csv", Source, lambda source: source.id)
    #: GPUs by name, the fastest first.
    gpus = _table("gpus.csv", Gpu, lambda gpu: gpu.name)
    #: Parts that GPUs can be cut into, by GPU and size.
    partitions = _table("gpu_partitions.csv", GpuPartition, lambda row: (row.gpu, row.size))
    #: GPUs that are not available, by name.
    elsewhere = _table("gpus_elsewhere.csv", ElsewhereGpu, lambda gpu: gpu.name)
    #: Machine types that training takes without GPUs, by their names without the size.
    cpu_families = _table("cpu_machine_families.csv", CpuFamily, lambda row: row.family)
    #: GPU machine types of Compute Engine that training does not take, by name.
    unusable_machine_types = _table("machine_types_not_for_training.csv", UnusableMachineType, lambda row: row.name)
    #: The largest N1 machine for a GPU and a number of it.
    host_limits = _table("n1_limits.csv", HostLimit, lambda limit: (limit.gpu, limit.count))
    #: Regions by name.
    regions = _table("regions.csv", Region, lambda region: region.name)
    #: Facts about a GPU in a region, by GPU and region.
    availability = _table(
        "availability.csv", Availability, lambda row: (row.gpu, row.region), gpu="gpus", region="regions"
    )
    #: Prices by item, unit and region.
    prices = _table("prices.csv", Price, lambda price: (price.item, price.unit, price.region))
    #: Resources of the SKUs of the price list, by the beginning of their description.
    sku_names = _table("sku_names.csv", SkuName, lambda sku: sku.sku)
    #: Machine types that training takes, by name.
    machine_types = _table("machine_types.csv", MachineType, lambda machine: machine.name, gpu_counts="gpus")

    def takes_without_gpus(self, machine_type: str) -> bool:
        """Whether training takes that machine without GPUs."""
        name, _, size = machine_type.rpartition("-")
        family = self.cpu_families.get(name)
        if family is None or family.sizes == "listed":
            return family is not None and machine_type in self.machine_types
        return re.fullmatch(r"[0-9]{1,3}", size) is not None

    def machines_with(self, gpu: str, count: int | None = None) -> list[MachineType]:
        """Machine types that carry that GPU, and that many of it if a number is given, the smallest first."""
        machines = [
            machine
            for machine in self.machine_types.values()
            if gpu in machine.gpu_counts and (count is None or machine.takes(gpu, count))
        ]
        return sorted(machines, key=lambda machine: (machine.vcpus, machine.memory_gb, machine.name))

    def counts(self, gpu: str) -> list[int]:
        """The numbers of that GPU that one machine can have."""
        return sorted({count for machine in self.machines_with(gpu) for count in machine.gpu_counts[gpu]})

    def as_of(self, sources: Iterable[str]) -> date | None:
        """The oldest day among those sources that have one; None if none has."""
        return min((day for source in sources if (day := self.sources[source].as_of) is not None), default=None)

    def undated(self, sources: Iterable[str]) -> tuple[str, ...]:
        """The sources that have no date."""
        return tuple(sorted(source for source in sources if self.sources[source].as_of is None))

    def _rows(self, name: str) -> list[dict[str, str]]:
        path = self.path(name)
        try:
            with path.open(encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file, strict=True)
                expected = list(columns(name))
                if reader.fieldnames is None or list(reader.fieldnames) != expected:
                    raise CatalogError(f"{path} does not have the columns {', '.join(expected)}.")
                rows = list(reader)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise CatalogError(f"{path} cannot be read: {error}.") from error
        for row in rows:
            if None in row or None in row.values():
                raise CatalogError(f"{path}: a line has too many or too few columns: {dict(row)}.")
        return rows

    def _require_known(self, name: str, rows: Mapping[Any, Any], attribute: str, table: str) -> None:
        """Refuses a row that names a row of another table which does not exist."""
        known: Mapping[str, Any] = getattr(self, table)
        for key, row in rows.items():
            named = getattr(row, attribute)
            if unknown := [each for each in ([named] if isinstance(named, str) else named) if each not in known]:
                other = self.path(f"{table}.csv")
                called = key if isinstance(key, str) else " ".join(map(str, key))
                what = f"{self.path(name)}: {attribute} of {called} names {', '.join(unknown)}"
                raise CatalogError(
                    f"{what}, which {other} does not have.",
                    f"Add a row there, or to a copy of {other.name} in the directory that {DIRECTORY_VARIABLE} names.",
                )

    def _read(self, name: str, kind: type[T]) -> list[T]:
        built, attributes = [], columns(name)
        for row in self._rows(name):
            try:
                built.append(_record(kind, attributes, row))
            except ValueError as error:
                raise CatalogError(f"{self.path(name)}: {error} in the row {dict(row)}.") from error
        return built


@lru_cache(maxsize=4)
def _catalog_of(directory: str) -> Catalog:
    if directory and not Path(directory).is_dir():
        raise CatalogError(
            f"{DIRECTORY_VARIABLE} names {directory!r}, which is not a directory.",
            "Name a directory that `accelerators catalog refresh --output` wrote, or unset the variable.",
        )
    return Catalog(Path(directory) if directory else None)


def load_catalog() -> Catalog:
    """The catalog of this process: the packaged one, overlaid with the directory `GPU_PIPELINES_CATALOG` names.

    Raises:
        CatalogError: if that variable does not name a directory.
    """
    return _catalog_of(os.environ.get(DIRECTORY_VARIABLE, ""))


def columns(name: str) -> dict[str, Field[Any]]:
    """The columns of a file, each with its attribute of the record; those of every `Fact` come last."""
    attributes = sorted(fields(FILES[name]), key=lambda attribute: bool(attribute.kw_only))
    return {"source" if each.name == "sources" else each.name: each for each in attributes}


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"{text!r} is neither yes nor no")
    return text == "yes"


def _spec(text: str) -> tuple[str, int]:
    """`h100:8`, a GPU and a number of it."""
    gpu, _, count = text.partition(":")
    return gpu, int(count)


def _counts(text: str) -> Mapping[str, tuple[int, ...]]:
    """`t4:1 t4:2 v100:1`, the numbers of each GPU."""
    found: dict[str, tuple[int, ...]] = {}
    for gpu, count in map(_spec, text.split()):
        found[gpu] = (*found.get(gpu, ()), count)
    return found


def _by_spec(text: str) -> Mapping[tuple[str, int], int]:
    """`v100:8=100`, a figure for a number of a GPU."""
    return {_spec(spec): int(figure) for spec, _, figure in (word.partition("=") for word in text.split())}


#: How a cell is read, by the type of the attribute.
_READ: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": _yes,
    "int | None": lambda text: int(text) if text else None,
    "float | None": lambda text: float(text) if text else None,
    "date | None": lambda text: date.fromisoformat(text) if text else None,
    "tuple[str, ...]": lambda text: tuple(text.split()),
    "Mapping[str, tuple[int, ...]]": _counts,
    "Mapping[tuple[str, int], int]": _by_spec,
}


def _record(kind: type[T], attributes: Mapping[str, Field[Any]], row: Row) -> T:
    values = {}
    for column, each in attributes.items():
        text = row[column]
        valid = each.metadata.get("choices")
        if valid and text not in valid:
            raise ValueError(f"{each.name} is {text!r}, not one of {', '.join(valid)}")
        try:
            values[each.name] = _READ[str(each.type)](text)
        except ValueError as error:
            raise ValueError(f"{each.name}: {error}") from None
    return kind(**values)
