"""The machine types of AI Platform Training's own, some of which brought GPUs. Vertex AI has Compute Engine's alone.

Source: GPUs are those of Google's page on GPUs for AI Platform Training; machines are those of the old documentation's
table of machine types, from general knowledge for those with V100.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LegacyMachine:
    """What a legacy machine type stood for.

    Attributes:
        machine_type: machine type of Compute Engine.
        accelerator: type and number of the GPUs that it brought.
        verified: whether the machine is in a copy of Google's table.
    """

    machine_type: str
    accelerator: tuple[str, int] | None = None
    verified: bool = True


_K80, _P100, _V100 = "NVIDIA_TESLA_K80", "NVIDIA_TESLA_P100", "NVIDIA_TESLA_V100"

LEGACY_MACHINES = {
    "standard": LegacyMachine("n1-standard-4"),
    "large_model": LegacyMachine("n1-highmem-8"),
    "complex_model_s": LegacyMachine("n1-highcpu-8"),
    "complex_model_m": LegacyMachine("n1-highcpu-16"),
    "complex_model_l": LegacyMachine("n1-highcpu-32"),
    "standard_gpu": LegacyMachine("n1-standard-8", (_K80, 1)),
    "complex_model_m_gpu": LegacyMachine("n1-standard-16", (_K80, 4)),
    "complex_model_l_gpu": LegacyMachine("n1-standard-32", (_K80, 8)),
    "standard_p100": LegacyMachine("n1-standard-8", (_P100, 1)),
    "complex_model_m_p100": LegacyMachine("n1-standard-16", (_P100, 4)),
    "standard_v100": LegacyMachine("n1-standard-8", (_V100, 1), verified=False),
    "large_model_v100": LegacyMachine("n1-highmem-8", (_V100, 1), verified=False),
    "complex_model_m_v100": LegacyMachine("n1-standard-16", (_V100, 4), verified=False),
    "complex_model_l_v100": LegacyMachine("n1-standard-32", (_V100, 8), verified=False),
}

#: The machine type that stood for a TPU.
CLOUD_TPU = "cloud_tpu"
