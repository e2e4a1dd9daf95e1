"""The boot image of a VM, which has the driver of its GPU."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.errors import UserError

DEEP_LEARNING_VM_PROJECT = "deeplearning-platform-release"

#: CUDA 12.9 with driver branch 580: it knows every GPU from Turing to Blackwell, and runs containers of CUDA 12 and 13.
#: Not from a page of Google's: public code of 2026 creates A100, L4 and H100 machines from it.
CURRENT_FAMILY = "common-cu129-ubuntu-2204-nvidia-580"
#: CUDA 12.8 with driver branch 570. CUDA 12.9 is the last to know Pascal and Volta. Public code takes it for a P100.
BEFORE_TURING_FAMILY = "common-cu128-ubuntu-2204-nvidia-570"


@dataclass(frozen=True)
class BootImage:
    """The boot image of a VM.

    Attributes:
        project: project of the image family.
        family: the image family; its newest image is taken.
        warning: what is not known about it; empty for nothing.
    """

    project: str
    family: str
    warning: str = ""


def boot_image(plan: AcceleratorPlan, family: str | None = None, project: str | None = None) -> BootImage:
    """The image for the GPU of a plan.

    Args:
        plan: plan of the VM.
        family: image family to use instead.
        project: project of that family; None for that of the Deep Learning VM images.

    Raises:
        UserError: no image for it is known.
    """
    if project and not family:
        raise UserError(f"--image-project {project} has no effect without --image-family.", "Give both.")
    if family:
        return BootImage(project or DEEP_LEARNING_VM_PROJECT, family)
    if plan.machine is not None and plan.machine.host_architecture != "amd64":
        raise UserError(
            f"No Deep Learning VM image is known for {plan.machine_type}, whose hosts are "
            f"{plan.machine.host_architecture}.",
            "Give --image-family and --image-project of an image that has the NVIDIA driver, docker with the NVIDIA "
            "container toolkit, and gcloud.",
        )
    if plan.gpu is not None and plan.gpu.last_cuda:
        return BootImage(
            DEEP_LEARNING_VM_PROJECT,
            BEFORE_TURING_FAMILY,
            f"That {BEFORE_TURING_FAMILY} drives {plan.gpu.name} is not verified: NVIDIA's open kernel modules begin "
            "with Turing, and no page says which ones it has. The start-up script checks.",
        )
    return BootImage(DEEP_LEARNING_VM_PROJECT, CURRENT_FAMILY)
