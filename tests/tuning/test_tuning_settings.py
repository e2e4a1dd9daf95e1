"""What a search is asked: all that is wrong with it is said at once, and what it costs is known before it runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_pipelines.accelerators import plan
from gpu_pipelines.accelerators.cost import dollars_per_hour, estimate_cost
from gpu_pipelines.dag.tune_train_evaluate_upload import told
from gpu_pipelines.errors import UserError
from gpu_pipelines.tuning.halving import Halving, usual_sizes
from gpu_pipelines.tuning.sampler import problems_of_sampler, require_optuna
from gpu_pipelines.tuning.settings import TuningSettings

SPACE = "learning_rate: {type: float, low: 1e-3, high: 1e-1, log: true}"
ASKED = TuningSettings(space=SPACE)


def test_what_is_right_has_no_problems() -> None:
    assert ASKED.problems() == []
    assert (
        replace(ASKED, space=SPACE.replace(": ", ":\n  ", 1), trials=3, parallel_trials=3).problems(processes=4) == []
    )
    assert replace(ASKED, budget=5.0, dollars_per_hour=2.0).problems() == []


def test_all_that_is_wrong_is_said_at_once() -> None:
    space = (
        "lerning_rate: {type: float, low: 1, high: 2}\n"
        "warmup_steps: {type: int, low: 60, high: 0}\n"
        "optimizer: {type: categorical, choices: [adamw, sgdd]}\n"
        "momentum: {type: float, low: 0.5, high: 0.9}\n"
    )
    settings = TuningSettings(
        space=space, trials=0, parallel_trials=0, budget=5.0, longer=0.0, sampler="grid", reduction=10, study_seed=-1,
        first_rung=0.0, resume_from_step=4, momentum=0.8, epochs=-1.0,
    )  # fmt: skip
    problems = "\n".join(settings.problems())
    for wrong in (
        "epochs is -1.0",
        "trials is 0; give a whole number from 1",
        "parallel_trials is 0",
        "reduction is 10",
        "first_rung is 0.0",
        "longer is 0.0",
        "There is no sampler 'grid'",
        "study_seed is -1",
        "resume_from_step is 4; trials begin at step 0",
        "budget is 5 dollars, and no price is known",
        "Did you mean 'learning_rate'?",
        "warmup_steps goes from 60 to 0",
        "optimizer is 'sgdd'. Did you mean 'sgd'?",
        "momentum is searched for, and given as well",
    ):
        assert wrong in problems, wrong


def test_the_model_of_a_task_may_be_searched_for() -> None:
    space = "model: {type: categorical, choices: [mlp-small, linear]}"
    # What a command gives where nobody does.
    asked = replace(ASKED, space=space, model="mlp-small")
    assert asked.problems("regression") == []
    assert asked.problems_of_space() == []
    assert "model is searched for, and given as well" in "".join(replace(asked, model="linear").problems("regression"))


def test_a_space_is_a_text_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(SPACE)
    here = replace(ASKED, space=str(file))
    assert here.search_space() == ASKED.search_space()
    assert here.problems() == []
    (missing,) = replace(ASKED, space=str(tmp_path / "none.yaml")).problems()
    assert f"{tmp_path}/none.yaml cannot be read" in missing
    (empty,) = replace(ASKED, space="").problems()
    assert "No search space is given. Give --space FILE" in empty
    # One in a bucket is read where the steps run, and not by whoever sends the run.
    assert replace(ASKED, space="gs://bucket/space.yaml").problems() == []
    assert "no name of a bucket" in "".join(replace(ASKED, space="gs:///space.yaml").problems())


def test_processes_are_shared_by_the_trials() -> None:
    asked = replace(ASKED, global_batch_size=6)
    assert "4 processes cannot share equally" in "".join(asked.problems(processes=4))
    assert replace(asked, parallel_trials=2).problems(processes=4) == []


def test_the_price_is_that_of_the_region_and_where_that_is_open_of_the_dearest() -> None:
    here, anywhere = plan("l4:4", region="us-central1"), plan("l4:4")
    cost = estimate_cost(here)
    assert cost is not None
    assert cost.here is not None
    assert dollars_per_hour(here) == pytest.approx(cost.here.on_demand, abs=1e-4)
    prices = [price.on_demand for price in cost.regions if price.on_demand is not None]
    assert dollars_per_hour(anywhere) == pytest.approx(max(prices), abs=1e-4)
    spot = dollars_per_hour(plan("l4:4", region="us-central1", strategy="spot"))
    assert spot is not None
    assert 0 < spot < cost.here.on_demand
    assert dollars_per_hour(plan("cpu:2")) is None


def test_a_search_says_what_it_will_do() -> None:
    asked = {"trials": 27, "parallel_trials": 2, "reduction": 3, "first_rung": 1 / 9, "max_steps": 90, "longer": 2.0}
    first, second, third = told({**asked, "budget": 10.0, "dollars_per_hour": 4.0})
    assert "27 trials, 2 at a time" in first
    assert "27 for 11% of the steps, 9 for 33% of the steps, 3 to the end" in first
    # 27 / 9 + 9 × (1/3 − 1/9) + 3 × 2/3, and at most each of them and the longer training.
    assert "as much as 7.0 whole trainings; at most 29, 2,610 steps" in second
    assert "at most $10.00, 2.5 hours, on a machine of $4.00 an hour" in third
    assert "no price is known" in told(asked)[2]
    assert "no budget" in told({**asked, "dollars_per_hour": 4.0})[2]


def test_sizes_of_rungs_are_those_of_a_study_whose_first_losses_tell() -> None:
    halving, done = Halving(27, 3, 3), [0, 0, 0]
    while (part := halving.next()) is not None:
        done[part.rung] += 1
        halving.note(part, float(part.trial))
    assert done == usual_sizes(27, 3, 3) == [27, 9, 3]


def test_a_search_without_optuna_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems_of_sampler() == []
    # As where it is not installed: nothing is found by its name.
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr("sys.path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "optuna", raising=False)
    (problem,) = problems_of_sampler()
    assert "pip install 'gpu-pipelines[tune]'" in problem
    with pytest.raises(UserError, match="needs Optuna"):
        require_optuna()
