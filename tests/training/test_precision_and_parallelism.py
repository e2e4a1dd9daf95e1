"""What `auto` chooses, what is refused, and how many operations a model takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.model.compute import measure_cost, peak_flops
from gpu_pipelines.training.model.parallelism import choose_parallelism
from gpu_pipelines.training.model.precision import allow_tf32, choose_precision
from gpu_pipelines.training.model.recomputing import recompute_activations

GB = 10**9


@pytest.mark.parametrize("gpu", [gpu for gpu in load_catalog().gpus.values() if gpu.compute_capability])
def test_auto_takes_bf16_just_where_the_catalog_says_that_the_gpu_has_it(gpu: object) -> None:
    major, minor = map(int, gpu.compute_capability.split("."))
    chosen = choose_precision("auto", "cuda", (major, minor))
    assert chosen == ("bf16" if gpu.supports_bf16 else "fp16")


def test_auto_is_fp32_on_cpus() -> None:
    assert choose_precision("auto", "cpu", None) == "fp32"


def test_precisions_that_a_device_does_not_have_are_refused_with_what_to_give() -> None:
    with pytest.raises(UserError, match=r"(?s)bf16.*capability 7\.5.*Give fp16 or auto"):
        choose_precision("bf16", "cuda", (7, 5))
    with pytest.raises(UserError, match=r"(?s)fp16.*Give fp32, bf16 or auto"):
        choose_precision("fp16", "cpu", None)


@pytest.mark.parametrize(("precision", "multiplies"), [("bf16", "high"), ("fp16", "high"), ("fp32", "highest")])
def test_matrices_in_fp32_keep_their_bits_where_they_were_asked_for(precision: str, multiplies: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        allow_tf32(precision)
        assert torch.get_float32_matmul_precision() == multiplies
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("needed", "memory", "chosen"),
    [
        (16 * GB, 80 * GB, "ddp"),
        (112 * GB, 80 * GB, "fsdp"),
        (16 * GB, 24 * GB, "fsdp"),
        (1120 * GB, None, "ddp"),
    ],
)
def test_auto_shards_what_does_not_fit(needed: int, memory: int | None, chosen: str) -> None:
    assert choose_parallelism("auto", needed, memory) == chosen


def test_what_was_asked_for_is_taken() -> None:
    assert choose_parallelism("fsdp", 160, 80 * GB) == "fsdp"
    assert choose_parallelism("ddp", 16 * 10**12, 80 * GB) == "ddp"


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
    ],
)
def test_the_peak_of_a_gpu_is_that_of_the_catalog(device: str, gpu: str) -> None:
    assert peak_flops(device, "bf16") == load_catalog().gpus[gpu].bf16_tflops * 1e12


def test_a_gpu_without_the_precision_or_unknown_has_no_peak() -> None:
    assert peak_flops("Tesla T4", "bf16") is None
    assert peak_flops("Tesla T4", "fp16") == load_catalog().gpus["t4"].fp16_tflops * 1e12
    assert peak_flops("NVIDIA GeForce RTX 4090", "bf16") is None


class _Squares:
    def loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["x"]).square().mean()


def test_operations_are_six_for_each_weight_and_row() -> None:
    model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.Linear(64, 16, bias=False))
    weights = 32 * 64 + 64 * 16
    batch = {"x": torch.ones(8, 32)}
    cost = measure_cost(_Squares(), model, batch, 8, sharded=False)
    assert (cost.trained_parameters, cost.frozen_parameters) == (weights, 0)
    assert cost.forward_flops_per_row == 2 * weights
    assert cost.training_flops_per_row == 6 * weights
    model[0].requires_grad_(False)
    frozen = measure_cost(_Squares(), model, batch, 8, sharded=False)
    assert frozen.training_flops_per_row == pytest.approx(2 * weights * (2 + 64 * 16 / weights))


def test_a_part_of_a_weight_may_be_an_input_of_a_layer() -> None:
    """As the positions of a DeBERTa are."""

    class Positions(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows @ self.weight.T + self.own(self.weight[:]).sum()

    layer = Positions(8, 4, bias=False)
    layer.own = nn.Linear(8, 2, bias=False)
    cost = measure_cost(_Squares(), layer, {"x": torch.ones(16, 8)}, 16, sharded=False)
    assert cost.forward_flops_per_row == 2 * 8 * 4 + 2 * 4 * 8 * 2 / 16


def test_activations_are_what_the_backward_pass_needs() -> None:
    model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.Tanh())
    cost = measure_cost(_Squares(), model, {"x": torch.ones(8, 32)}, 8, sharded=False)
    # The input for the weight's gradient, tanh's output for its own and, the same, for the square's.
    assert cost.activation_bytes_per_row == 4 * (32 + 64)


@pytest.mark.parametrize(
    ("selective", "kept"), [(False, 0), (True, 64)], ids=["all is recomputed", "every second product is kept"]
)
def test_activations_of_recomputed_layers_are_what_is_kept_and_one_layer(selective: bool, kept: int) -> None:
    layers = [nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)) for _ in range(5)]
    model = nn.Sequential(*layers)
    recompute_activations(model, layers, selective=selective)
    cost = measure_cost(_Squares(), model, {"x": torch.ones(8, 32)}, 8, sharded=False)
    # Of each layer its input and what is kept, and the last output for its square; of the one that is recomputed its
    # input again, tanh's output and its own.
    assert cost.activation_bytes_per_row == 4 * (5 * (32 + kept) + 32 + 32 + 64 + 32)


def test_measuring_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(32, 4), nn.BatchNorm1d(4)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measure_cost(_Squares(), model, {"x": torch.rand(8, 32)}, 8, sharded=False)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_recomputed_layers_keep_the_names_of_their_weights_and_give_the_same_gradients() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 1))
    torch.manual_seed(0)
    wrapped = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 1))
    (block,) = recompute_activations(wrapped, [wrapped[1]])
    assert wrapped[1] is block
    assert wrapped.state_dict().keys() == plain.state_dict().keys()
    rows = torch.rand(3, 4)
    for model in (plain, wrapped):
        model(rows).sum().backward()
    for one, other in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
