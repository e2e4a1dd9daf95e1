"""`run --trial`: a few real steps, and what they say of accelerators that are not here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import command
from conftest import gpu_pipelines, write_photos

from gpu_pipelines.accelerators import load_catalog, plan
from gpu_pipelines.accelerators.advice import advise
from gpu_pipelines.accelerators.memory_estimate import estimate_memory
from gpu_pipelines.accelerators.option import Wishes
from gpu_pipelines.targets.local.trial import TRIAL_STEPS, Trial, assumptions, is_too_small
from gpu_pipelines.targets.runs.trial_record import FILE, hours_by_trial, save_trial

FIGURES = {"steps": 40, "samples_per_second": 100.0, "memory_gb": 2.0, "data_loading_share": 0.01, "processes": 2}
MODEL = {
    "trained_parameters": 86_000_000,
    "frozen_parameters": 0,
    "nf4_parameters": 0,
    "forward_flops_per_row": 35e9,
    "activation_bytes_per_row": 100e6,
}


def trial(measured_on: str | None = None, **figures: float) -> Trial:
    return Trial({**FIGURES, **figures}, MODEL, 10_000, 640_000, 32, "fp32", measured_on)


@pytest.mark.slow
def test_a_trial_measures_here_and_projects_to_every_accelerator_that_fits(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos")
    whole = ("-p", "resume_from_step=4", "-p", "profile_steps=3-4")  # which a trial leaves alone
    given = ("--trial", "--accelerator", "cpu:1", "-p", "source=photos", *whole)
    done = gpu_pipelines("run", "train_evaluate_upload", *given, cwd=tmp_path)
    assert done.status == 0, done.err
    assert f"trial of {TRIAL_STEPS} steps" in done.out
    assert "profiled" not in done.out
    for said in ("samples/s on 1 processes in fp32", "spent on reading data", "parameters to train", "on this machine"):
        assert said in done.out
    fitting = {gpu.name for gpu in load_catalog().gpus.values() if gpu.ends is None}
    assert all(f"{name}:" in done.out for name in fitting)
    told = " ".join(done.out.split())
    assert "MFU of published trainings" in told
    assert "too small for a gain to mean anything" in told
    assert "no GPU of the catalog, so times on GPUs follow from the operations counted here" in told
    assert not list(tmp_path.rglob("*.arrow")), "no data is left behind"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [FILE], "but what limits the training's time"
    assert max(len(line) for line in done.out.splitlines() if " – " in line and ":" in line[:16]) <= 80


def test_a_wrong_request_is_refused_before_the_trial(tmp_path: Path) -> None:
    done = command("run", "train_evaluate_upload", "--trial", "-p", "learning_rate=-1", cwd=tmp_path)
    assert done.status == 2
    assert "learning_rate is -1" in done.err


def test_without_a_gpu_the_operations_and_activations_that_were_counted_decide() -> None:
    workload = trial().workload()
    h100 = next(option for option in advise(workload, Wishes(max_nodes=1)).options if option.plan.spec == "h100:8")
    assert h100.memory is not None
    assert h100.memory.activations == pytest.approx(32 * 100e6 / 2 / 1e9), "bf16 is half of fp32"
    flops = 640_000 * 35e9 * 3
    peak = load_catalog().gpus["h100"].bf16_tflops * 1e12
    assert h100.time is not None
    assert h100.time.computation == pytest.approx(flops / (8 * peak * 0.4 * 0.75) / 3600)


def test_frozen_weights_that_a_trial_has_counted_take_what_the_engine_holds() -> None:
    model = {**MODEL, "trained_parameters": 10_000_000, "frozen_parameters": 7_000_000_000}
    held = []
    for in_nf4, optimizer in ((0, "adamw"), (6_500_000_000, "adamw"), (0, "sgd")):
        counted = {**model, "nf4_parameters": in_nf4}
        workload = replace(trial(), model=counted, optimizer=optimizer, has_average=True).workload()
        memory = estimate_memory(workload, "bf16", 1, "ddp")
        held.append(memory.weights + memory.gradients + memory.optimizer + memory.average)
    trained = 0.01 * (16 + 4)
    assert held == pytest.approx([14 + trained, 0.5 * 2 + 6.5 * 4.5 / 8 + trained, 14 + trained - 0.01 * 4])


def test_a_gain_is_shown_only_where_the_gpu_decides() -> None:
    small = replace(trial(), model={**MODEL, "trained_parameters": 100_000, "forward_flops_per_row": 5e6})
    assert all(is_too_small(option) for option in advise(small.workload(), Wishes(max_nodes=1)).options)
    options = {option.plan.spec: option for option in advise(trial().workload(), Wishes(max_nodes=1)).options}
    assert not is_too_small(options["a100:1"])


def test_what_was_measured_on_a_gpu_is_scaled_from_it() -> None:
    workload = trial("l4:1").workload()
    assert workload.is_measured
    options = {option.plan.spec: option for option in advise(workload, Wishes(max_nodes=1)).options}
    assert options["l4:1"].time.computation == pytest.approx(640_000 / 100 / 3600)
    assert options["h100:8"].time.computation < options["l4:1"].time.computation / 8


def test_what_keeps_a_gpu_from_paying_is_said() -> None:
    assert not any("reading data takes" in line.lower() for line in assumptions(trial("l4:1")))
    assert any("reading data takes" in line.lower() for line in assumptions(trial("l4:1", data_loading_share=0.4)))
    assert any("hardly pay" in line for line in assumptions(trial("l4:1", samples_per_second=10_000.0)))


def test_a_training_on_vertex_ai_may_take_three_times_what_its_trial_says_and_an_hour(tmp_path: Path) -> None:
    arguments = {"source": "photos", "epochs": 15.0, "max_steps": 0, "registry": "./registry"}
    # 1,000 times as many rows as of the trial above: 0.64 billion.
    long = Trial(FIGURES, MODEL, 10_000_000, 640_000_000, 32, "fp32", "l4:1")
    advice = advise(long.workload(), Wishes(max_nodes=1))
    save_trial(tmp_path, arguments, advice)
    by_spec = {option.plan.spec: option.time.hours for option in advice.options if option.time is not None}
    l4, h100 = plan("l4:8"), plan("h100:8")
    assert hours_by_trial(tmp_path, arguments, h100) == math.ceil(3 * by_spec["h100:8"] + 1)
    assert hours_by_trial(tmp_path, arguments, plan("h100:8", nodes=2)) == math.ceil(3 * by_spec["h100:8"] + 1)
    assert by_spec["l4:8"] * 3 > 168
    assert hours_by_trial(tmp_path, arguments, l4) == 168
    assert hours_by_trial(tmp_path, {**arguments, "registry": "vertex://"}, h100), "the registry is no matter"
    for changed in ({"epochs": 16.0}, {"source": "gs://bucket/photos"}):
        assert hours_by_trial(tmp_path, {**arguments, **changed}, h100) is None
    save_trial(tmp_path, {**arguments, "max_steps": 100}, advise(trial("l4:1").workload(), Wishes(max_nodes=1)))
    elsewhere = {**arguments, "max_steps": 100, "source": "gs://bucket/photos"}
    assert hours_by_trial(tmp_path, elsewhere, h100) == 4.0, "as many steps, whatever the data"
    (tmp_path / FILE).write_text("{}")
    assert hours_by_trial(tmp_path, elsewhere, h100) is None
