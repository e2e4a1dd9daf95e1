"""What a rank of 32 does with models of real size: fake tensors on a fake process group of PyTorch's, on this machine.

No memory is taken and nothing is computed, but every operation is dispatched: shapes, collectives and bytes are real.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_pipelines.accelerators.memory_estimate import estimate_memory
from gpu_pipelines.accelerators.workload import Workload
from gpu_pipelines.tasks.causal_lm.chunked_loss import in_chunks
from gpu_pipelines.training.model.parallelism import SHARD, emptied, mesh_of, shard, without_all_reduce
from gpu_pipelines.training.model.recomputing import recompute_activations

NODES, PER_NODE = 4, 8
SLOW = pytest.mark.slow
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NODES * PER_NODE)
    yield
    dist.destroy_process_group()


@dataclass(frozen=True)
class Shape:
    """A published model, and how `advise` is told of it."""

    build: Callable[[], tuple[nn.Module, list[nn.Module]]]
    inputs: Callable[[], dict[str, torch.Tensor]]
    workload: Workload


def llama(layers: int, hidden: int, heads: int, tokens: int, recompute: bool, selective: bool = False) -> Shape:
    """Llama 3. Source: Dubey et al. 2024, https://arxiv.org/abs/2407.21783, table 3."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def build() -> tuple[nn.Module, list[nn.Module]]:
        config = LlamaConfig(
            hidden_size=hidden,
            intermediate_size=hidden * 7 // 2,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=8,
            vocab_size=128_256,
            use_cache=False,
        )
        model = LlamaForCausalLM(config)
        return model, list(model.model.layers)

    def inputs() -> dict[str, torch.Tensor]:
        ids = torch.zeros(1, tokens, dtype=torch.long)
        return {"input_ids": ids, "labels": ids}

    # Queries and outputs, keys and values of 8 heads, three matrices of the MLP; table and head.
    per_layer = hidden * hidden * 2 + 2 * hidden * 8 * hidden // heads + 3 * hidden * (hidden * 7 // 2)
    parameters = layers * per_layer + 2 * 128_256 * hidden
    job = {"layers": layers, "hidden_size": hidden, "vocabulary": 128_256, "sequence_length": tokens}
    how = {"recompute": recompute, "selective": selective}
    return Shape(build, inputs, Workload(parameters=parameters, tokens=1e9, batch=1, **how, **job))


def qwen(layers: int, **how: bool) -> Shape:
    """Qwen2.5 7B, whose MLP is wider. Source: its config.json, https://huggingface.co/Qwen/Qwen2.5-7B."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    def build() -> tuple[nn.Module, list[nn.Module]]:
        attention = {"num_attention_heads": 28, "num_key_value_heads": 4}
        width = {"hidden_size": 3584, "intermediate_size": 18_944, "vocab_size": 152_064}
        model = Qwen2ForCausalLM(Qwen2Config(num_hidden_layers=layers, use_cache=False, **width, **attention))
        return model, list(model.model.layers)

    def inputs() -> dict[str, torch.Tensor]:
        ids = torch.zeros(1, 4096, dtype=torch.long)
        return {"input_ids": ids, "labels": ids}

    per_layer = 2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18_944
    parameters = layers * per_layer + 2 * 152_064 * 3584
    job = {"layers": layers, "hidden_size": 3584, "vocabulary": 152_064, "sequence_length": 4096}
    return Shape(build, inputs, Workload(parameters=parameters, tokens=1e9, batch=1, **job, **how))


def vit_large(recompute: bool = False) -> Shape:
    """ViT-L/16. Source: Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929, table 1."""
    from transformers import ViTConfig, ViTForImageClassification

    def build() -> tuple[nn.Module, list[nn.Module]]:
        config = ViTConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16)
        model = ViTForImageClassification(config)
        return model, [module for module in model.modules() if type(module).__name__ == "ViTLayer"]

    def inputs() -> dict[str, torch.Tensor]:
        return {"pixel_values": torch.zeros(64, 3, 224, 224), "labels": torch.zeros(64, dtype=torch.long)}

    job = {"layers": 24, "hidden_size": 1024, "vocabulary": 0, "sequence_length": 197}
    return Shape(
        build, inputs, Workload(parameters=303e6, samples=1e6, batch=64, recompute=recompute, selective=True, **job)
    )


class Collectives(TorchDispatchMode):
    """Counts what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            self.counts[func.name().split("::")[1].split(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """As the recipe of language models makes it; of others, as they make it themselves."""
    if "input_ids" in batch:
        tokens = batch["labels"]
        if scored := in_chunks(model, lambda: model(input_ids=batch["input_ids"]), tokens):
            return scored.mean(tokens)
    return model(**batch).loss


def step(shape: Shape, parallelism: str, micro_batches: int = 1) -> tuple[Counter[str], dict[str, int], int]:
    """A second step: what it sent, the most bytes by kind, and the number of units."""
    with torch.device("meta"):
        model, blocks = shape.build()
    mesh = mesh_of(parallelism, "cpu", NODES, PER_NODE)
    assert mesh is not None
    # Fake tensors have no values: whatever waits for one raises.
    with FakeTensorMode(allow_non_fake_inputs=True):
        if shape.workload.recompute:
            blocks = recompute_activations(model, blocks, selective=shape.workload.selective)
        shard(model, blocks, mesh, "bf16")
        emptied(model, CPU)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
        memory, batch = FSDPMemTracker(model, optimizer), shape.inputs()
        memory.track_inputs(tuple(batch.values()))
        with memory:
            for _ in range(2):
                memory._peak_mem, memory._peak_mem_snap = {}, {}
                with Collectives() as sent:
                    for micro_batch in range(1, micro_batches + 1):
                        memory.reset_mod_stats()
                        with without_all_reduce(model, last=micro_batch == micro_batches):
                            with torch.autocast("cpu", torch.bfloat16):
                                loss = loss_of(model, batch)
                            loss.backward()
                        del loss
                peak = memory.get_tracker_snapshot("peak")[CPU]
                # Fused, the fake kernel copies the whole state; one by one, it makes what the real one does not.
                optimizer.step()
                optimizer.zero_grad()
    units = sum(type(module).__name__.startswith("FSDP") for module in model.modules())
    return sent.counts, {str(kind).split(".")[-1]: held for kind, held in peak.items()}, units


@pytest.mark.slow_but_for("hsdp-2")
@pytest.mark.parametrize(("parallelism", "micro_batches"), [("fsdp", 1), ("hsdp", 1), ("hsdp", 2)])
def test_a_step_sends_each_unit_as_often_as_it_must(parallelism: str, micro_batches: int) -> None:
    counts, _, units = step(llama(2, 4096, 32, 512, recompute=False), parallelism, micro_batches)
    assert units == 2 + 3, "layers, table, head, and what is left"
    # Forwards all units are gathered; backwards those that were let go, which the last one is not.
    assert counts.pop("_allgather_base_") == micro_batches * (units + units - 1)
    assert counts.pop("_reduce_scatter_base_") == micro_batches * units
    # Between nodes, whose network is the slow one, they are summed once.
    assert counts.pop("allreduce_", 0) == (units if parallelism == "hsdp" else 0)
    assert not counts, "nothing else is sent"


def mixtral(layers: int, tokens: int, **how: bool) -> Shape:
    """Mixtral 8x7B. Source: Jiang et al. 2024, https://arxiv.org/abs/2401.04088, table 1."""
    from transformers import MixtralConfig, MixtralForCausalLM

    def build() -> tuple[nn.Module, list[nn.Module]]:
        model = MixtralForCausalLM(MixtralConfig(num_hidden_layers=layers, use_cache=False))
        return model, list(model.model.layers)

    def inputs() -> dict[str, torch.Tensor]:
        ids = torch.zeros(1, tokens, dtype=torch.long)
        return {"input_ids": ids, "labels": ids}

    # Queries and outputs, keys and values; three matrices of each of 8 experts, of which a token passes through two.
    attention, expert = 2 * 4096 * 4096 + 2 * 4096 * 1024, 3 * 4096 * 14_336
    whole, used = (layers * (attention + count * expert) + 2 * 32_000 * 4096 for count in (8, 2))
    job = {"layers": layers, "hidden_size": 4096, "vocabulary": 32_000, "sequence_length": tokens, "batch": 1}
    experts = {"active_parameters": used, "experts_per_token": 2}
    return Shape(build, inputs, Workload(parameters=whole, tokens=1e9, **experts, **how, **job))


def qwen_of_experts(layers: int, **how: bool) -> Shape:
    """Qwen3-30B-A3B, of many small experts. Source: its config.json, https://huggingface.co/Qwen/Qwen3-30B-A3B."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    def build() -> tuple[nn.Module, list[nn.Module]]:
        attention = {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
        experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
        width = {"hidden_size": 2048, "vocab_size": 151_936, "num_hidden_layers": layers}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(use_cache=False, **width, **attention, **experts))
        return model, list(model.model.layers)

    def inputs() -> dict[str, torch.Tensor]:
        ids = torch.zeros(1, 4096, dtype=torch.long)
        return {"input_ids": ids, "labels": ids}

    attention, expert = 2 * 2048 * 4096 + 2 * 2048 * 512, 3 * 2048 * 768
    whole, used = (layers * (attention + count * expert) + 2 * 151_936 * 2048 for count in (128, 8))
    job = {"layers": layers, "hidden_size": 2048, "vocabulary": 151_936, "sequence_length": 4096, "batch": 1}
    experts = {"active_parameters": used, "experts_per_token": 8}
    return Shape(build, inputs, Workload(parameters=whole, tokens=1e9, **experts, **how, **job))


def test_experts_are_sharded_with_their_layer() -> None:
    counts, _, units = step(mixtral(2, 512), "fsdp")
    assert counts["_reduce_scatter_base_"] == units == 2 + 3


@pytest.mark.slow_but_for("four-layers-of-70b")
@pytest.mark.parametrize(
    ("shape", "parallelism"),
    [
        pytest.param(lambda: llama(32, 4096, 32, 4096, recompute=False), "hsdp", id="8b-hsdp", marks=SLOW),
        pytest.param(lambda: llama(32, 4096, 32, 4096, recompute=True), "fsdp", id="8b", marks=SLOW),
        pytest.param(lambda: llama(4, 8192, 64, 4096, recompute=True), "fsdp", id="four-layers-of-70b"),
        pytest.param(lambda: llama(80, 8192, 64, 4096, recompute=True), "fsdp", id="70b", marks=SLOW),  # four minutes
        pytest.param(
            lambda: llama(32, 4096, 32, 4096, recompute=True, selective=True),
            "fsdp",
            id="8b-selective",
            marks=SLOW,
        ),
        pytest.param(lambda: mixtral(32, 4096, recompute=False), "fsdp", id="mixtral", marks=SLOW),
        pytest.param(lambda: mixtral(5, 4096, recompute=False), "fsdp", id="five-layers-of-mixtral"),
        pytest.param(
            lambda: mixtral(32, 4096, recompute=True, selective=True), "fsdp", id="mixtral-selective", marks=SLOW
        ),
        pytest.param(lambda: qwen_of_experts(6, recompute=False), "fsdp", id="six-layers-of-qwen3-30b"),
        pytest.param(lambda: qwen_of_experts(48, recompute=False), "fsdp", id="qwen3-30b", marks=SLOW),
        pytest.param(lambda: qwen(28, recompute=False), "fsdp", id="qwen", marks=SLOW),
        pytest.param(lambda: qwen(28, recompute=True, selective=True), "fsdp", id="qwen-selective", marks=SLOW),
        pytest.param(vit_large, "fsdp", id="vit-l", marks=SLOW),
        pytest.param(lambda: vit_large(recompute=True), "fsdp", id="vit-l-selective", marks=SLOW),
    ],
)
def test_the_memory_is_what_advise_says_within_a_tenth(shape: Callable[[], Shape], parallelism: str) -> None:
    made = shape()
    _, peak, _ = step(made, parallelism)
    shards = PER_NODE if parallelism == "hsdp" else NODES * PER_NODE
    estimate = estimate_memory(made.workload, "bf16", shards, parallelism)
    assert estimate.total - estimate.runtime == pytest.approx(peak["Total"] / 1e9, rel=0.1), (estimate.told(), peak)


@pytest.mark.slow
def test_selective_recomputation_keeps_less_than_none_and_more_than_all() -> None:
    kept = []
    for how in ({"recompute": False}, {"recompute": True, "selective": True}, {"recompute": True}):
        few, many = (step(llama(layers, 1024, 8, 512, **how), "fsdp")[1]["ACT"] for layers in (1, 2))
        kept.append((many - few) / 1024 / 512)
    # Of 8 heads all are keys and values: queries, values and the outputs of attention and of both ends of the MLP stay.
    assert kept[1] == pytest.approx(2 + 2 + 2 + 2 + 7 + 2, abs=0.1), "and its input"
    assert kept[0] > 3 * kept[1]
    assert kept[2] == pytest.approx(2, abs=0.1), "its input alone"


BUILT = """
import re
from transformers import LlamaConfig, LlamaForCausalLM
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from gpu_pipelines.training.model.parallelism import built_once, mesh_of, shard
dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=32)
shape = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
config = LlamaConfig(**shape, num_key_value_heads=8, vocab_size=128256)
model = built_once(lambda: LlamaForCausalLM(config))
shard(model, list(model.model.layers), mesh_of("fsdp", "cpu", 4, 8), "bf16")
assert sum(weight.numel() for weight in model.parameters()) > 70e9
# Not ru_maxrss, which begins with the memory of the process that started this one.
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]))
"""


@pytest.mark.slow
def test_a_rank_that_is_not_the_first_builds_70b_in_less_than_a_gigabyte() -> None:
    built = subprocess.run([sys.executable, "-c", BUILT], capture_output=True, text=True, check=True)
    assert int(built.stdout.split()[-1]) < 1e9, "with PyTorch and transformers"


def test_a_node_of_replicas_shares_the_gradients_of_its_own_shards() -> None:
    mesh = mesh_of("hsdp", "cpu", NODES, PER_NODE)
    assert mesh is not None
    assert mesh.mesh.shape == (NODES, PER_NODE)
    assert mesh[SHARD].mesh.tolist() == list(range(PER_NODE))
