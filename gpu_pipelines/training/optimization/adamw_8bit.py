"""AdamW with moments in eight bits: a quarter of their memory in fp32.

Source: Dettmers et al. 2021, https://arxiv.org/abs/2110.02861. The update is bitsandbytes'; what it keeps is held as
plain tensors of the shape of the weights, so that FSDP2 shards them and checkpoints hold them as any others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import zeros as sharded_zeros
from torch.optim import Optimizer

from gpu_pipelines.accelerators.workload import BLOCK
from gpu_pipelines.errors import UserError

#: Of smaller weights, eight bits would save next to nothing.
SMALLEST = 4096


def is_held_in_8_bits(weight: torch.Tensor) -> bool:
    """Whether the moments of a weight are in eight bits: its rows are whole blocks, so sharding cuts none."""
    return weight.ndim >= 2 and weight.numel() >= SMALLEST and weight.shape[-1] % BLOCK == 0


class AdamW8bit(Optimizer):
    """AdamW with decoupled weight decay, whose moments are in eight bits.

    Args:
        params: weights that `is_held_in_8_bits`, or groups of them.
        lr: learning rate.
        betas: decay of the two moments in a step.
        eps: added to the root of the second moment.
        weight_decay: of the weights, times the learning rate, in each step.

    Raises:
        UserError: bitsandbytes is not installed.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self._maps = _maps()
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates the weights that have gradients."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._change(weight, group)

    def _change(self, weight: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.zeros_like(weight, dtype=torch.uint8)
                state[f"{moment}_scales"] = _scales_of(weight)
        state["step"] += 1
        local = _local(weight)
        if not local.numel():
            return
        signed, unsigned = (each.to(local.device, non_blocking=True) for each in self._maps)
        self._maps = signed, unsigned
        beta, beta_of_squares = group["betas"]
        torch.ops.bitsandbytes.optimizer_update_8bit_blockwise(
            "adam",
            _local(weight.grad).contiguous(),
            local,
            _local(state["exp_avg"]),
            _local(state["exp_avg_sq"]),
            beta,
            beta_of_squares,
            0.0,
            0.0,
            group["eps"],
            int(state["step"]),
            float(group["lr"]),
            signed,
            unsigned,
            _local(state["exp_avg_scales"]).view(-1),
            _local(state["exp_avg_sq_scales"]).view(-1),
            group["weight_decay"],
            1.0,
        )


def _scales_of(weight: torch.Tensor) -> torch.Tensor:
    """A scale for each block, sharded as the weight is."""
    shape = (*weight.shape[:-1], weight.shape[-1] // BLOCK)
    if isinstance(weight, DTensor):
        return sharded_zeros(shape, device_mesh=weight.device_mesh, placements=weight.placements, dtype=torch.float32)
    return torch.zeros(shape, device=weight.device)


def _local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
    return found


def _maps() -> tuple[torch.Tensor, torch.Tensor]:
    """The 256 numbers that codes stand for: of the first moments, and of the second, which have no sign.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    try:
        from bitsandbytes.functional import create_dynamic_map
    except ImportError:
        raise UserError(
            "optimizer is adamw_8bit, and bitsandbytes is not installed.", "Install gpu-pipelines[quantization]."
        ) from None
    return create_dynamic_map(signed=True), create_dynamic_map(signed=False)
