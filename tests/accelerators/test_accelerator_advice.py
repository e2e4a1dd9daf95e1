"""Memory, time and ranking, checked against figures that the cited papers print."""

from __future__ import annotations

import json

import pytest
from accelerator_facts import TODAY
from typer.testing import CliRunner

from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.accelerators.advice import Wishes, advise
from gpu_pipelines.accelerators.memory_estimate import RUNTIME_GB, USABLE, activation_bytes, estimate_memory
from gpu_pipelines.accelerators.time_estimate import estimate_time, flops_per_sample, project_time
from gpu_pipelines.accelerators.workload import Workload, parse_quantity
from gpu_pipelines.cli.accelerators import app

GPUS = load_catalog().gpus


def states(workload: Workload, gpus: int, parallelism: str, precision: str = "bf16") -> float:
    memory = estimate_memory(workload, precision, gpus, parallelism)
    return memory.weights + memory.gradients + memory.optimizer


def test_model_states_are_those_of_the_zero_paper() -> None:
    # ZeRO, figure 1: 7.5 billion parameters take 120 GB on each GPU, and 1.9 GB when sharded over 64.
    workload = Workload(parameters=7.5e9, tokens=1e9)
    assert states(workload, 64, "ddp") == pytest.approx(120)
    assert states(workload, 64, "fsdp") == pytest.approx(1.9, abs=0.05)
    assert states(workload, 1, "ddp", "fp32") == pytest.approx(120)


@pytest.mark.parametrize(("optimizer", "bytes_each"), [("adamw", 16), ("adamw-8bit", 10), ("momentum", 12), ("sgd", 8)])
def test_optimizers_differ_in_their_state(optimizer: str, bytes_each: int) -> None:
    assert states(Workload(parameters=1e9, tokens=1e9, optimizer=optimizer), 1, "ddp") == pytest.approx(bytes_each)


def test_activations_are_those_of_the_recomputation_paper() -> None:
    # Korthikanti et al., equation 2 without the attention term, for the 22B model: s 2048, b 4, h 6144, 48 layers.
    shape = {"layers": 48, "hidden_size": 6144, "sequence_length": 2048, "batch": 4, "vocabulary": 0}
    kept = activation_bytes(Workload(parameters=22e9, tokens=1e9, **shape), 2)
    assert kept == 34 * 2048 * 4 * 6144 * 48
    again = activation_bytes(Workload(parameters=22e9, tokens=1e9, recompute=True, **shape), 2)
    assert again == 2 * 2048 * 4 * 6144 * 48 + 34 * 2048 * 4 * 6144
    assert activation_bytes(Workload(parameters=22e9, tokens=1e9, **shape), 4) == 2 * kept


def test_flops_are_those_of_the_gpt_3_paper() -> None:
    # Brown et al. 2020, table D.1: GPT-3 took 3.14e23 operations for 300 billion tokens; attention adds 3 %.
    workload = Workload(parameters=174.6e9, tokens=300e9, layers=96, hidden_size=12_288)
    assert flops_per_sample(workload) * workload.total_samples == pytest.approx(3.14e23 * 1.03, rel=0.01)


def test_recomputing_adds_a_forward_pass_and_lora_saves_the_gradients_of_frozen_weights() -> None:
    shape = {"parameters": 7e9, "tokens": 1e9, "layers": 32, "hidden_size": 4096}
    full = flops_per_sample(Workload(**shape))
    assert flops_per_sample(Workload(**shape, recompute=True)) == pytest.approx(full * 4 / 3)
    lora = Workload(**shape, lora_rank=16)
    assert lora.trained_parameters == 2 * 4 * 32 * 4096 * 16
    # Two of the six operations for each frozen parameter are saved.
    spared = (2 * 7e9 - 6 * lora.trained_parameters) * 2048
    assert full - flops_per_sample(lora) == pytest.approx(spared)
    assert states(lora, 1, "ddp") == pytest.approx(14 + lora.trained_parameters * 16 / 1e9)


def test_what_is_no_transformer_is_reckoned_from_its_forward_pass() -> None:
    # ResNet-50 takes about 4.1e9 multiply-adds, 8.2e9 operations, for an image.
    assert flops_per_sample(Workload(parameters=25.6e6, samples=1e6, flops_per_sample=8.2e9)) == 3 * 8.2e9


def test_the_shape_is_estimated_from_the_parameters() -> None:
    layers, width = Workload(parameters=12 * 32 * 4096**2, tokens=1).shape
    assert (layers, width) == (32, 4096)
    assert Workload(parameters=12 * 24 * 2048**2, tokens=1, layers=24).shape == (24, 2048)
    assert Workload(parameters=12 * 24 * 2048**2, tokens=1, hidden_size=2048).shape == (24, 2048)


def timed(gpu: str, gpus: int = 8, nodes: int = 1, network: int | None = None, **changes: object) -> object:
    workload = Workload(**{"parameters": 7e9, "tokens": 1e9, "layers": 32, "hidden_size": 4096, **changes})  # type: ignore[arg-type]
    memory = estimate_memory(workload, "bf16", gpus, "fsdp")
    return estimate_time(workload, GPUS[gpu], "bf16", gpus, nodes, network, memory, 0.4)


def test_the_time_is_the_longest_of_three() -> None:
    busy = timed("h100", sequence_length=4096, batch=4)
    assert busy.limit == "computation"
    flops = (6 * 7e9 + 12 * 32 * 4096 * 4096) * 1e9
    assert busy.hours == pytest.approx(flops / (8 * 989.5e12 * 0.4) / 3600)
    assert timed("h100", sequence_length=16).limit == "memory"
    slow = timed("h100", gpus=16, nodes=2, network=10)
    assert slow.limit == "network"
    # 2 · 14 GB gathered and 14 GB scattered, half of it to the other node, in each of 1e9 / 2048 / 16 steps.
    assert slow.network == pytest.approx(1e9 / 2048 / 16 * 0.5 * 42e9 * 8 / 10e9 / 3600)
    assert timed("h100", gpus=16, nodes=2).network is None
    # DDP exchanges the gradients of 14 GB twice.
    workload = Workload(parameters=7e9, tokens=1e9)
    memory = estimate_memory(workload, "bf16", 16, "ddp")
    ddp = estimate_time(workload, GPUS["b200"], "bf16", 16, 2, 100, memory, 0.4)
    assert ddp.network == pytest.approx(1e9 / 2048 / 16 * 2 * 0.5 * 14e9 * 8 / 100e9 / 3600)


def test_a_trial_is_projected_between_the_ratios_of_peak_and_bandwidth() -> None:
    workload = Workload(samples=3.6e6, measured_on="l4:1", measured_samples_per_second=100)
    assert project_time(workload, GPUS["l4"], 1, GPUS["l4"], 1).hours == pytest.approx(10)
    assert project_time(workload, GPUS["l4"], 1, GPUS["l4"], 4).hours == pytest.approx(10 / 4 / 0.9)
    projected = project_time(workload, GPUS["l4"], 1, GPUS["a100"], 1)
    assert projected.hours == pytest.approx(10 / (312 / 121))
    assert projected.at_best == pytest.approx(10 / (1555 / 300))


def test_options_fit_and_are_ranked_by_cost() -> None:
    found = advise(Workload(parameters=7e9, tokens=1e9), today=TODAY)
    costs = [option.on_demand for option in found.options if option.on_demand is not None]
    assert len(costs) > 10
    assert costs == pytest.approx(sorted(costs), abs=0.011)
    for option in found.options:
        assert option.memory.total <= option.usable_gb == option.plan.gpu.memory_gb * USABLE
        parts = option.memory
        assert parts.total == pytest.approx(
            parts.weights + parts.gradients + parts.optimizer + parts.activations + parts.gathered + RUNTIME_GB
        )
        # FSDP only where DDP does not fit.
        ddp = estimate_memory(found.workload, option.precision, option.plan.total_gpus, "ddp")
        assert (parts.parallelism == "fsdp") == (ddp.total > option.usable_gb)
    gpus = {option.plan.gpu.name for option in (*found.options, *found.rejected)}
    assert gpus == set(GPUS) - {"p100", "k80"}


def test_what_does_not_fit_says_how_much_is_missing() -> None:
    found = advise(Workload(parameters=70e9, tokens=1e9), Wishes(max_nodes=1), today=TODAY)
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
    wishes = Wishes(deadline_hours=10, budget_usd=400)
    bound = advise(workload, wishes, today=TODAY)
    assert 0 < len(bound.options) < len(free.options)
    assert all(option.time.hours <= 10 and option.on_demand <= 400 for option in bound.options)
    told = " ".join(reason for option in bound.rejected for reason in option.reasons)
    assert "the deadline is 10" in told
    assert "the budget is 400.00" in told
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
        (["--tokens", "1b"], "How large the model is is not given"),
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
        (["--samples", "1m", "--measured-on", "cpu:2", "--samples-per-second", "9"], "says nothing of GPUs"),
    ],
)
def test_a_wrong_description_exits_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["advise", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_the_table_and_the_document() -> None:
    arguments = ["advise", "--parameters", "7b", "--tokens", "1b", "--deadline", "100"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    for text in ("MFU 0.35 (assumed", "weights", "optimizer", "not p4:4", "management fee"):
        assert text in result.stdout
    document = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    first = document["options"][0]
    assert first["memory_gb"]["total"] <= first["usable_gb"]
    assert first["hours"]["hours"] <= 100
    assert document["workload"]["layers"] > 20


def test_what_the_time_leaves_out_is_marked() -> None:
    # The facts have no network figure for N1, and B200 prices have one weak source.
    arguments = ["advise", "--parameters", "100m", "--tokens", "1b", "--max-nodes", "2", "--top", "99"]
    lines = CliRunner().invoke(app, arguments).stdout.splitlines()
    (v100,) = [line for line in lines if "v100:8 × 2 nodes" in line]
    assert "network not counted" in v100
    (b200,) = [line for line in lines if "b200:8 " in line and "nodes" not in line]
    assert "price unverified" in b200
    (a100,) = [line for line in lines if "a100:16 " in line and "nodes" not in line]
    assert "unverified" not in a100
