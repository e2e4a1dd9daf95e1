"""Several processes: what each holds of a model, and that all ways of placing it train alike."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from forked import Forked
from torch import nn
from torch.distributed.tensor import DTensor

from gpu_pipelines.tasks.checkpoint_state import WEIGHTS, load_state, save_state, trained_weights
from gpu_pipelines.training.checkpoints.checkpointing import _groups
from gpu_pipelines.training.model import placed_model
from gpu_pipelines.training.model.compute import ModelCost
from gpu_pipelines.training.model.parallelism import (
    built_once,
    choose_parallelism,
    least_memory,
    mesh_of,
    place,
    shard,
    sharded_dimension,
    without_all_reduce,
)
from gpu_pipelines.training.model.placed_model import PlacedModel
from gpu_pipelines.training.model.precision import computing_in
from gpu_pipelines.training.optimization.optimizer import make_optimizers
from gpu_pipelines.training.settings import TrainingSettings

PROCESSES, PER_NODE = 4, 2
STEPS, ROWS = 4, 16


class Experts(nn.Module):
    """Two experts in one weight, which are fewer than the processes; all that comes goes through both."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 8, 8))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ri,eio->ro", hidden, self.weight) / 8


class Blocks(nn.Module):
    """Blocks between a table and a head that are one weight, with a buffer that is in no state dict."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), Experts(), nn.LayerNorm(8)) for _ in range(3))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.table.weight
        self.register_buffer("scale", torch.full((8,), 1.5), persistent=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.table(tokens) * self.scale
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden))
        return self.head(self.norm(hidden))


def _in_group(
    rank: int, program: Callable[..., Any], processes: int, store: str, results: str, more: tuple, meet: bool
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(PER_NODE)}
    dist.init_process_group("gloo", store=dist.FileStore(store, processes), rank=rank, world_size=processes)
    torch.save(program(*more), Path(results) / f"{rank}.pt")
    if meet:
        dist.barrier()
    dist.destroy_process_group()


def fork() -> None:
    """Forks the processes of `on_processes`, and waits for them."""
    arguments = pickle.loads(Path(sys.argv[1]).read_bytes())
    mp.start_processes(_in_group, arguments, nprocs=arguments[1], start_method="fork")


def on_processes(program: Callable[..., Any], *more: Any, processes: int = PROCESSES, meet: bool = True) -> list[Any]:
    """What a program gives on each process.

    They are forked by a process that does nothing else: forked by this one, they would wait for threads that it has.
    """
    with tempfile.TemporaryDirectory() as scratch:
        job = Path(scratch) / "job"
        job.write_bytes(pickle.dumps((program, processes, f"{scratch}/store", scratch, more, meet)))
        process = Forked(f"{__name__}:fork", [str(job)], os.environ, merged=True)
        printed, _ = process.communicate()
        assert process.returncode == 0, printed
        return [torch.load(Path(scratch) / f"{rank}.pt", weights_only=True) for rank in range(processes)]


class Communicator:
    """NCCL's, of which a part can be split by all of its processes together alone."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        raise RuntimeError("this process waits for ever")


def groups_of_writers() -> list[int]:
    """As on GPUs, where the group of all processes has a device: PyTorch has NCCL split there.

    Only for those outside the groups: PyTorch 2.14 hands it on to Gloo, and takes no stand-in.
    """
    mesh = mesh_of("hsdp", "cpu", 2, 1)
    dist.group.WORLD.bound_device_id = torch.device("cuda", dist.get_rank())
    dist.distributed_c10d._get_split_source = lambda group: Communicator() if dist.get_rank() else None
    groups = [dist.get_world_size(group) for group in _groups(mesh) if group is not None]
    dist.group.WORLD.bound_device_id = None
    return groups


def what_follows_from_one_process() -> tuple[float, int | None]:
    """Operations of a row, of which others hold documents of other lengths, and the memory of a GPU."""
    placed = PlacedModel.__new__(PlacedModel)
    placed.module, placed.mesh, placed._precision, placed._device = nn.Identity(), None, "fp32", torch.device("cpu")
    placed._recipe = Namespace(rows_of=len)
    placed_model.measure_cost = lambda *_, **__: ModelCost(1, 0, 100.0 + dist.get_rank(), None)
    torch.cuda.mem_get_info = lambda _: (0, 80_000 - dist.get_rank())
    cost = placed.measure({"input_ids": torch.ones(1)})
    return cost.forward_flops_per_row, least_memory(torch.device("cuda"))


def asked_of_two() -> tuple[list[int], tuple[float, int | None]]:
    return groups_of_writers(), what_follows_from_one_process()


@pytest.fixture(scope="module")
def two() -> list[tuple[list[int], tuple[float, int | None]]]:
    return on_processes(asked_of_two, processes=2)


def test_those_who_write_no_checkpoint_do_not_wait_for_those_who_do(two: Any) -> None:
    assert [groups for groups, _ in two] == [[1, 1], []]


def test_all_processes_compile_and_shard_by_the_same_figures(two: Any) -> None:
    """One that did something else would wait for the others for ever."""
    assert [figures for _, figures in two] == [(100.0, 79_999)] * 2


def trained(parallelism: str, micro_batches: int = 1, tied: bool = True) -> dict[str, torch.Tensor]:
    """The weights after some steps; `whole` counts the elements of gradients that a process keeps between batches."""
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(3)
    model = built_once(lambda: Blocks(tied))
    mesh = mesh_of(parallelism, "cpu", world // PER_NODE, PER_NODE)
    parallel = place(model, list(model.blocks), mesh, "fp32", torch.device("cpu"))
    assert (model.head.weight is model.table.weight) == tied
    (optimizer,) = make_optimizers(model, TrainingSettings(learning_rate=0.05))
    draw = torch.Generator().manual_seed(5)
    kept = 0
    parallel.eval()  # the statistics of a batch would differ with its size
    for _ in range(STEPS):
        tokens = torch.randint(11, (ROWS,), generator=draw).view(micro_batches, world, -1)[:, rank]
        for number, batch in enumerate(tokens, start=1):
            with without_all_reduce(parallel, last=number == micro_batches):
                loss = nn.functional.cross_entropy(parallel(batch), (batch + 1) % 11) / micro_batches
                loss.backward()
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            kept = max(kept, sum((g.to_local() if isinstance(g, DTensor) else g).numel() for g in gradients))
        optimizer.step()
        optimizer.zero_grad()
    whole = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in model.state_dict().items()
    }
    return {**whole, "scale": model.scale, "kept": torch.tensor(kept)}


def trained_in_all_ways() -> dict[str, dict[str, torch.Tensor]]:
    ways = [(parallelism, 1, tied) for parallelism in ("ddp", "fsdp", "hsdp") for tied in (True, False)]
    return {" ".join(map(str, way)): trained(*way) for way in (*ways, ("fsdp", 2, True), ("hsdp", 2, True))}


@pytest.fixture(scope="module")
def ways() -> list[dict[str, dict[str, torch.Tensor]]]:
    return on_processes(trained_in_all_ways)


@pytest.mark.parametrize(
    "way", ["fsdp 1 True", "fsdp 1 False", "hsdp 1 True", "hsdp 1 False", "fsdp 2 True", "hsdp 2 True"]
)
def test_every_way_of_placing_a_model_trains_alike(ways: Any, way: str) -> None:
    """The words are how it is placed, the number of micro-batches, and whether head and table are one weight."""
    for held in ways:
        ddp, other = held[f"ddp 1 {way.split()[-1]}"], held[way]
        for name in set(ddp) - {"kept"}:
            torch.testing.assert_close(ddp[name], other[name], rtol=1e-5, atol=1e-6, msg=name)
        assert torch.equal(other["scale"], torch.full((8,), 1.5))


def test_gradients_are_accumulated_in_shards(ways: Any) -> None:
    whole = sum(weight.numel() for weight in Blocks().parameters())
    for held in ways:
        assert int(held["fsdp 2 True"]["kept"]) <= whole / PROCESSES * 1.4  # shards of few rows are not equal
        assert int(held["ddp 1 True"]["kept"]) == whole


def whole_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    model = built_once(Blocks)
    place(model, list(model.blocks), mesh_of("fsdp", "cpu", 1, dist.get_world_size()), "fp32", torch.device("cpu"))
    return {name: value.full_tensor() for name, value in model.state_dict().items() if isinstance(value, DTensor)}


@pytest.mark.slow
def test_the_weights_do_not_depend_on_the_number_of_processes() -> None:
    torch.manual_seed(3)
    alone = Blocks().state_dict()
    for processes in (1, 3):
        for held in on_processes(whole_weights, processes=processes):
            assert all(torch.equal(alone[name], value) for name, value in held.items())


class Looking(nn.Linear):
    """A layer that looks at its weights while it is built."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.largest = self.weight.max().item()


def weight_that_was_looked_at() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    model = built_once(lambda: nn.Sequential(Looking()))
    place(model, [], mesh_of("fsdp", "cpu", 1, 2), "fp32", torch.device("cpu"))
    return {"weight": model[0].weight.full_tensor()}


@pytest.mark.slow
def test_a_model_that_cannot_be_built_without_weights_is_built_with_them() -> None:
    first, second = on_processes(weight_that_was_looked_at, processes=2)
    assert torch.equal(first["weight"], second["weight"])


def saved_and_read(folder: Path) -> dict[str, torch.Tensor]:
    mesh = mesh_of("fsdp", "cpu", 1, PROCESSES)
    models = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        models.append(built_once(lambda: Blocks(tied=False)))
        place(models[-1], list(models[-1].blocks), mesh, "fp32", torch.device("cpu"))
    weights, others = (trained_weights(model) for model in models)
    save_state({WEIGHTS: weights}, folder, dist.group.WORLD)
    load_state({WEIGHTS: others}, folder)
    experts = {f"experts {number}": others[f"blocks.{number}.1.weight"] for number in range(3)}
    return {name: value.to_local() for name, value in experts.items()} | {"table": others["table.weight"].full_tensor()}


@pytest.mark.slow
def test_fewer_experts_than_shards_are_cut_in_themselves(tmp_path: Path) -> None:
    torch.manual_seed(3)
    alone = Blocks(tied=False).state_dict()
    for rank, held in enumerate(on_processes(saved_and_read, tmp_path)):
        assert torch.equal(held.pop("table"), alone["table.weight"])
        for name, part in held.items():
            assert torch.equal(part, alone[f"blocks.{name[-1]}.1.weight"].chunk(PROCESSES, dim=1)[rank])


@pytest.mark.parametrize(
    ("shape", "dimension"), [((2, 8, 8), 1), ((4, 8, 8), None), ((2, 6, 8), None), ((2, 8), None), ((2, 8, 3, 3), None)]
)
def test_what_is_not_of_few_experts_is_cut_along_the_first_dimension(
    shape: tuple[int, ...], dimension: int | None
) -> None:
    found = sharded_dimension(torch.empty(shape), shards=4)
    assert (found.dim if found else None) == dimension


def peak_of_building(layers: int) -> torch.Tensor:
    import resource

    torch.manual_seed(3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = built_once(lambda: nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(layers))))
    place(model, list(model), mesh_of("fsdp", "cpu", 1, PROCESSES), "fp32", torch.device("cpu"))
    return torch.tensor((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)


@pytest.mark.slow
def test_a_node_holds_the_weights_once() -> None:
    """And, on CPUs, the shards of its processes, which are in the memory of the GPUs otherwise."""
    layers = 200
    weights = layers * 1024 * 1024 * 4
    fixed = sum(map(int, on_processes(peak_of_building, 2)))
    assert sum(map(int, on_processes(peak_of_building, layers))) - fixed <= 1.2 * weights + weights


@pytest.mark.parametrize(
    ("asked", "parameters", "nodes", "expected"),
    [
        ("auto", 1e9, 4, "ddp"),
        ("auto", 8e9, 4, "hsdp"),
        ("auto", 8e9, 1, "fsdp"),
        ("auto", 70e9, 4, "fsdp"),
        ("fsdp", 1e9, 4, "fsdp"),
        ("hsdp", 1e9, 1, "fsdp"),
        ("hsdp", 70e9, 2, "hsdp"),
    ],
)
def test_auto_shards_as_little_as_fits(asked: str, parameters: float, nodes: int, expected: str) -> None:
    """H100s: 80 GB each, eight of them a node."""
    assert choose_parallelism(asked, 16 * parameters, 80 * 10**9, nodes, 8) == expected


class _TableInABlock(nn.Module):
    """As a BERT, whose first block is its embeddings, and as a ResNet, whose blocks end in batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.layer = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings[0]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embeddings(tokens))


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("training", [True, False])
def test_a_table_and_batch_norms_within_blocks_are_sharded(precision: str, training: bool) -> None:
    torch.manual_seed(0)
    plain = _TableInABlock().train(training)
    sharded = deepcopy(plain)
    shard(sharded, [sharded.embeddings, sharded.layer], mesh_of("fsdp", "cpu", 1, 1), precision)
    with computing_in(precision, "cpu"):
        losses = [model(torch.arange(11)).square().mean() for model in (plain, sharded)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    for one, other in zip(plain.parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad.full_tensor(), rtol=0.02, atol=1e-3)


@pytest.mark.usefixtures("group_of_one")
def test_a_table_that_encoder_and_decoder_share_is_sharded() -> None:
    from transformers import T5Config, T5ForSequenceClassification

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    plain: Any = T5ForSequenceClassification(T5Config(vocab_size=11, decoder_start_token_id=0, **sizes))
    sharded = deepcopy(plain)
    blocks = [module for module in sharded.modules() if type(module).__name__ == "T5Block"]
    shard(sharded, blocks, mesh_of("fsdp", "cpu", 1, 1), "fp32")
    losses = [model(torch.tensor([[5, 6, 1]])).logits.square().mean() for model in (plain, sharded)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    found = sharded.get_input_embeddings().weight.grad.full_tensor()
    torch.testing.assert_close(found, plain.get_input_embeddings().weight.grad)
