"""From the name that NVIDIA's driver gives a GPU to the names of the catalog."""

from __future__ import annotations

from gpu_pipelines.accelerators.catalog import load_catalog


def catalog_names(device_name: str) -> list[str]:
    """Names in the catalog that a device may have: one GPU comes with several sizes of memory and on several machines.

    Args:
        device_name: as `nvidia-smi` and PyTorch give it, such as "NVIDIA H100 80GB HBM3".
    """
    words = set(device_name.lower().replace("-", " ").split())
    return [name for name in load_catalog().gpus if _model_of(name) <= words]


def _model_of(name: str) -> set[str]:
    """The words of a GPU's name without the size of its memory or its machine, which do not change its peak."""
    return {word for word in name.split("-") if word != "mega" and not word.endswith("gb")}
