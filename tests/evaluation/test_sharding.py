"""Several processes share rows and checkpoints; what they give is what one process gives, or the step fails."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluations import numbers_dataset, settings_in, write_regressions
from torch import nn

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.models.average import write_average
from gpu_pipelines.evaluation.models.candidates import WorkOnModels
from gpu_pipelines.evaluation.models.loading import ModelSource
from gpu_pipelines.evaluation.scorers import sharding
from gpu_pipelines.evaluation.scorers.recipe import RecipeScorer
from gpu_pipelines.evaluation.scorers.runner import Runner, RunnerSettings
from gpu_pipelines.evaluation.scorers.sharding import Shard, ShardedRunner, Shards, evaluation_devices
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.tasks.checkpoint_state import save_state
from gpu_pipelines.tracking.facts import facts_of_evaluation


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return numbers_dataset(tmp_path_factory.mktemp("numbers"))


def evaluate(numbers: Dataset, folder: Path, name: str, processes: int | None, **given: Any) -> Evaluation:
    best = folder / f"best-{name}-{processes}"
    settings = settings_in(folder, **given)
    return evaluate_checkpoints(settings, numbers.directory, folder / name, best, processes)


def shards_of(sources: int, each: int) -> list[Shard]:
    return [Shard(number // each, number, print, ()) for number in range(sources * each)]


def finish_times(checkpoints: int, processes: int, shards: int, swap: float = 0.1) -> list[float]:
    """When each of several processes has nothing left to do, if a shard takes 1 and other weights `swap`."""
    work = Shards(shards_of(checkpoints, shards))
    clock, last = [0.0] * processes, [None] * processes
    ended: list[float] = []
    while clock:
        now = min(range(len(clock)), key=lambda number: clock[number])
        shard = work.take(last[now])
        if shard is None:
            ended.append(clock.pop(now))
            last.pop(now)
            continue
        clock[now] += 1 + swap * (shard.source != last[now])
        last[now] = shard.source  # type: ignore[call-overload]
    return ended


@pytest.mark.parametrize(("checkpoints", "processes"), [(10, 8), (3, 2), (1, 8), (8, 8), (2, 7), (17, 4)])
def test_all_processes_finish_together(checkpoints: int, processes: int) -> None:
    ended = finish_times(checkpoints, processes, shards=4 * processes)
    fair = checkpoints * 4  # shards of each process
    assert max(ended) - min(ended) <= 1.2, "no more than the last shard"
    assert max(ended) <= fair + 1.2 + 0.1 * (checkpoints / processes + 4), "weights are swapped hardly more than needed"


def test_each_piece_is_taken_once_however_many_take() -> None:
    every = shards_of(5, 11)
    shards, taken = Shards(every), []
    lock = threading.Lock()

    def take_all() -> None:
        last = None
        while (shard := shards.take(last)) is not None:
            last = shard.source
            with lock:
                taken.append(shard)

    threads = [threading.Thread(target=take_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken, key=lambda shard: shard.number) == every


def test_two_processes_find_what_one_finds(numbers: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("MARK", str(mark))
    errors = [0.5, 0.1, 0.3]
    write_regressions(tmp_path / "alone", numbers, errors)
    write_regressions(tmp_path / "together", numbers, errors, recipe="AwaitsTheOther")
    one = evaluate(numbers, tmp_path, "alone", 1)
    two = evaluate(numbers, tmp_path, "together", 2)
    assert int(mark.read_text()) != os.getpid(), "another process took part"
    for had, found in zip(one.checkpoints, two.checkpoints, strict=True):
        assert had["val"]["loss"] == pytest.approx(found["val"]["loss"], rel=1e-6)
    assert two.best == one.best
    assert two.test["metrics"]["loss"]["value"] == pytest.approx(one.test["metrics"]["loss"]["value"], rel=1e-6)


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        pytest.param("KilledInTheOther", "The process that evaluates on cpu was killed", marks=pytest.mark.slow),
        pytest.param(
            "FailsInTheOther",
            "The evaluation on cpu failed: RuntimeError: the device is gone",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_process_that_fails_fails_the_step(
    numbers: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, says: str
) -> None:
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    write_regressions(tmp_path / "checkpoints", numbers, [0.5, 0.1], recipe=recipe)
    with pytest.raises(UserError) as caught:
        evaluate(numbers, tmp_path, "checkpoints", 2)
    assert str(caught.value).startswith(says)
    assert not list(tmp_path.glob("best*"))


@pytest.mark.slow
def test_cpu_processes_are_started_when_there_is_enough_to_do(
    numbers: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_regressions(tmp_path / "checkpoints", numbers, [0.5, 0.1])
    sources = [
        ModelSource("checkpoint", tmp_path / f"checkpoints/step-000000{number}0", str(number)) for number in (1, 2)
    ]
    training = {"model": "linear", "recipe": "evaluations:Regression"}
    shared = ShardedRunner(RunnerSettings(numbers.directory, training, "", 4), ["cpu", "cpu"], at_once=False)
    found: dict[int, np.ndarray] = {}
    shared.predict(sources, "val", 30, lambda number, predicted: found.update({number: predicted}))
    assert not shared._pools
    monkeypatch.setattr(sharding, "WORTH_STARTING", 0.0)
    again: dict[int, np.ndarray] = {}
    shared.predict(sources, "val", 30, lambda number, predicted: again.update({number: predicted}))
    assert len(shared._pools) == 1
    shared.close()
    assert all(np.array_equal(again[number], found[number], equal_nan=True) for number in (0, 1))
    assert found[0].shape == (30, 3)


@pytest.mark.slow
def test_one_process_hashes_the_frozen_weights(numbers: Dataset) -> None:
    training = {"model": "linear", "recipe": "evaluations:Regression", "freeze": "bias"}
    source = ModelSource("untrained", Path(), "the model")
    shared = ShardedRunner(
        RunnerSettings(numbers.directory, training, "of other weights", 4), ["cpu", "cpu"], at_once=True
    )
    (pool,) = shared._pools
    assert pool.submit(sharding._in_process, Runner.predict, source, "val", 0, 4).result().shape == (4, 3)
    with pytest.raises(UserError, match="have changed since the training"):
        shared.runner.predict(source, "val", 0, 4)
    shared.close()


def test_all_gpus_of_the_machine_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPU_PIPELINES_ACCELERATOR", "GPU_PIPELINES_REHEARSE"):
        monkeypatch.delenv(name, raising=False)
    assert evaluation_devices(8) == [f"cuda:{number}" for number in range(8)]
    assert evaluation_devices(8, processes=2) == ["cuda:0", "cuda:1"]
    assert evaluation_devices(0) == ["cpu"] * 2
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:3")
    assert evaluation_devices(0) == evaluation_devices(8) == ["cpu"] * 3
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "h100:8")
    assert evaluation_devices(4) == [f"cuda:{number}" for number in range(4)]
    with pytest.raises(UserError, match="placed on h100:8, but PyTorch sees no GPU"):
        evaluation_devices(0)
    monkeypatch.setenv("GPU_PIPELINES_REHEARSE", "cpu:4")
    assert evaluation_devices(8) == ["cpu"] * 4


def test_a_process_works_on_its_own_gpu_alone(numbers: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device) -> None:
        raise RuntimeError(f"{device} is broken")

    monkeypatch.setattr(torch.cuda, "set_device", broken)
    settings = RunnerSettings(numbers.directory, {"model": "linear", "recipe": "evaluations:Regression"}, "", 4)
    source = ModelSource("untrained", Path(), "the model")
    Runner(settings, "cpu").models.load(source)
    # What is wrong with the GPU is an error of the work, not of the process's start, which nobody could tell.
    runner = Runner(settings, "cuda:1")
    with pytest.raises(RuntimeError, match="cuda:1 is broken"):
        runner.models.load(source)


class OnTheGpu:
    """Stands in for a model."""


def of_a_full_gpu(runner: Runner, source: ModelSource, seen: list[Any]) -> None:
    model = OnTheGpu()
    seen.append(weakref.ref(model))
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 22 GiB."
    )


def test_no_more_threads_compute_than_a_container_has_cores(numbers: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    training, before = {"model": "linear", "recipe": "evaluations:Regression"}, torch.get_num_threads()
    monkeypatch.setattr("gpu_pipelines.processors.cores", lambda: 2)
    torch.set_num_threads(3)
    try:
        ShardedRunner(RunnerSettings(numbers.directory, training, "", 4), ["cpu"], at_once=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_full_gpu_is_told_with_what_to_do_and_nothing_keeps_what_filled_it(numbers: Dataset) -> None:
    training = {"model": "linear", "recipe": "evaluations:Regression"}
    shared = ShardedRunner(RunnerSettings(numbers.directory, training, "", 4), ["cpu"], at_once=True)
    source, seen = ModelSource("untrained", Path(), "the model"), []
    gc.disable()
    try:
        with pytest.raises(UserError) as caught:
            shared.each([source], WorkOnModels(of_a_full_gpu, [(0, seen)], print))
        assert caught.value.kind == "unfit_parameters"
        assert caught.value.problem == "The evaluation on cpu ran out of memory when 2.00 GiB more were needed."
        assert "--evaluation-accelerator" in caught.value.remedy
        del caught
        # After a champion that cannot be scored the evaluation goes on, and needs that memory.
        assert seen[0]() is None
    finally:
        gc.enable()


# The mean of the last checkpoints


def test_the_scores_of_a_checkpoint_are_gone_when_the_next_is_scored(numbers: Dataset, tmp_path: Path) -> None:
    write_regressions(tmp_path / "checkpoints", numbers, [0.5, 0.3, 0.1])
    kept: list[weakref.ref[Scores]] = []
    left: list[int] = []

    def done(number: int, scores: Scores) -> None:
        left.append(sum(each() is not None for each in kept))
        kept.append(weakref.ref(scores))

    with closing(RecipeScorer(numbers, tmp_path / "checkpoints", processes=1)) as scorer:
        scorer.on_val(done)
    assert left == [0, 0, 0]


def test_the_mean_of_the_last_checkpoints_is_one_more_candidate(numbers: Dataset, tmp_path: Path) -> None:
    from evaluations import SLOPES
    from safetensors.numpy import load_file

    write_regressions(tmp_path / "checkpoints", numbers, [0.5, 0.3, -0.2, -0.1])
    evaluation = evaluate(numbers, tmp_path, "checkpoints", 1, average_last=3)
    assert evaluation.best == "average-of-last-3"
    assert len(evaluation.checkpoints) == 5
    assert evaluation.checkpoints[-1]["averages"] == [f"step-000000{number}0" for number in (2, 3, 4)]
    assert evaluation.checkpoints[-1]["step"] == 40
    curve = {entry["step"]: entry["checkpoint_val_loss"] for entry in facts_of_evaluation(evaluation).entries}
    assert curve == {scored["step"]: scored["val"]["loss"] for scored in evaluation.checkpoints[:-1]}
    assert evaluation.test["metrics"]["loss"]["value"] == pytest.approx(0, abs=1e-9)
    weights = load_file(tmp_path / "best-checkpoints-1/model.safetensors")
    assert weights["weight"][0] == pytest.approx(SLOPES, abs=1e-6)
    # The weights in memory must be those of the checkpoint again, not what the mean was made of.
    losses = [scored["val"]["loss"] for scored in evaluation.checkpoints]
    assert losses == sorted(losses, reverse=True)[:1] + losses[1:]
    alone = evaluate(numbers, tmp_path, "checkpoints", None)
    assert [s["val"]["loss"] for s in alone.checkpoints] == pytest.approx(losses[:4], rel=1e-6)


def test_the_mean_takes_eight_bytes_of_main_memory_for_each_weight(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "training"))
    from language_model_memory import PeakMemory

    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(16)))
    bytes_of_model = sum(weight.nbytes for weight in model.parameters())
    places = [tmp_path / str(number) for number in range(3)]
    for place in places:
        place.mkdir()
        save_state({"model": model.state_dict()}, place)
    with PeakMemory(model.parameters()) as memory:
        write_average(model, places, tmp_path / "mean")
    # Beside the model: the sums, and what is read, divided or written of a weight or two.
    assert memory.peak < 3.3 * bytes_of_model


def test_one_checkpoint_cannot_be_averaged(numbers: Dataset, tmp_path: Path) -> None:
    write_regressions(tmp_path / "checkpoints", numbers, [0.5])
    with pytest.raises(UserError, match="nothing to average: 1 checkpoint"):
        evaluate(numbers, tmp_path, "checkpoints", 1, average_last=3)
