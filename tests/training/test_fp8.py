"""Multiplications in fp8: refused with the reason where there are none; on CPUs the same numbers by other means."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SmallDatasets
from started_training import weights_digest
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from trainings import entries, losses_by_placement, train_here

from gpu_pipelines.errors import UserError
from gpu_pipelines.training.model.fp8 import multiply_in_fp8, require_fp8
from gpu_pipelines.training.settings import TrainingSettings

#: Where `make test` puts it: beside the others, transformers would import it in each of hundreds of processes.
TORCHAO = Path(sys.prefix) / "torchao"
SETTINGS = TrainingSettings(model="llama-micro", max_steps=4, checkpoint_every_steps=2, global_batch_size=8, fp8=True)
LAST = "step-00000004"


@pytest.fixture(autouse=True)
def with_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TORCHAO))


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9)])
def test_gpus_before_the_h100_are_refused(capability: tuple[int, int]) -> None:
    shown = ".".join(map(str, capability))
    with pytest.raises(UserError, match=rf"(?s)fp8 is true, which this GPU \(compute capability {shown}\).*H100"):
        require_fp8("cuda", "bf16", capability)


def test_later_gpus_and_rehearsals_have_it_but_not_beside_fp16() -> None:
    require_fp8("cuda", "bf16", (9, 0))
    require_fp8("cuda", "bf16", (10, 0))
    require_fp8("cpu", "fp32", None)
    with pytest.raises(UserError, match="precision is fp16"):
        require_fp8("cuda", "fp16", (9, 0))


def test_products_are_those_of_numbers_in_fp8() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(32, 16, bias=False), nn.Linear(16, 3))
    plain, rows = block[0].weight.detach().clone(), torch.randn(8, 32)
    assert multiply_in_fp8([block], "cpu") == 1, "the other one has 3 outputs"

    def rounded(numbers: torch.Tensor) -> torch.Tensor:
        scale = torch.finfo(torch.float8_e4m3fn).max / numbers.abs().max()
        return (numbers * scale).to(torch.float8_e4m3fn).float() / scale

    found = block[0](rows)
    torch.testing.assert_close(found, rounded(rows) @ rounded(plain).t(), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, rows @ plain.t(), rtol=1e-3, atol=1e-3)
    assert torch.equal(block[0].weight, plain)


def test_gpus_multiply_sides_of_multiples_of_16_whatever_the_rows() -> None:
    sides: list[int] = []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, operation: Any, types: Any, values: Any = (), named: Any = None) -> Any:
            if any(issubclass(each, Float8TrainingTensor) for each in types):
                return NotImplemented  # torchao's own tensors come first
            if operation is torch.ops.aten._scaled_mm.default:
                sides.extend([values[0].shape[1], *values[1].shape])
            return operation(*values, **(named or {}))

    from torchao.float8.float8_training_tensor import Float8TrainingTensor

    block = nn.Sequential(nn.Linear(64, 32))
    multiply_in_fp8([block], "cuda")
    with Watched():  # three images of a ViT of seven tokens, say
        block(torch.randn(3, 7, 64, requires_grad=True)).sum().backward()
    assert len(sides) == 3 * 3, "the product, the gradient of the rows, and that of the weight"
    assert all(side % 16 == 0 for side in sides), sides


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(UserError, match="multiples of 16"):
        multiply_in_fp8([nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 3))], "cpu")


@pytest.mark.slow
def test_shards_train_as_the_whole(datasets: SmallDatasets, tmp_path: Path) -> None:
    whole, sharded = losses_by_placement(replace(SETTINGS, precision="bf16"), datasets["lm"], tmp_path)
    assert sharded == pytest.approx(whole, rel=5e-3)


@pytest.mark.slow
def test_a_training_continues_to_the_bit_and_is_another_than_one_without(
    datasets: SmallDatasets, tmp_path: Path
) -> None:
    for folder, fp8 in (("with", True), ("without", False)):
        train_here(replace(SETTINGS, fp8=fp8), datasets["lm"], str(tmp_path / folder))
    with_it, without = (entries(tmp_path / folder, "val_loss") for folder in ("with", "without"))
    assert with_it != without
    assert with_it == pytest.approx(without, rel=0.02)
    whole = weights_digest(tmp_path / "with" / LAST)
    (tmp_path / "with" / LAST / "checkpoint.json").unlink()
    train_here(SETTINGS, datasets["lm"], str(tmp_path / "with"))
    assert weights_digest(tmp_path / "with" / LAST) == whole
    with pytest.raises(UserError, match="other parameters"):
        train_here(replace(SETTINGS, fp8=False), datasets["lm"], str(tmp_path / "with"))
