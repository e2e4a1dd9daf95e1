"""NVIDIA GPUs of Google Cloud by name: checked, placed, priced and advised on, before anything is submitted.

Imports no cloud SDK, neither kfp nor torch; what asks Google's APIs is in `gpu_pipelines.accelerators.live`.
"""

from gpu_pipelines.accelerators.catalog import Catalog, CatalogError, Gpu, MachineType, load_catalog
from gpu_pipelines.accelerators.cautions import Caution
from gpu_pipelines.accelerators.plan import AcceleratorPlan, PlanError, Problem, plan, plan_request
from gpu_pipelines.accelerators.request import STRATEGIES, PlanRequest

__all__ = [
    "STRATEGIES",
    "AcceleratorPlan",
    "Catalog",
    "CatalogError",
    "Caution",
    "Gpu",
    "MachineType",
    "PlanError",
    "PlanRequest",
    "Problem",
    "load_catalog",
    "plan",
    "plan_request",
]
