"""The gradients of a step: clipped as PyTorch clips them, in DDP's buckets or one by one; what is done meanwhile."""

from __future__ import annotations

import copy
import sys
import threading
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpu_pipelines.accelerators.memory_estimate import estimate_memory
from gpu_pipelines.accelerators.workload import Workload
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.model.gradients import Gradients, unscale
from gpu_pipelines.training.model.parallelism import before_gradients_are_awaited, replicated
from gpu_pipelines.training.model.precision import computing_in
from gpu_pipelines.training.optimization.optimizer import make_optimizers
from gpu_pipelines.training.settings import TrainingSettings

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "training"))
from language_model_memory import PeakMemory

pytestmark = pytest.mark.usefixtures("group_of_one")


def model() -> nn.Module:
    """With weights of several shapes, of which one has gradients of other strides than its own."""
    torch.manual_seed(3)
    depthwise = nn.Conv2d(4, 4, 3, groups=4)
    return nn.Sequential(nn.Conv2d(3, 4, 1), depthwise, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))


def loss_of(parallel: nn.Module) -> torch.Tensor:
    images = torch.arange(2 * 3 * 64, dtype=torch.float32).view(2, 3, 8, 8).sin().to(memory_format=torch.channels_last)
    return parallel(images).square().sum()


@pytest.mark.parametrize("most", [0.5, 1e6, 0.0])
@pytest.mark.parametrize("cap", [25.0, 0.001])
def test_buckets_are_clipped_as_the_gradients_of_one_process_are(most: float, cap: float) -> None:
    own = model()
    alone = copy.deepcopy(own)
    parallel = DistributedDataParallel(own, gradient_as_bucket_view=True, bucket_cap_mb=cap)
    gradients = Gradients(own, parallel)
    gradients.settle_buckets(lambda: loss_of(parallel))
    for _ in range(2):
        own.zero_grad()
        alone.zero_grad()
        loss_of(parallel).backward()
        loss_of(alone).backward()
        expected = nn.utils.clip_grad_norm_(alone.parameters(), most or float("inf"))
        torch.testing.assert_close(gradients.clip(most), expected)
        for one, other in zip(gradients.all(), alone.parameters(), strict=True):
            torch.testing.assert_close(one, other.grad)


def test_gradients_that_are_no_numbers_have_all_optimizers_miss_the_step() -> None:
    own = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizers = make_optimizers(own, TrainingSettings(optimizer="muon", learning_rate=0.1, weight_decay=0.3))
    assert len(optimizers) == 2, "one for the first matrix"
    scaler = torch.amp.GradScaler("cpu")
    for broken in (True, False):
        before = copy.deepcopy(list(own.parameters()))
        scaler.scale(own(torch.ones(2, 4)).square().sum()).backward()
        if broken:
            own[0].weight.grad[0, 0] = torch.nan
        unscale(scaler, optimizers)
        Gradients(own, own).clip(1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        same = [torch.equal(weight, old) for weight, old in zip(own.parameters(), before, strict=True)]
        assert same == [broken] * 4


def test_gradients_that_are_parts_of_something_else_are_clipped_one_by_one() -> None:
    own = nn.Linear(3, 2, bias=False)
    parallel = DistributedDataParallel(own, gradient_as_bucket_view=True)
    beside = torch.full((10,), 7.0)
    own.weight.grad = beside[:6].view(2, 3)
    norm = Gradients(own, parallel).clip(1.0)
    assert norm.item() == pytest.approx(7 * 6**0.5)
    assert own.weight.grad.norm().item() == pytest.approx(1.0)
    assert beside[6:].tolist() == [7.0] * 4


def test_settling_leaves_no_gradient_and_the_statistics_as_they_were() -> None:
    own = model()
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    parallel = DistributedDataParallel(own, gradient_as_bucket_view=True).eval()
    Gradients(own, parallel).settle_buckets(lambda: loss_of(parallel))
    assert not parallel.training
    assert all(weight.grad is None for weight in own.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())


def test_a_weight_that_the_loss_does_not_depend_on_has_zeros(capsys: pytest.CaptureFixture[str]) -> None:
    own = nn.Sequential(OrderedDict(used=nn.Linear(2, 3), unused=nn.Linear(3, 3), head=nn.Linear(3, 1)))
    own.forward = lambda rows: own.head(own.used(rows))
    alone = copy.deepcopy(own)
    gradients = Gradients(own, DistributedDataParallel(own, gradient_as_bucket_view=True))
    gradients.settle_buckets(lambda: gradients.parallel(torch.ones(1, 2)).sum())
    for _ in range(2):
        gradients.parallel(torch.ones(1, 2)).sum().backward()
        alone.head(alone.used(torch.ones(1, 2))).sum().backward()
        torch.testing.assert_close(gradients.clip(1.0), nn.utils.clip_grad_norm_(alone.parameters(), 1.0))
        for one, other in zip(gradients.all(), alone.parameters(), strict=True):
            torch.testing.assert_close(one, torch.zeros_like(one) if other.grad is None else other.grad)
        own.zero_grad()
        alone.zero_grad()
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "note: the loss does not depend on unused.bias, unused.weight, which it cannot train"


def test_a_weight_that_the_loss_depended_on_before_is_named() -> None:
    own = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    parallel = DistributedDataParallel(own, gradient_as_bucket_view=True)
    own["used"](torch.ones(1, 2)).sum().backward()
    with pytest.raises(UserError, match=r"got no gradient.*: unused.bias, unused.weight\."):
        Gradients(own, parallel).clip(1.0)


def test_what_is_done_before_gradients_are_awaited_is_done_when_all_are_computed_and_none_is_summed() -> None:
    parallel = DistributedDataParallel(model(), gradient_as_bucket_view=True)
    summed: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    buckets: list[torch.Tensor] = []

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations, and these would be text
        buckets.append(bucket.buffer())
        return summed

    parallel.register_comm_hook(None, hook)
    late = threading.Timer(20, lambda: summed.set_exception(TimeoutError("nothing was done before the wait")))
    late.start()
    loss = loss_of(parallel)
    before_gradients_are_awaited(loss, lambda: summed.set_result(buckets[0]))
    loss.backward()
    late.cancel()
    assert len(buckets) == 1


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_buckets_and_copies_in_16_bits_are_there_with_the_activations_as_advise_says(precision: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 512, "intermediate_size": 1792, "num_hidden_layers": 4, "num_attention_heads": 8}
    own = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=256, use_cache=False))
    tokens = torch.zeros(1, 128, dtype=torch.long)
    optimizer = torch.optim.AdamW(own.parameters(), foreach=False)
    with PeakMemory([*own.parameters(), *own.buffers()]) as memory:
        parallel = replicated(own)
        for _ in range(2):
            memory.peak = 0
            with computing_in(precision, "cpu"):
                loss = parallel(input_ids=tokens, labels=tokens).loss
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()
    job = {"layers": 4, "hidden_size": 512, "vocabulary": 256, "sequence_length": 128, "batch": 1}
    parameters = sum(weight.numel() for weight in own.parameters())
    said = estimate_memory(Workload(parameters=parameters, tokens=1e9, **job), precision, 2, "ddp")
    assert said.total - said.runtime == pytest.approx(memory.peak / 1e9, rel=0.1), said.told()
