"""What a search space may say, and what is wrong with it before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_pipelines.errors import UserError
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.settings import TuningSettings
from gpu_pipelines.tuning.space import read_space, space_of

SPACE = """
momentum: {type: float, low: 0.5, high: 0.99, when: {optimizer: sgd}}
learning_rate: {type: float, low: 1e-3, high: 1e-1, log: true}
global_batch_size: {type: int, low: 16, high: 64, step: 16}
optimizer: {type: categorical, choices: [adamw, sgd]}
"""


def test_a_file_is_read_with_each_after_what_it_depends_on(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(SPACE)
    space = read_space(file)
    assert sorted(space.names) == ["global_batch_size", "learning_rate", "momentum", "optimizer"]
    assert space.names.index("optimizer") < space.names.index("momentum")
    known = {each.name: each for each in space.dimensions}
    assert (known["learning_rate"].low, known["learning_rate"].log) == (0.001, True), "1e-3 is a number"
    assert known["global_batch_size"].samples() == [16, 32, 64]
    assert known["momentum"].counts({"optimizer": "sgd"})
    assert not known["momentum"].counts({"optimizer": "adamw"})
    assert not known["momentum"].counts({})


def test_what_the_loss_on_val_does_not_judge_is_not_searched_for() -> None:
    # IPO's loss before the first step is 1 / (2 beta)^2: the largest beta would win whatever is learned.
    space = {
        "beta": {"type": "float", "low": 0.01, "high": 5.0},
        "preference_loss": {"type": "categorical", "choices": ["sigmoid", "ipo"]},
        "ema_decay": {"type": "float", "low": 0.9, "high": 0.999},
    }
    with pytest.raises(UserError) as raised:
        space_of(space)
    assert "The loss on val grows or falls with beta itself" in str(raised.value)
    assert "Give preference_loss beside the space." in str(raised.value)
    assert "which ema_decay does not change" in str(raised.value)


def test_all_mistakes_are_told_at_once_with_what_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(
        """
lerning_rate: {type: float, low: 0.001, high: 0.1}
weight_decay: {type: flot, low: 0, high: 1}
warmup_steps: {type: int, low: 10, high: 5}
momentum: {type: float, low: 0, high: 0.9, log: true, setp: 0.1}
global_batch_size: {type: float, low: 16, high: 64}
optimizer: {type: categorical, choices: adamw}
gradient_clip: {type: float, low: none, high: 1}
layer_decay: {type: float, low: 0, high: 0.9, when: {optimiser: sgd}}
keep_last: {type: int, low: 1, high: 3}
"""
    )
    with pytest.raises(UserError) as raised:
        read_space(file)
    for told in (
        "Did you mean 'learning_rate'?",
        "Did you mean 'float'?",
        "warmup_steps goes from 10 to 5",
        "Did you mean 'step'?",
        "global_batch_size takes a whole number, and its type here is float",
        "optimizer has no choices",
        "low of gradient_clip takes a number; got 'none'",
        "Did you mean 'optimizer'?",
        "keep_last says how a training is carried out",
    ):
        assert told in str(raised.value), told


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        (
            {
                "optimizer": {"type": "categorical", "choices": ["adamw"]},
                "momentum": {"type": "float", "low": 0, "high": 0.9, "when": {"optimizer": "sgd"}},
            },
            "which it never is. Valid: adamw",
        ),
        (
            {
                "seed": {"type": "categorical", "choices": [1, 2], "when": {"lora_rank": 4}},
                "lora_rank": {"type": "categorical", "choices": [4, 8], "when": {"seed": 1}},
            },
            "Each waits for the other",
        ),
        ({"momentum": {"type": "float", "low": 0.1, "high": 0.2, "log": True, "step": 0.1}}, "log and step"),
        ({"seed": {"type": "categorical", "choices": [1, 1]}}, "twice"),
        ({}, "it is empty. Give, say, learning_rate"),
        ({1: {"type": "int", "low": 1, "high": 2}, (2, 3): 4}, "There is no parameter '1' of train_model"),
        ({"momentum": {"low": 0.1, "high": 0.2}}, "momentum has no type. Valid: float, int, categorical"),
    ],
)
def test_what_cannot_be_is_refused(entries: dict, told: str) -> None:
    with pytest.raises(UserError, match=told):
        space_of(entries)


def test_a_parameter_that_waits_for_one_that_does_not_exist_is_told_beside_what_else_is_wrong() -> None:
    momentum = "momentum: {type: float, low: 0.5, high: 0.9, when: {optimizr: sgd}}"
    space = f"{momentum}\nlearning_rate: {{type: float, low: 0, high: 1}}"
    told = TuningSettings(space=space).problems()
    assert [each for each in told if "momentum counts when optimizr has a value, which is not searched for" in each]
    assert [each for each in told if "learning_rate" in each]


def test_values_are_those_that_the_training_takes() -> None:
    space = space_of(
        {
            "optimizer": {"type": "categorical", "choices": ["adamw", "adam"]},
            "momentum": {"type": "float", "low": 0.5, "high": 1.5},
            "global_batch_size": {"type": "int", "low": 8, "high": 64},
        }
    )
    base = TrainingSettings(model="mlp-small")
    told = "\n".join(space.problems(base, "regression", processes=2))
    assert "'adam'" in told
    assert "momentum is 1.5" in told
    assert "global_batch_size is 9, which 2 processes cannot share equally" in told
    assert len(told.splitlines()) == 3


def test_values_are_right_or_wrong_only_beside_those_that_are_searched_for_with_them() -> None:
    rank = "lora_rank: {type: int, low: 8, high: 64}\n"
    asked = TuningSettings(space=rank, model="of/a-hub", quantize_base="nf4")
    assert asked.problems("language_modeling") == []
    targets = "lora_targets: {type: categorical, choices: [attention, all]}"
    assert replace(asked, space=rank + targets).problems("language_modeling") == []
    # A trial of these in four would end the study.
    space = "lora_rank: {type: categorical, choices: [0, 8]}\nfreeze: {type: categorical, choices: ['', backbone]%s}"
    both = "In the search space: freeze and lora_rank are both given"
    asked = replace(asked, quantize_base="")
    assert replace(asked, space=space % "").problems("language_modeling")[0].startswith(both)
    assert replace(asked, space=space % ", when: {lora_rank: 0}").problems("language_modeling") == []


def test_the_example_is_right_for_the_digits() -> None:
    space = read_space(Path(__file__).parents[2] / "examples" / "tuning" / "space.yaml")
    assert space.problems(TrainingSettings(), "image_classification", processes=2) == []
