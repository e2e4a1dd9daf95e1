"""Memory, time and ranking, checked against figures that the cited papers print."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerator_facts import TODAY
from command_line import command
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.accelerators.advice import advise
from gpu_pipelines.accelerators.memory_estimate import (
    BYTES_PER_FROZEN,
    BYTES_PER_TRAINED,
    RUNTIME_GB,
    USABLE,
    activation_bytes,
    estimate_memory,
    host_memory_gb,
)
from gpu_pipelines.accelerators.option import Wishes
from gpu_pipelines.accelerators.time_estimate import (
    TimeEstimate,
    estimate_time,
    flops_per_sample,
    project_time,
    spot_factor,
)
from gpu_pipelines.accelerators.workload import OPTIMIZER_BYTES, Workload, parse_quantity
from gpu_pipelines.cli.accelerator_views import _marks
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.adapters import add_adapters
from gpu_pipelines.training.model.frozen_weights import hold_frozen, state_bytes
from gpu_pipelines.training.model.precision import computing_in
from gpu_pipelines.training.optimization.adamw_8bit import is_held_in_8_bits
from gpu_pipelines.training.optimization.optimizer import make_optimizers
from gpu_pipelines.training.settings import TrainingSettings

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from advice import estimated_rate, published_runs

CATALOG = load_catalog()
GPUS = CATALOG.gpus


def states(workload: Workload, gpus: int, parallelism: str, precision: str = "bf16") -> float:
    memory = estimate_memory(workload, precision, gpus, parallelism)
    return memory.weights + memory.gradients + memory.optimizer


def test_model_states_are_those_of_the_zero_paper() -> None:
    # ZeRO, figure 1: 7.5 billion parameters take 120 GB on each GPU, and 1.9 GB when sharded over 64.
    workload = Workload(parameters=7.5e9, tokens=1e9, sequence_length=16)
    assert states(workload, 64, "ddp") == pytest.approx(120)
    assert states(workload, 64, "fsdp") == pytest.approx(1.9, abs=0.05)
    assert states(workload, 1, "ddp", "fp32") == pytest.approx(120)


@pytest.mark.parametrize("name", OPTIMIZER_BYTES)
def test_the_optimizers_that_are_offered_are_the_engines_and_hold_what_is_said(name: str) -> None:
    settings = TrainingSettings(model="linear", optimizer=name, learning_rate=0.01, weight_decay=0.0)
    model = torch.nn.ModuleList(torch.nn.Linear(256, 64, bias=False) for _ in range(40))
    optimizers = make_optimizers(model, settings)
    torch.stack([layer(torch.randn(2, 256)) for layer in model]).sum().backward()
    held = 0
    for optimizer in optimizers:
        optimizer.step()
        held += sum(value.nbytes for state in optimizer.state.values() for value in state.values() if value.ndim)
    assert held / (40 * 256 * 64) == pytest.approx(OPTIMIZER_BYTES[name], abs=0.2)
    assert settings.problems("regression") == []


def test_moments_in_8_bits_are_those_of_rows_of_whole_blocks() -> None:
    # Qwen2.5 0.5B has rows of 896, which is no multiple of 256.
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=896,
                intermediate_size=4864,
                num_attention_heads=14,
                num_key_value_heads=2,
                num_hidden_layers=24,
                vocab_size=151_936,
                tie_word_embeddings=True,
            )
        )
    counts = dict.fromkeys((True, False), 0)
    for weight in model.parameters():
        counts[is_held_in_8_bits(weight)] += weight.numel()
    job = {"tokens": 1e9, "layers": 24, "hidden_size": 896, "vocabulary": 151_936, "optimizer": "adamw_8bit"}
    said = estimate_memory(Workload(parameters=float(sum(counts.values())), **job), "bf16", 1, "ddp")
    assert said.optimizer * 1e9 == pytest.approx(2 * counts[True] + 8 * counts[False], rel=0.05)


@pytest.mark.parametrize("experts", [0, 4])
def test_muon_leaves_table_head_and_experts_to_adamw(experts: int) -> None:
    width = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    model: Any = (
        MixtralForCausalLM(MixtralConfig(**width, **heads, num_local_experts=experts))
        if experts
        else LlamaForCausalLM(LlamaConfig(**width, **heads))
    )
    model(input_ids=torch.arange(64)[None]).logits.square().mean().backward()
    held = 0
    for optimizer in make_optimizers(model, TrainingSettings(model="a/b", optimizer="muon").resolved("causal_lm")):
        optimizer.step()
        held += sum(value.nbytes for state in optimizer.state.values() for value in state.values() if value.ndim)
    parameters = float(sum(weight.numel() for weight in model.parameters()))
    job = {"tokens": 1e9, "layers": 2, "hidden_size": 64, "vocabulary": 256, "optimizer": "muon"}
    workload = Workload(parameters=parameters, active_parameters=parameters / 2 if experts else None, **job)
    assert estimate_memory(workload, "bf16", 1, "ddp").optimizer * 1e9 == pytest.approx(held, rel=0.1)


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_weights_gradients_and_moments_are_counted_as_the_engine_holds_them(rank: int, precision: str) -> None:
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2))
    if rank:
        add_adapters(model, rank, 16.0)
    hold_frozen(model, precision)
    (optimizer,) = make_optimizers(model, TrainingSettings(model="a/b").resolved("causal_lm"))
    with computing_in(precision, "cpu"):
        loss = model(input_ids=torch.arange(8)[None]).logits.float().square().mean()
    loss.backward()
    optimizer.step()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    frozen = [weight for weight in model.parameters() if not weight.requires_grad]
    held = sum(each.nbytes for each in (*trained, *frozen, *(weight.grad for weight in trained)))
    held += sum(value.nbytes for state in optimizer.state.values() for value in state.values() if value.ndim)
    trains, stands = (sum(weight.numel() for weight in each) for each in (trained, frozen))
    assert bool(stands) is bool(rank)
    assert held == state_bytes(model)
    # Norms, which are next to nothing of a real model, stay in fp32.
    norms = sum(weight.numel() for weight in frozen if weight.ndim < 2)
    assert held == trains * BYTES_PER_TRAINED + stands * BYTES_PER_FROZEN[precision] + norms * (precision == "bf16") * 2
    everything = Workload(parameters=float(trains), tokens=1e9)
    assert states(everything, 1, "ddp", precision) * 1e9 == pytest.approx(trains * BYTES_PER_TRAINED)


def test_a_machine_without_the_main_memory_to_build_the_model_is_not_advised() -> None:
    found = advise(Workload(parameters=405e9, tokens=1e9, sequence_length=2048), Wishes(max_nodes=32), today=TODAY)
    refused = {option.plan.gpu.name: option.reasons for option in found.rejected if option.plan.gpu}
    assert refused["h100"] == (
        "needs 1,944 GB of main memory, because its first process builds the model; a3-highgpu-8g has 1,872 GB",
    )
    for option in found.options:
        assert host_memory_gb(found.workload) <= option.plan.machine.memory_gb
    assert any(option.plan.spec == "h200:8" for option in found.options), "its machine has 2,952 GB"


def test_a_plan_that_takes_more_hours_than_a_job_can_be_given_is_not_advised() -> None:
    workload = Workload(parameters=7e9, tokens=15e12)
    few, many = (advise(workload, Wishes(max_nodes=nodes), today=TODAY) for nodes in (1, 64))
    assert few.options == ()
    assert any("hours; a job can be given 8,784" in reason for each in few.rejected for reason in each.reasons)
    assert any("more nodes" in remedy for remedy in few.remedies)
    assert many.options[0].hours() < 8784


def test_activations_are_those_of_the_recomputation_paper() -> None:
    # Korthikanti et al., equation 2 without the attention term, for the 22B model: s 2048, b 4, h 6144, 48 layers.
    shape = {"layers": 48, "hidden_size": 6144, "sequence_length": 2048, "batch": 4, "vocabulary": 0}
    kept = activation_bytes(Workload(parameters=22e9, tokens=1e9, **shape), 2)
    assert kept == 34 * 2048 * 4 * 6144 * 48
    again = activation_bytes(Workload(parameters=22e9, tokens=1e9, recompute=True, **shape), 2)
    assert again == 2 * 2048 * 4 * 6144 * 48 + 1.25 * 34 * 2048 * 4 * 6144, "and the gradients of one layer"
    assert activation_bytes(Workload(parameters=22e9, tokens=1e9, **shape), 4) == 2 * kept
    # By fake tensors, as in test_a_layer_keeps_what_its_norms_heads_and_adapters_do: of BERT base and RoBERTa large.
    beside = activation_bytes(Workload(parameters=22e9, tokens=1e9, lora_rank=16, **shape), 2)
    assert beside == pytest.approx(27 / 34 * kept)


@pytest.mark.parametrize(
    ("how", "counted"),
    [({}, 62.9), ({"recompute": True, "selective": True}, 18.9), ({"lora_rank": 16}, 46.3)],
)
def test_a_layer_with_a_wide_mlp_keeps_more(how: dict[str, Any], counted: float) -> None:
    # Qwen2.5 7B, by fake tensors: each layer more keeps that many bytes for each token and unit of width.
    kept = []
    for layers in (27, 28):
        parameters = layers * 18.14 * 3584**2 + 2 * 152_064 * 3584
        shape = {"layers": layers, "hidden_size": 3584, "vocabulary": 152_064, "sequence_length": 4096}
        kept.append(activation_bytes(Workload(parameters=parameters, tokens=1e9, **shape, **how), 2))
    assert (kept[1] - kept[0]) / 4096 / 3584 == pytest.approx(counted, rel=0.04)


@pytest.mark.parametrize(
    ("family", "heads", "used", "how", "counted"),
    [
        ("qwen3", 3, 15, {}, 70.2),
        ("qwen3", 3, 15, {"lora_rank": 16}, 52.2),
        ("qwen3", 3, 15, {"lora_rank": 16, "lora_targets": "all-linear"}, 60.4),
        ("gemma3_text", 1.2, 14.4, {}, 84.0 + 4),
        ("gemma3_text", 1.2, 14.4, {"lora_rank": 16, "lora_targets": "all-linear"}, 63.3 + 4),
        ("granite", 1.25, 11.88, {"lora_rank": 16}, 42.1),
        ("olmo2", 2, 12.06, {}, 65.5),
        ("olmo2", 2, 12.06, {"lora_rank": 16}, 49.6),
        ("olmo3", 2, 12.06, {"lora_rank": 16}, 49.6 + 4),
        ("phi3", 2, 12, {}, 51.4),
        ("phi3", 2, 12, {"lora_rank": 16}, 47.4),
    ],
)
def test_a_layer_keeps_what_its_norms_heads_and_adapters_do(
    family: str, heads: float, used: float, how: dict[str, Any], counted: float
) -> None:
    # Saved tensors, by fake tensors: of Qwen3 0.6B, Gemma 3 4B, Granite 3.3 8B, OLMo 2 and 3 7B and Phi-3 mini; and a
    # mask where it is needed, of 4 bytes where rows have twice as many tokens as the model is wide.
    kept = []
    for layers in (27, 28):
        parameters = layers * used * 2048**2 + 2 * 32_000 * 2048
        shape = {"layers": layers, "hidden_size": 2048, "attention_size": int(heads * 2048), "sequence_length": 4096}
        kept.append(activation_bytes(Workload(parameters=parameters, tokens=1e9, family=family, **shape, **how), 2))
    assert (kept[1] - kept[0]) / 4096 / 2048 == pytest.approx(counted, rel=0.03)


@pytest.mark.parametrize(
    ("experts", "used", "lora_rank", "counted"),
    [
        pytest.param(2, 23.5, None, 84.7, id="mixtral"),
        pytest.param(8, 13.56, None, 101.4, id="qwen3-30b-a3b"),
        pytest.param(8, 16.03, None, 101.2, id="olmoe"),
        pytest.param(None, 13.28, None, 93.8, id="qwen3-235b-a22b"),
        pytest.param(4, 20.53, None, 86.0, id="qwen1.5-moe"),
        pytest.param(2, 23.5, 16, 64.1, id="mixtral-frozen"),
        pytest.param(8, 13.56, 16, 69.6, id="qwen3-30b-a3b-frozen"),
        pytest.param(8, 16.03, 16, 66.4, id="olmoe-frozen"),
        pytest.param(4, 20.53, 16, 68.8, id="qwen1.5-moe-frozen"),
    ],
)
def test_a_layer_keeps_a_row_for_each_expert_of_a_token(
    experts: int | None, used: float, lora_rank: int | None, counted: float
) -> None:
    # By fake tensors, as above: `used` are the parameters of a layer that a token passes through, by the squared width.
    kept = []
    for layers in (4, 5):
        active = layers * used * 2048**2 + 2 * 32_000 * 2048
        shape = {"layers": layers, "hidden_size": 2048, "sequence_length": 4096, "experts_per_token": experts}
        shape["lora_rank"] = lora_rank
        kept.append(activation_bytes(Workload(parameters=1e11, active_parameters=active, tokens=1e9, **shape), 2))
    assert (kept[1] - kept[0]) / 4096 / 2048 == pytest.approx(counted, rel=0.1)


def test_flops_are_those_of_the_gpt_3_paper() -> None:
    # Brown et al. 2020, table D.1: GPT-3 took 3.14e23 operations for 300 billion tokens; attention adds 3 %.
    workload = Workload(parameters=174.6e9, tokens=300e9, layers=96, hidden_size=12_288)
    assert flops_per_sample(workload) * workload.total_samples == pytest.approx(3.14e23 * 1.03, rel=0.01)


def test_lora_saves_the_gradients_of_frozen_weights() -> None:
    shape = {"parameters": 7e9, "tokens": 1e9, "layers": 32, "hidden_size": 4096}
    full = flops_per_sample(Workload(**shape))
    lora = Workload(**shape, lora_rank=16)
    assert lora.trained_parameters == 2 * 4 * 32 * 4096 * 16
    # Two of the six operations for each frozen parameter are saved.
    spared = (2 * 7e9 - 6 * lora.trained_parameters) * 2048
    assert full - flops_per_sample(lora) == pytest.approx(spared)
    assert states(lora, 1, "ddp", "fp32") == pytest.approx(28 + lora.trained_parameters * 16 / 1e9)
    assert states(lora, 1, "ddp") == pytest.approx(14 + lora.trained_parameters * 16 / 1e9)


def test_what_is_no_transformer_is_reckoned_from_its_forward_pass() -> None:
    # ResNet-50 takes about 4.1e9 multiply-adds, 8.2e9 operations, for an image.
    assert flops_per_sample(Workload(parameters=25.6e6, samples=1e6, flops_per_sample=8.2e9)) == 3 * 8.2e9


def test_the_shape_is_estimated_from_the_parameters() -> None:
    layers, width = Workload(parameters=12 * 32 * 4096**2, tokens=1).shape
    assert (layers, width) == (32, 4096)
    assert Workload(parameters=12 * 24 * 2048**2, tokens=1, layers=24).shape == (24, 2048)
    assert Workload(parameters=12 * 24 * 2048**2, tokens=1, hidden_size=2048).shape == (24, 2048)


def test_no_more_is_recomputed_than_the_memory_wants() -> None:
    job = Workload(parameters=7e9, tokens=1e9, layers=32, hidden_size=4096, sequence_length=4096, batch=2)
    ways = {o.plan.spec: (o.recompute, o.selective) for o in advise(job, today=TODAY).options if o.plan.nodes == 1}
    assert ways["h200:8"] == (False, False)
    assert ways["a100:8"] == (True, True)
    assert ways["l4:8"] == (True, False)
    kept, some = (replace(job, recompute=way, selective=way) for way in (False, True))
    assert estimate_memory(kept, "bf16", 8, "fsdp").total > GPUS["a100"].memory_gb * USABLE
    assert estimate_memory(some, "bf16", 8, "fsdp").total > GPUS["l4"].memory_gb * USABLE
    asked = ["advise", "--parameters", "7b", "--tokens", "1b", "--batch", "2", "--sequence-length", "4096"]
    table = command("accelerators", *asked)
    assert "fsdp recompute selective" in table.out


def test_a_token_computes_with_its_own_experts_and_the_memory_holds_all() -> None:
    shape = {"tokens": 1e9, "layers": 32, "hidden_size": 4096, "sequence_length": 4096, "batch": 1}
    mixtral = Workload(parameters=46.7e9, active_parameters=12.9e9, **shape)
    dense, small = Workload(parameters=46.7e9, **shape), Workload(parameters=12.9e9, **shape)
    assert flops_per_sample(mixtral) == flops_per_sample(small)
    held, other, less = (estimate_memory(job, "bf16", 32, "fsdp") for job in (mixtral, dense, small))
    assert (held.weights, held.optimizer) == (other.weights, other.optimizer)
    assert less.activations < held.activations < other.activations, "two experts of each layer for each token"
    asked = ["advise", "--parameters", "47b", "--tokens", "1b", "--sequence-length", "4096"]
    assert command("accelerators", *asked, "--active-parameters", "13b").out != command("accelerators", *asked).out
    with pytest.raises(UserError, match="Active parameters are 5e"):
        replace(mixtral, active_parameters=50e9)
    with pytest.raises(UserError, match="give the active parameters"):
        replace(mixtral, active_parameters=None, experts_per_token=2)
    two = ["--active-parameters", "13b", "--experts-per-token", "2"]
    assert "with 2 experts for each token" in command("accelerators", *asked, *two).out
    assert "with 8 experts for each token (--experts-per-token" in command("accelerators", *asked, *two[:2]).out


def test_a_moving_average_takes_four_bytes_for_each_weight() -> None:
    for job, trained in (
        (Workload(parameters=7e9, tokens=1e9), 7e9),
        (Workload(parameters=7e9, tokens=1e9, lora_rank=8), 0),
    ):
        without, kept = (estimate_memory(replace(job, ema=ema), "bf16", 8, "fsdp") for ema in (False, True))
        expected = (trained or job.trained_parameters) * 4 / 8 / 1e9
        assert kept.total - without.total == pytest.approx(kept.average) == pytest.approx(expected)
    asked = ["advise", "--parameters", "70b", "--tokens", "1b", "--max-nodes", "1", "--no-recompute"]
    assert "average 35.0" in command("accelerators", *asked, "--ema").out


def test_an_mfu_is_of_the_models_operations_so_recomputing_takes_no_more_of_them() -> None:
    for lora in (None, 16):
        shape = {"parameters": 7e9, "tokens": 1e9, "layers": 32, "hidden_size": 4096, "lora_rank": lora}
        once, again = (Workload(**shape, recompute=recompute) for recompute in (False, True))
        assert flops_per_sample(again) == flops_per_sample(once)
        h100 = [advise(job, Wishes(mfu=0.4), today=TODAY).options for job in (once, again)]
        hours = [{o.plan.spec: o.time.computation for o in options if o.plan.nodes == 1} for options in h100]
        assert hours[0]["h100:8"] == hours[1]["h100:8"]


def timed(gpu: str, gpus: int = 8, nodes: int = 1, network: int | None = None, **changes: object) -> TimeEstimate:
    workload = Workload(
        **{"parameters": 7e9, "tokens": 1e9, "layers": 32, "hidden_size": 4096, "batch": 1, **changes}  # type: ignore[arg-type]
    )
    memory = estimate_memory(workload, "bf16", gpus, "fsdp")
    machine = replace(CATALOG.machines_with(gpu)[-1], network_gbps=network)
    return estimate_time(workload, GPUS[gpu], "bf16", gpus, nodes, machine, memory, 0.4)


def test_a_step_takes_its_longest_part_and_a_tenth_of_the_others() -> None:
    busy = timed("h100", sequence_length=4096, batch=4)
    assert busy.limit == "computation"
    flops = (6 * 7e9 + 12 * 32 * 4096 * 4096) * 1e9
    assert busy.computation == pytest.approx(flops / (8 * 989.5e12 * 0.4) / 3600)
    others = busy.memory + busy.links + (busy.network or 0) + busy.launches
    assert busy.hours == pytest.approx(busy.start + busy.computation + 0.1 * others)
    # 2 · 14 GB gathered and 14 GB scattered, 7/8 of it from the other GPUs, in each of 1e9 / 2048 / 8 steps.
    assert timed("h100").links == pytest.approx(1e9 / 2048 / 8 * 7 / 8 * 42e9 / (450e9 * 0.75) / 3600)


def test_a_slow_link_and_a_slow_network_hold_a_training_up() -> None:
    # The same exchange over PCIe, which L4 has, takes longer than the computation; over NVLink it does not.
    assert timed("l4", sequence_length=512).limit == "links"
    assert timed("a100", sequence_length=2048).limit == "computation"
    slow = timed("h100", gpus=16, nodes=2, network=10)
    assert slow.limit == "network"
    assert slow.network == pytest.approx(1e9 / 2048 / 16 * 0.5 * 42e9 * 8 / (10e9 * 0.75) / 3600)
    assert timed("h100", gpus=16, nodes=2).network is None


def test_gradients_are_exchanged_once_for_each_optimizer_step_and_weights_for_each_micro_batch() -> None:
    job, machine = Workload(parameters=7e9, tokens=1e9, batch=1), CATALOG.machine_types["a3-highgpu-8g"]

    def links(parallelism: str, steps: float | None) -> float:
        memory = estimate_memory(job, "bf16", 8, parallelism)
        return estimate_time(replace(job, steps=steps), GPUS["h100"], "bf16", 8, 1, machine, memory, 0.4).links

    assert links("ddp", 1000) < links("ddp", None) / 10
    assert links("fsdp", 1000) == links("fsdp", None)


@pytest.mark.parametrize("run", published_runs(), ids=lambda run: f"{run['run']}-{run['gpus']}x{run['gpu']}")
def test_times_are_within_a_quarter_of_published_ones(run: dict[str, str]) -> None:
    assert 0.75 <= float(run["per_second_per_gpu"]) / estimated_rate(run) <= 1.25


def test_throughput_is_kept_on_more_nodes_as_published_runs_keep_it() -> None:
    rates: dict[tuple[str, str, str], list[tuple[int, float, float]]] = {}
    for run in published_runs():
        key = (run["run"] + run["sequence_length"], run["gpu"], run["source"])
        rates.setdefault(key, []).append((int(run["gpus"]), float(run["per_second_per_gpu"]), estimated_rate(run)))
    scaled = [sorted(found) for found in rates.values() if len({gpus for gpus, *_ in found}) > 1]
    assert len(scaled) >= 6
    for (_, few, few_here), (_, many, many_here) in (found[:2] for found in scaled):
        # MPT 70B gains from more GPUs, for a larger batch fits; here it gains less.
        assert many_here / few_here == pytest.approx(many / few, abs=0.15)


@pytest.mark.parametrize(
    ("job", "first"),
    [
        # NeMo AutoModel's LoRA of Llama 3 8B took one H100; frozen weights of 16 GB fit an A100 with 40 GB.
        ({"parameters": 8e9, "tokens": 100e6, "lora_rank": 16, "sequence_length": 4096}, ("a100:1", 1)),
        # LLM Foundry's MPT 7B on 8 to 128 A100 40 GB.
        ({"parameters": 8e9, "tokens": 1e9, "sequence_length": 8192}, ("a100:16", 1)),
        # An image classifier of 86 M parameters: one GPU for an afternoon.
        ({"parameters": 86e6, "samples": 10e6, "flops_per_sample": 35e9}, ("a100:1", 1)),
        # TinyLlama on 16 A100 40 GB.
        ({"parameters": 1e9, "tokens": 100e9}, ("a100:16", 1)),
    ],
)
def test_the_first_place_is_what_published_runs_took(job: dict[str, float], first: tuple[str, int]) -> None:
    found = advise(Workload(**job), today=TODAY)  # type: ignore[arg-type]
    best = found.options[0]
    assert (best.plan.spec, best.plan.nodes) == first
    assert not best.is_uncertain
    uncertain = [option.is_uncertain for option in found.options if option.hours() <= 168]
    assert uncertain == sorted(uncertain), "what may be refused, or has no verified price, comes last"


def test_small_jobs_take_small_machines_and_a_deadline_takes_larger_ones() -> None:
    job = Workload(parameters=3e9, tokens=10e6, lora_rank=16, sequence_length=4096)
    assert advise(job, today=TODAY).options[0].plan.total_gpus == 1
    hurried = advise(replace(job, tokens=3e9), Wishes(deadline_hours=8), today=TODAY).options
    assert hurried[0].plan.total_gpus > 1
    assert all(option.hours() <= 8 for option in hurried)


def test_starts_interruptions_and_other_steps_are_paid_for() -> None:
    for option in advise(Workload(parameters=100e6, tokens=1e6, sequence_length=512), today=TODAY).options:
        assert option.time.start >= 1 / 6
        if option.on_demand is not None and option.price.on_demand is not None:
            assert option.on_demand > option.price.on_demand * option.time.hours, "the CPU steps cost something"
        if option.spot is not None and option.plan.nodes > 1:
            undisturbed = option.price.spot * option.time.hours + option.other_steps_usd
            assert option.spot > undisturbed * 1.01
    assert math.isinf(spot_factor(256))


def test_a_trial_is_projected_between_the_ratios_of_peak_and_bandwidth() -> None:
    workload = Workload(samples=3.6e6, measured_on="l4:1", measured_samples_per_second=100)
    assert project_time(workload, GPUS["l4"], 1, GPUS["l4"], 1).hours == pytest.approx(10 + 1 / 6)
    assert project_time(workload, GPUS["l4"], 1, GPUS["l4"], 4).computation == pytest.approx(10 / 4 / 0.95**2)
    projected = project_time(workload, GPUS["l4"], 1, GPUS["a100"], 1)
    assert projected.computation == pytest.approx(10 / (312 / 121))
    assert projected.at_best == pytest.approx(10 / (1555 / 300) + 1 / 6)


def test_options_fit_and_are_ranked_by_cost() -> None:
    found = advise(Workload(parameters=7e9, tokens=1e9), today=TODAY)
    certain = [option for option in found.options if not option.is_uncertain and option.hours() <= 168]
    assert len(certain) > 10
    for one, next_one in pairwise(certain):
        # The next may be cheaper by what more GPUs, or a speed that nobody published, are thought dearer by.
        assert next_one.on_demand >= one.on_demand * (1 / 1.5)
    assert certain[0].on_demand <= 1.25 * min(option.on_demand for option in certain)
    for option in found.options:
        assert option.memory.total <= option.usable_gb == option.plan.gpu.memory_gb * USABLE
        parts = option.memory
        assert parts.total == pytest.approx(
            parts.weights
            + parts.gradients
            + parts.optimizer
            + parts.average
            + parts.activations
            + parts.gathered
            + parts.copies
            + RUNTIME_GB
        )
        # FSDP only where DDP does not fit, with the smallest batch and the same recomputation.
        job = replace(found.workload, batch=1, recompute=option.recompute, selective=option.selective)
        ddp = estimate_memory(job, option.precision, option.plan.total_gpus, "ddp")
        assert (parts.parallelism != "ddp") == (ddp.total > option.usable_gb)
    gpus = {option.plan.gpu.name for option in (*found.options, *found.rejected)}
    assert gpus == set(GPUS) - {"p100", "k80"}


def test_looking_words_up_takes_no_operations() -> None:
    size = {"layers": 12, "hidden_size": 768, "samples": 1e6, "sequence_length": 512}
    xlm_r = Workload(parameters=278e6, vocabulary=250_002, encoder=True, **size)  # type: ignore[arg-type]
    bert = Workload(parameters=109e6, vocabulary=30_522, encoder=True, **size)  # type: ignore[arg-type]
    assert flops_per_sample(xlm_r) == pytest.approx(flops_per_sample(bert), rel=0.01)
    assert flops_per_sample(replace(xlm_r, encoder=False)) > 2.5 * flops_per_sample(xlm_r)
    adapters = [flops_per_sample(replace(job, lora_rank=8)) for job in (xlm_r, bert)]
    assert adapters[0] == pytest.approx(adapters[1], rel=0.01)


def test_it_is_said_whose_layers_the_activations_are_of() -> None:
    said = {"tokens": 1e9, "sequence_length": 512}
    for job, other in (
        (Workload(parameters=9e9, **said), "Gemma 2"),
        (Workload(parameters=30e9, active_parameters=3e9, **said), "gpt-oss"),
        (Workload(parameters=4e8, vocabulary=0, **said), "DeBERTa-v3"),
    ):
        assert [other in line for line in advise(job, today=TODAY).assumptions].count(True) == 1
        known = advise(replace(job, family="qwen3"), today=TODAY).assumptions
        assert "Activations as of the layers of qwen3." in known
        assert other not in " ".join(known)
        counted = replace(job, activation_bytes_per_sample=1e8)
        assert not any("Activations" in line for line in advise(counted, today=TODAY).assumptions)


def test_of_a_family_that_keeps_more_it_is_said_how_much() -> None:
    job = Workload(parameters=4e8, vocabulary=128_100, encoder=True, family="deberta-v2", tokens=1e9)
    said = "as of the layers of a ViT or BERT. DeBERTa-v3 keeps 3 to 4 times as much where nothing is recomputed"
    assert any(said in line for line in advise(job, today=TODAY).assumptions)


def test_activations_of_what_is_no_transformer_are_bounded_and_said_to_be() -> None:
    vit = Workload(parameters=86e6, samples=1e6, flops_per_sample=33.7e9, batch=4096)
    # ViT-B/16 keeps 118 MB in fp32 (benchmarks/activations.py); the rule of thumb must not be below that.
    assert activation_bytes(vit, 4) > 4096 * 118e6
    assert not any(option.plan.total_gpus == 1 for option in advise(vit, today=TODAY).options)
    assert any("rule of thumb" in line for line in advise(vit, today=TODAY).assumptions)
    assert any("Convolutions are slower" in line for line in advise(vit, today=TODAY).assumptions)
    assert not any("Convolutions" in line for line in advise(vit, Wishes(mfu=0.1), today=TODAY).assumptions)
    known = replace(vit, activation_bytes_per_sample=118e6, batch=256)
    assert activation_bytes(known, 2) == 256 * 118e6 / 2
    assert not any("rule of thumb" in line for line in advise(known, today=TODAY).assumptions)


def test_where_nothing_will_do_it_says_what_would_help() -> None:
    arguments = ["advise", "--parameters", "70b", "--tokens", "1b", "--max-nodes", "1", "--no-recompute"]
    out = command("accelerators", *arguments).out
    assert "Nothing will do." in out
    assert "weights 35.0, optimizer 70.0, activations" in out, "the memory, part by part"
    for remedy in ("--recompute", "--lora-rank 16", "--max-nodes 64"):
        assert any(remedy in line and "would do" in line for line in out.splitlines()), remedy
    both = command("accelerators", *arguments, "--batch", "64").out
    assert "With recomputed activations and a smaller batch (--recompute, --batch 1), " in both
    late = command("accelerators", "advise", "--parameters", "8b", "--tokens", "1t", "--deadline", "1").out
    assert "With no deadline, " in late


def test_what_does_not_fit_says_how_much_is_missing() -> None:
    found = advise(Workload(parameters=200e9, tokens=1e9), Wishes(max_nodes=1), today=TODAY)
    assert found.options == ()
    reasons = {option.plan.gpu.name: option.reasons[0] for option in found.rejected}
    assert reasons["h100"].startswith("needs ")
    assert reasons["h100"].endswith("on 8 GPUs, sharded; 72.0 GB of each can be used")
    assert (
        "no bf16"
        in {
            option.plan.gpu.name: option.reasons[0]
            for option in advise(Workload(parameters=1e9, tokens=1e9, precision="bf16"), today=TODAY).rejected
        }["t4"]
    )


def test_deadline_and_budget_hold() -> None:
    workload = Workload(parameters=1e9, tokens=10e9)
    free = advise(workload, today=TODAY)
    wishes = Wishes(deadline_hours=12, budget_usd=600)
    bound = advise(workload, wishes, today=TODAY)
    assert 0 < len(bound.options) < len(free.options)
    assert all(option.hours() <= 12 and option.on_demand <= 600 for option in bound.options)
    told = " ".join(reason for option in bound.rejected for reason in option.reasons)
    assert "the deadline is 12" in told
    assert "the budget is 600.00" in told
    spot = advise(workload, Wishes(budget_usd=100, strategy="spot"), today=TODAY)
    assert all(option.spot <= 100 for option in spot.options)


def test_region_and_strategy_are_kept() -> None:
    found = advise(Workload(parameters=1e9, tokens=1e9), Wishes(region="me-west1", strategy="spot"), today=TODAY)
    assert {option.plan.gpu.name for option in found.options} <= {"a100", "t4"}
    assert all(option.price.region == "me-west1" for option in found.options)


def test_a_higher_mfu_is_faster() -> None:
    workload = Workload(parameters=7e9, tokens=1e9, sequence_length=4096, batch=2)
    slow, fast = (advise(workload, Wishes(mfu=mfu), today=TODAY).options for mfu in (0.2, 0.4))
    hours = [{(o.plan.spec, o.plan.nodes): o.time.computation for o in options} for options in (slow, fast)]
    assert hours[0]
    for key, value in hours[0].items():
        assert value == pytest.approx(2 * hours[1][key])


@pytest.mark.parametrize(
    ("text", "value"), [("7b", 7e9), ("1.5T", 1.5e12), ("300m", 3e8), ("2e12", 2e12), ("12k", 12e3), ("5", 5)]
)
def test_quantities(text: str, value: float) -> None:
    assert parse_quantity(text, "tokens") == value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "How much to train on is not given"),
        (["--tokens", "1b"], "The size of the model is not given"),
        (["--parameters", "seven", "--tokens", "1b"], "'seven' is not a number of parameters"),
        (["--parameters", "7b", "--tokens", "-1"], "'-1' is not a number of tokens"),
        (["--parameters", "0", "--tokens", "1b"], "parameters is 0"),
        (["--parameters", "7b", "--tokens", "1b", "--precision", "fp8"], "no precision 'fp8'"),
        (["--parameters", "7b", "--tokens", "1b", "--optimizer", "lion"], "no optimizer 'lion'"),
        (["--parameters", "7b", "--tokens", "1b", "--mfu", "1.5"], "The MFU is 1.5"),
        (["--parameters", "7b", "--tokens", "1b", "--deadline", "-1", "--budget", "0"], "2 things are wrong"),
        (["--parameters", "7b", "--tokens", "1b", "--region", "mars"], "no region 'mars'"),
        (["--samples", "1m", "--measured-on", "l4:1"], "needs its samples per second"),
        (["--samples", "1m", "--measured-on", "l4:3", "--samples-per-second", "9"], "No machine has 3 × l4"),
        (["--samples", "1m", "--measured-on", "cpu:2", "--samples-per-second", "9"], "says nothing about GPUs"),
    ],
)
def test_a_wrong_description_exits_2(arguments: list[str], message: str) -> None:
    result = command("accelerators", "advise", *arguments)
    assert result.status == 2
    assert message in result.err
    assert result.out == ""


def test_the_table_and_the_document() -> None:
    arguments = ["advise", "--parameters", "7b", "--tokens", "1b", "--deadline", "100"]
    result = command("accelerators", *arguments)
    assert result.status == 0
    for text in ("MFU of published trainings", "weights", "optimizer", "not p4:4", "management fee"):
        assert text in result.out
    document = json.loads(command("accelerators", *arguments, "--json").out)
    first = document["options"][0]
    assert first["memory_gb"]["total"] <= first["usable_gb"]
    assert first["hours"]["hours"] <= 100
    assert document["workload"]["layers"] > 20


def test_what_the_time_leaves_out_is_marked() -> None:
    # The facts have no network figure for N1, and B200 prices have one weak source.
    arguments = ["advise", "--parameters", "100m", "--tokens", "1b", "--max-nodes", "2", "--json"]
    found = json.loads(command("accelerators", *arguments).out)["options"]
    marks = {(option["spec"], option["nodes"]): _marks(option) for option in found}
    assert "network not counted" in marks["v100:8", 2]
    assert "price unverified" in marks["b200:8", 1]
    assert "speed unverified" in marks["l4:1", 1]
    assert marks["a100:16", 1] == []
