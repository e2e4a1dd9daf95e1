"""The peak memory of one GPU that trains a language model, with fake tensors: no GPU is needed.

Run with `python benchmarks/training/language_model_memory.py [JOB …]`. The model is built, frozen, quantized, sharded
and called by the engine's own functions, on tensors with shapes but no values; the storages that they would have are
added up. The second of two steps is measured. Beside it is the estimate of `accelerators advise`, without the 1.5 GB
for CUDA and NCCL, and, for adapters, the same training with frozen weights in fp32 and all logits at once. Takes
minutes, and little memory.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpu_pipelines.accelerators.memory_estimate import estimate_memory
from gpu_pipelines.accelerators.workload import Workload
from gpu_pipelines.tasks import packed_attention
from gpu_pipelines.tasks.adapters import add_adapters
from gpu_pipelines.tasks.causal_lm import chunked_loss
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.nf4 import quantize
from gpu_pipelines.tasks.packed_attention import OFFSETS
from gpu_pipelines.tasks.text_encoding import TextEncoder
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer
from gpu_pipelines.training.model.frozen_weights import hold_frozen
from gpu_pipelines.training.model.parallelism import emptied, mesh_of, shard
from gpu_pipelines.training.model.precision import computing_in
from gpu_pipelines.training.model.recomputing import recompute_activations

CPU = torch.device("cpu")
WORDS = 128_256


@dataclass(frozen=True)
class Job:
    """A training of a Llama 3 (Dubey et al. 2024, https://arxiv.org/abs/2407.21783, table 3) in bf16 with AdamW.

    Attributes:
        layers, hidden, heads: the shape of the model.
        tokens: tokens of the one row of a micro-batch.
        gpus: GPUs over which FSDP2 shards the model; 1 for no sharding.
        lora_rank: the rank of the adapters; 0 trains all weights.
        lora_targets: "all-linear", or empty for queries and values.
        quantize_base: "nf4", or empty.
        words: the size of the vocabulary.
        is_held: whether frozen weights are in 16 bits, and logits are computed in chunks.
        recompute: whether the activations of the layers are recomputed.
        selective: whether recomputation leaves out what `recompute=selective` does.
    """

    layers: int
    hidden: int
    heads: int
    tokens: int
    gpus: int = 1
    lora_rank: int = 0
    lora_targets: str = ""
    quantize_base: str = ""
    words: int = WORDS
    is_held: bool = True
    recompute: bool = True
    selective: bool = False

    def workload(self) -> Workload:
        """The workload for `advise`."""
        hidden = self.hidden
        per_layer = 2 * hidden * hidden + 2 * hidden * 8 * hidden // self.heads + 3 * hidden * (hidden * 7 // 2)
        return Workload(
            parameters=self.layers * per_layer + 2 * self.words * hidden,
            samples=1e6,
            sequence_length=self.tokens,
            batch=1,
            layers=self.layers,
            hidden_size=hidden,
            vocabulary=self.words,
            lora_rank=self.lora_rank or None,
            lora_targets=self.lora_targets,
            quantize_base=self.quantize_base,
            recompute=self.recompute,
            selective=self.selective,
        )

    def configuration(self) -> Any:
        """The configuration for transformers."""
        from transformers import LlamaConfig

        return LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.hidden * 7 // 2,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=8,
            vocab_size=self.words,
            max_position_embeddings=self.tokens,
            use_cache=False,
        )


JOBS = {
    "8B, LoRA 16, one L4": Job(32, 4096, 32, 4096, lora_rank=16),
    "8B, LoRA 16, one H100, nothing recomputed": Job(32, 4096, 32, 4096, lora_rank=16, recompute=False),
    "8B, LoRA 16 on all linear layers, one H100": Job(32, 4096, 32, 4096, lora_rank=16, lora_targets="all-linear"),
    "8B, LoRA 16 on NF4, one L4": Job(32, 4096, 32, 4096, lora_rank=16, quantize_base="nf4"),
    "8B, LoRA 16, 8 L4, nothing recomputed": Job(32, 4096, 32, 4096, gpus=8, lora_rank=16, recompute=False),
    "8B, LoRA 16, one H100, 16,384 tokens": Job(32, 4096, 32, 16_384, lora_rank=16),
    "8B, all weights, 8 H100": Job(32, 4096, 32, 8192, gpus=8),
    "70B, LoRA 16, 8 H100": Job(80, 8192, 64, 4096, gpus=8, lora_rank=16),
    "70B, LoRA 16 on NF4, 8 L4": Job(80, 8192, 64, 4096, gpus=8, lora_rank=16, quantize_base="nf4"),
}


class PeakMemory(TorchDispatchMode):
    """Adds up the existing storages, whoever holds them.

    Args:
        held: tensors that exist before.

    Attributes:
        peak: the most bytes at one time.
    """

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._sizes: dict[int, int] = {}
        for tensor in held:
            self._note(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor)
        return made

    @contextmanager
    def of_fsdp(self) -> Iterator[None]:
        """Within the block, also counts storages that FSDP2 fills and empties, which is no operation."""

        def heard(change: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
            def then(tensor: torch.Tensor) -> None:
                change(tensor)
                self._note(tensor)

            return then

        usual = {name: getattr(_fsdp_param, name) for name in ("alloc_storage", "free_storage")}
        vars(_fsdp_param).update({name: heard(change) for name, change in usual.items()})
        try:
            yield
        finally:
            vars(_fsdp_param).update(usual)

    def _note(self, tensor: torch.Tensor) -> None:
        storage = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()
        if storage._cdata not in self._sizes:
            weakref.finalize(storage, self._forget, storage._cdata)
        self._now += storage.nbytes() - self._sizes.get(storage._cdata, 0)
        self._sizes[storage._cdata] = storage.nbytes()
        self.peak = max(self.peak, self._now)

    def _forget(self, storage: int) -> None:
        self._now -= self._sizes.pop(storage)


def built(job: Job) -> nn.Module:
    """The engine's model before it is placed, without weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(job.configuration())
        if job.lora_rank:
            add_adapters(model, job.lora_rank, 16.0, job.lora_targets)
    if job.quantize_base:
        quantize(model)
    if job.is_held:
        hold_frozen(model, "bf16")
    return model


@contextmanager
def attention_of_a_gpu() -> Iterator[None]:
    """Attends by the lengths of documents where a GPU from Ampere on would: CPUs have no kernel, and take a mask."""
    usual = packed_attention._has_kernel
    packed_attention._has_kernel = lambda device: True
    try:
        yield
    finally:
        packed_attention._has_kernel = usual


@contextmanager
def logits_at_once(job: Job) -> Iterator[None]:
    """Computes all logits at once, for a job without chunks."""
    usual = chunked_loss.LOGITS_AT_ONCE
    chunked_loss.LOGITS_AT_ONCE = usual if job.is_held else 1 << 62
    try:
        yield
    finally:
        chunked_loss.LOGITS_AT_ONCE = usual


def peak_of(job: Job, recipe: CausalLanguageModel) -> float:
    """The most memory of one GPU in a forward and a backward pass, GB.

    Needs a process group of as many ranks, which may be PyTorch's fake one.
    """
    model = built(job)
    mesh = mesh_of("fsdp", "cpu", 1, job.gpus) if job.gpus > 1 else None
    # Fake tensors have no values: code that waits for one raises.
    with FakeTensorMode(allow_non_fake_inputs=True), attention_of_a_gpu(), logits_at_once(job):
        blocks = recipe.blocks(model)
        if job.recompute:
            blocks = recompute_activations(model, blocks, selective=job.selective)
        if mesh is not None:
            shard(model, blocks, mesh, "bf16")
        emptied(model.train(), CPU)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        # The fake fused kernel copies the whole state; the unfused one allocates what the real one does not.
        optimizer = torch.optim.AdamW(trained, lr=1e-4, foreach=False)
        tokens = torch.zeros(1, job.tokens, dtype=torch.long)
        document = {OFFSETS: torch.tensor([0, job.tokens], dtype=torch.int32)}
        batch = {"input_ids": tokens, "targets": tokens, "position_ids": torch.arange(job.tokens)[None], **document}
        for number in range(2):
            state = [value for each in optimizer.state.values() for value in each.values()]
            state += [weight.grad for weight in trained if weight.grad is not None]
            with PeakMemory([*model.parameters(), *model.buffers(), *state]) as memory, memory.of_fsdp():
                with computing_in("bf16", "cpu"):
                    loss = recipe.loss(model, batch)
                loss.backward()
            del loss
            if number == 0:
                optimizer.step()
                # Where nothing is sharded, gradients stay: they are parts of DDP's buckets.
                optimizer.zero_grad(set_to_none=mesh is not None)
    return memory.peak / 1e9


def measured(job: Job) -> dict[str, float]:
    """The peak of a job, and the estimate of `advise`, GB."""
    with tempfile.TemporaryDirectory() as folder:
        TextEncoder.train(["a text"] * 20, 300, ends=False).save(Path(folder), job.tokens)
        recipe = CausalLanguageModel(TextTokenizer.read(Path(folder)), job.tokens)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=job.gpus)
    try:
        peak = peak_of(job, recipe)
    finally:
        dist.destroy_process_group()
    said = estimate_memory(job.workload(), "bf16", job.gpus, "fsdp" if job.gpus > 1 else "ddp")
    return {"peak_gb": round(peak, 2), "advise_gb": round(said.total - said.runtime, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(map(repr, JOBS))}; all if none is given")
    chosen = parser.parse_args().jobs or list(JOBS)
    results, ratios = {}, {}
    print("| job | GB | advise | fp32, all logits |\n| --- | --- | --- | --- |")
    for name in chosen:
        job = JOBS[name]
        results[name] = measured(job)
        before = ""
        if job.lora_rank:
            results[name]["before_gb"] = measured(replace(job, is_held=False, quantize_base=""))["peak_gb"]
            ratios[name] = round(results[name]["before_gb"] / results[name]["peak_gb"], 2)
            before = f"{results[name]['before_gb']:.1f}"
        print(f"| {name} | {results[name]['peak_gb']:.1f} | {results[name]['advise_gb']:.1f} | {before} |", flush=True)
    machine = {"torch": torch.__version__, "python": platform.python_version()}
    print(json.dumps({"benchmark": "language_model_memory", "machine": machine, "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()
