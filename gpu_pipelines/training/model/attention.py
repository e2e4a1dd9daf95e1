"""The attention implementation of a model: its own choice, or the parameter `attention`."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.attention import NAMES, use_attention
from gpu_pipelines.training.machine.local_devices import Devices

#: Those that have no backward pass on CPUs.
_OF_GPUS = ("flash_attention_2", "flex")
#: First compute capability that FlashAttention 2 has kernels for: Ampere. Source: its README.
_FLASH_FROM = (8, 0)


def choose_attention(model: nn.Module, asked: str, device: torch.device, precision: str, devices: Devices) -> None:
    """Makes a model use the attention that the user chose.

    Args:
        model: as it was built.
        asked: auto, flash_attention_2, sdpa, flex or eager.
        device: where it will be.
        precision: of the forward pass.
        devices: what each node trains on. A rehearsal takes the model's own in the place of what CPUs do not compute:
            sdpa, or eager where it does not have that.

    Raises:
        UserError: the device, the model, or the installed packages do not have it.
    """
    if asked == "auto":
        return
    if asked in _OF_GPUS and device.type == "cpu" and devices.rehearsal:
        own = getattr(getattr(model, "config", None), "_attn_implementation", "")
        own = own if own in NAMES else "sdpa"
        if torch.distributed.get_rank() == 0:
            print(f"attention is {asked}, which CPUs do not train with; the rehearsal takes {own}", flush=True)
        asked = own
    if missing := _what_is_missing(asked, device, precision):
        raise UserError(f"attention is {asked}, {missing}.", "Give auto, or sdpa.")
    use_attention(model, asked)


def _what_is_missing(asked: str, device: torch.device, precision: str) -> str:
    """Why there is no such attention here; empty where there is."""
    if asked in _OF_GPUS and device.type == "cpu":
        return "which CPUs do not train with"
    if asked != "flash_attention_2":
        return ""
    if find_spec("flash_attn") is None:
        return "and the package flash-attn is not installed; auto takes PyTorch's own FlashAttention for packed rows"
    if precision == "fp32":
        return "which computes in 16 bits alone, and precision is fp32"
    return "" if torch.cuda.get_device_capability(device) >= _FLASH_FROM else "which this GPU has no kernels for"
