"""Reads the catalog's files, each when it is first asked for.

The csv module is used, and not YAML or pandas, because the whole of `accelerators plan` has to answer in a fraction of
a second.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

from gpu_pipelines.accelerators.catalog.records import (
    OFFERED,
    Availability,
    ElsewhereGpu,
    Gpu,
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

#: The columns of each file besides `source`; every file but sources.csv has `unverified` too.
COLUMNS = {
    "sources.csv": "id what where as_of",
    "gpus.csv": "name enum product compute_engine_name gke_label aliases ends replacements flex_start unverified",
    "gpu_hardware.csv": "gpu architecture compute_capability memory_gb memory_bandwidth_gb_s bf16_tflops fp16_tflops"
    " fp32_tflops nvlink link_gb_s mfu note unverified",
    "gpu_software.csv": "gpu min_cuda last_cuda pytorch_build pytorch unverified",
    "gpu_quotas.csv": "gpu training_metric spot_metric serving_metric unverified",
    "gpus_elsewhere.csv": "name product aliases kind memory_gb memory_bandwidth_gb_s bf16_tflops reason instead"
    " unverified",
    "machine_types.csv": "machine_type gpu gpu_count vcpus memory_gb local_ssd_gb network_gbps standard spot flex_start"
    " reservation boot_disk host_architecture note unverified",
    "n1_machine_types.csv": "machine_type vcpus memory_gb k80 p4 p100 t4 v100 unverified",
    "n1_limits.csv": "gpu count max_vcpus max_memory_gb unverified",
    "machine_types_not_for_training.csv": "machine_type gpu gpu_count vcpus memory_gb reason instead unverified",
    "regions.csv": "region place latitude longitude vertex_training unverified",
    "availability.csv": "gpu region zones machine_families unverified",
    "sku_names.csv": "sku resource machine_families gpu unverified",
    "prices.csv": "item unit region on_demand spot unverified",
}
N1_GPUS = ("k80", "p4", "p100", "t4", "v100")

Row = Mapping[str, str]
T = TypeVar("T")


class CatalogError(UserError):
    """A catalog file that cannot be read: the file, the line, what is wrong."""


class Catalog:
    """The catalog, read lazily.

    Args:
        directory: files found here take the place of the packaged ones, by name (as `catalog refresh` writes them).
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory

    def path(self, name: str) -> Path:
        """The file that is read under that name."""
        if self.directory is not None and (self.directory / name).is_file():
            return self.directory / name
        return PACKAGED / name

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Sources by id."""
        rows = self._read("sources.csv", lambda r: Source(r["id"], r["what"], r["where"], _date(r["as_of"])))
        return {source.id: source for source in rows}

    @cached_property
    def gpus(self) -> dict[str, Gpu]:
        """GPUs by name, the fastest first."""
        parts: dict[str, dict[str, str]] = {}
        for name in ("gpu_hardware.csv", "gpu_software.csv", "gpu_quotas.csv"):
            for row in self._rows(name):
                held = parts.setdefault(row["gpu"], {"unverified": "", "source": ""})
                both = {key: f"{held[key]} {row[key]}" for key in ("unverified", "source")}
                held.update({**row, **both})
        return {gpu.name: gpu for gpu in self._read("gpus.csv", lambda row: _gpu(row, parts[row["name"]]))}

    @cached_property
    def elsewhere(self) -> dict[str, ElsewhereGpu]:
        """GPUs that cannot be had, by name."""
        return {gpu.name: gpu for gpu in self._read("gpus_elsewhere.csv", _elsewhere)}

    @cached_property
    def machine_types(self) -> dict[str, MachineType]:
        """Machine types that training takes, by name."""
        found = [*self._read("machine_types.csv", _machine_type), *self._read("n1_machine_types.csv", _n1)]
        return {machine.name: machine for machine in found}

    @cached_property
    def unusable_machine_types(self) -> dict[str, UnusableMachineType]:
        """GPU machine types of Compute Engine that training does not take, by name."""
        return {m.name: m for m in self._read("machine_types_not_for_training.csv", _unusable)}

    @cached_property
    def host_limits(self) -> dict[tuple[str, int], HostLimit]:
        """The largest N1 machine for a GPU and a number of it."""
        return {(limit.gpu, limit.count): limit for limit in self._read("n1_limits.csv", _host_limit)}

    @cached_property
    def regions(self) -> dict[str, Region]:
        """Regions by name."""
        return {region.name: region for region in self._read("regions.csv", _region)}

    @cached_property
    def availability(self) -> dict[tuple[str, str], Availability]:
        """What is known of a GPU in a region, by GPU and region."""
        return {(row.gpu, row.region): row for row in self._read("availability.csv", _availability)}

    @cached_property
    def prices(self) -> dict[tuple[str, str, str], Price]:
        """Prices by item, unit and region."""
        return {(p.item, p.unit, p.region): p for p in self._read("prices.csv", _price)}

    @cached_property
    def sku_names(self) -> dict[str, SkuName]:
        """What the SKUs of the price list are of, by the beginning of their description."""
        return {sku.sku: sku for sku in self._read("sku_names.csv", _sku_name)}

    def machines_with(self, gpu: str, count: int | None = None) -> list[MachineType]:
        """Machine types that carry that GPU, and that many of it where a number is given, the smallest first."""
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
        """Those of the sources that do not say what day they are of."""
        return tuple(sorted(source for source in sources if self.sources[source].as_of is None))

    def _rows(self, name: str) -> list[dict[str, str]]:
        path = self.path(name)
        try:
            with path.open(encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file, strict=True)
                expected = [*COLUMNS[name].split(), *([] if name == "sources.csv" else ["source"])]
                if reader.fieldnames is None or list(reader.fieldnames) != expected:
                    raise CatalogError(f"{path} does not have the columns {', '.join(expected)}.")
                rows = list(reader)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise CatalogError(f"{path} cannot be read: {error}.") from error
        for row in rows:
            if None in row or None in row.values():
                raise CatalogError(f"{path}: a line has too many or too few columns: {dict(row)}.")
        return rows

    def _read(self, name: str, build: Callable[[Row], T]) -> list[T]:
        built = []
        for row in self._rows(name):
            try:
                built.append(build(row))
            except (ValueError, KeyError) as error:
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


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _date(text: str) -> date | None:
    return date.fromisoformat(text) if text else None


def _number(text: str) -> float | None:
    return float(text) if text else None


def _choice(row: Row, column: str, valid: Iterable[str]) -> str:
    if row[column] not in valid:
        raise ValueError(f"{column} is {row[column]!r}, not one of {', '.join(valid)}")
    return row[column]


def _yes(row: Row, column: str) -> bool:
    return _choice(row, column, ("yes", "no")) == "yes"


def _gpu(row: Row, part: Row) -> Gpu:
    return Gpu(
        name=row["name"],
        enum=row["enum"],
        product=row["product"],
        compute_engine_name=row["compute_engine_name"],
        gke_label=row["gke_label"],
        aliases=_words(row["aliases"]),
        ends=_date(row["ends"]),
        replacements=_words(row["replacements"]),
        flex_start=_yes(row, "flex_start"),
        architecture=part["architecture"],
        compute_capability=part["compute_capability"],
        memory_gb=int(part["memory_gb"]),
        memory_bandwidth_gb_s=int(part["memory_bandwidth_gb_s"]),
        bf16_tflops=_number(part["bf16_tflops"]),
        fp16_tflops=_number(part["fp16_tflops"]),
        fp32_tflops=float(part["fp32_tflops"]),
        nvlink=_yes(part, "nvlink"),
        link_gb_s=int(part["link_gb_s"]),
        mfu=float(part["mfu"]),
        note=part["note"],
        min_cuda=part["min_cuda"],
        last_cuda=part["last_cuda"],
        pytorch_build=part["pytorch_build"],
        pytorch=part["pytorch"],
        training_metric=part["training_metric"],
        spot_metric=part["spot_metric"],
        serving_metric=part["serving_metric"],
        unverified=_words(f"{row['unverified']} {part['unverified']}"),
        sources=tuple(dict.fromkeys(_words(f"{row['source']} {part['source']}"))),
    )


def _elsewhere(row: Row) -> ElsewhereGpu:
    return ElsewhereGpu(
        name=row["name"],
        product=row["product"],
        aliases=_words(row["aliases"]),
        kind=row["kind"],
        memory_gb=int(row["memory_gb"]),
        memory_bandwidth_gb_s=int(row["memory_bandwidth_gb_s"]),
        bf16_tflops=float(row["bf16_tflops"]),
        reason=row["reason"],
        instead=_words(row["instead"]),
        unverified=_words(row["unverified"]),
        sources=_words(row["source"]),
    )


def _machine_type(row: Row) -> MachineType:
    return MachineType(
        name=row["machine_type"],
        gpu_counts={row["gpu"]: (int(row["gpu_count"]),)},
        vcpus=int(row["vcpus"]),
        memory_gb=float(row["memory_gb"]),
        local_ssd_gb=int(row["local_ssd_gb"]),
        network_gbps=int(row["network_gbps"]) if row["network_gbps"] else None,
        standard=_choice(row, "standard", OFFERED),
        spot=_choice(row, "spot", OFFERED),
        flex_start=_choice(row, "flex_start", OFFERED),
        reservation=_choice(row, "reservation", OFFERED),
        boot_disk=_choice(row, "boot_disk", ("pd-ssd", "hyperdisk-balanced")),
        host_architecture=_choice(row, "host_architecture", ("amd64", "arm64")),
        note=row["note"],
        unverified=_words(row["unverified"]),
        sources=_words(row["source"]),
    )


def _n1(row: Row) -> MachineType:
    # What holds for every N1 machine is said here once: attachable GPUs have no Flex-start, no bundled SSD and no
    # network figure in the facts, and no page says whether their reservations can be used for training.
    return MachineType(
        name=row["machine_type"],
        gpu_counts={gpu: tuple(map(int, _words(row[gpu]))) for gpu in N1_GPUS if row[gpu]},
        vcpus=int(row["vcpus"]),
        memory_gb=float(row["memory_gb"]),
        local_ssd_gb=0,
        network_gbps=None,
        standard="yes",
        spot="yes",
        flex_start="no",
        reservation="unverified",
        boot_disk="pd-ssd",
        host_architecture="amd64",
        note="",
        unverified=_words(row["unverified"]),
        sources=_words(row["source"]),
    )


def _unusable(row: Row) -> UnusableMachineType:
    return UnusableMachineType(
        name=row["machine_type"],
        gpu=row["gpu"],
        gpu_count=row["gpu_count"],
        vcpus=int(row["vcpus"]),
        memory_gb=float(row["memory_gb"]),
        reason=row["reason"],
        instead=row["instead"],
        sources=_words(row["source"]),
    )


def _host_limit(row: Row) -> HostLimit:
    return HostLimit(
        gpu=row["gpu"],
        count=int(row["count"]),
        max_vcpus=int(row["max_vcpus"]),
        max_memory_gb=float(row["max_memory_gb"]),
        sources=_words(row["source"]),
    )


def _region(row: Row) -> Region:
    return Region(
        name=row["region"],
        place=row["place"],
        latitude=float(row["latitude"]),
        longitude=float(row["longitude"]),
        vertex_training=_choice(row, "vertex_training", ("yes", "no", "sdk-only")),
        unverified=_words(row["unverified"]),
        sources=_words(row["source"]),
    )


def _availability(row: Row) -> Availability:
    return Availability(
        gpu=row["gpu"],
        region=row["region"],
        zones=_words(row["zones"]),
        machine_families=_words(row["machine_families"]),
        unverified=_words(row["unverified"]),
        sources=_words(row["source"]),
    )


def _sku_name(row: Row) -> SkuName:
    return SkuName(
        sku=row["sku"],
        resource=_choice(row, "resource", ("vcpu", "memory_gb", "gpu", "local_ssd_gb")),
        machine_families=_words(row["machine_families"]),
        gpu=row["gpu"],
    )


def _price(row: Row) -> Price:
    return Price(
        item=row["item"],
        unit=_choice(row, "unit", ("machine", "gpu", "vcpu", "memory_gb")),
        region=row["region"],
        on_demand=_number(row["on_demand"]),
        spot=_number(row["spot"]),
        unverified=_words(row["unverified"]),
        sources=_words(row["source"]),
    )
