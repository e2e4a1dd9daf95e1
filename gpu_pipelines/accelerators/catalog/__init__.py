"""Google Cloud's GPUs, machine types, regions and prices, as data files that a person can read and correct.

Each fact is in one CSV file of this folder. Two columns are in every file: `source`, the ids of rows of sources.csv
(what was read, where, as of when), and `unverified`, the columns of the row that rest on one weak source or on general
knowledge. Files are read when they are first needed; nothing is read at import.
"""

from gpu_pipelines.accelerators.catalog.loader import Catalog, CatalogError, load_catalog
from gpu_pipelines.accelerators.catalog.records import (
    Availability,
    ElsewhereGpu,
    Gpu,
    GpuPartition,
    MachineType,
    Price,
    Region,
)

__all__ = [
    "Availability",
    "Catalog",
    "CatalogError",
    "ElsewhereGpu",
    "Gpu",
    "GpuPartition",
    "MachineType",
    "Price",
    "Region",
    "load_catalog",
]
