"""What a service is told of a study, and what its trials read of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_pipelines.errors import UserError
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.service.documents import StudyDocuments
from gpu_pipelines.tuning.service.records import BUDGET, RUNNING, UNFIT, WHOLE, Price, Record, Records
from gpu_pipelines.tuning.service.study import ServiceStudy, values_of
from gpu_pipelines.tuning.service.tellers import HypertuneFile, Lines, teller_here
from gpu_pipelines.tuning.service.vertex_study import parameters_of
from gpu_pipelines.tuning.space import space_of
from gpu_pipelines.tuning.study import StudyRequest

SPACE = space_of(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "optimizer": {"type": "categorical", "choices": ["adamw", "sgd", "muon"]},
        "momentum": {"type": "float", "low": 0.5, "high": 0.9, "step": 0.2, "when": {"optimizer": "sgd"}},
        "global_batch_size": {"type": "categorical", "choices": [32, 16]},
        "warmup_steps": {"type": "int", "low": 0, "high": 30},
        "lora_rank": {"type": "int", "low": 4, "high": 12, "step": 4},
    }
)


def request(**others: Any) -> StudyRequest:
    base = TrainingSettings(model="mlp-small", max_steps=90)
    known = {"dataset": "gs://b/data", "task": "regression", "rows": 1_000, "base": base, "space": SPACE}
    asked = {"trials": 4, "parallel": 2, "seed": 0, "sampler": "tpe", "reduction": 3, **others}
    return StudyRequest(**known, **asked)


def test_a_space_is_the_parameters_of_a_study_of_vertex_ai() -> None:
    from google.cloud import aiplatform_v1 as api

    found = {each["parameter_id"]: each for each in parameters_of(SPACE)}
    assert "momentum" not in found, "it is below the optimizer"
    for each in found.values():
        api.StudySpec.ParameterSpec(each)  # a field that the API does not know is an error
    assert found["learning_rate"] == {
        "parameter_id": "learning_rate",
        "double_value_spec": {"min_value": 1e-4, "max_value": 1.0},
        "scale_type": "UNIT_LOG_SCALE",
    }
    assert found["global_batch_size"]["discrete_value_spec"]["values"] == [16.0, 32.0]
    assert found["lora_rank"]["discrete_value_spec"]["values"] == [4.0, 8.0, 12.0]
    assert found["warmup_steps"]["integer_value_spec"] == {"min_value": 0, "max_value": 30}
    (below,) = found["optimizer"]["conditional_parameter_specs"]
    assert below["parent_categorical_values"] == {"values": ["sgd"]}
    assert below["parameter_spec"]["discrete_value_spec"]["values"] == pytest.approx([0.5, 0.7, 0.9])


def test_a_condition_that_follows_from_another_is_below_that_one() -> None:
    space = space_of(
        {
            "optimizer": {"type": "categorical", "choices": ["adamw", "sgd"]},
            "global_batch_size": {"type": "categorical", "choices": [16, 32], "when": {"optimizer": "sgd"}},
            "momentum": {
                "type": "float",
                "low": 0.5,
                "high": 0.9,
                "when": {"optimizer": "sgd", "global_batch_size": 16},
            },
        }
    )
    (root,) = parameters_of(space)
    (middle,) = root["conditional_parameter_specs"]
    (last,) = middle["parameter_spec"]["conditional_parameter_specs"]
    assert last["parent_discrete_values"] == {"values": [16.0]}
    assert last["parameter_spec"]["parameter_id"] == "momentum"


def test_too_many_values_by_a_step_are_refused() -> None:
    space = space_of({"warmup_steps": {"type": "int", "low": 0, "high": 5000, "step": 2}})
    with pytest.raises(UserError, match=r"2,501 values by its step; Vertex AI takes 1,000"):
        parameters_of(space)


GIVEN = ["--learning_rate=0.01", "--global_batch_size=16.0", "--warmup_steps=7", "--lora_rank=8.0"]


def test_a_trial_reads_its_values_as_services_write_them() -> None:
    known = {"learning_rate": 0.01, "global_batch_size": 16, "warmup_steps": 7, "lora_rank": 8}
    found = values_of(SPACE, [*GIVEN, "--optimizer=sgd", "--momentum=0.7"])
    assert found == {**known, "optimizer": "sgd", "momentum": 0.7}
    assert {type(found[name]) for name in ("global_batch_size", "warmup_steps", "lora_rank")} == {int}
    # Katib knows no conditions and gives all.
    assert values_of(SPACE, [*GIVEN, "--optimizer=adamw", "--momentum=0.7"]) == {**known, "optimizer": "adamw"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*GIVEN, "--optimizer=adam"], "optimizer cannot be 'adam'"),
        ([*GIVEN, "--optimizer=sgd"], "gave this trial no value for momentum"),
        ([*GIVEN, "--optimizer=muon", "--rate=3"], "got the unknown argument '--rate=3'"),
        ([*GIVEN, "--optimizer=muon", "more"], "got the unknown argument 'more'"),
    ],
)
def test_a_trial_says_what_is_wrong_with_its_values(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        values_of(SPACE, arguments)


def test_a_study_is_what_was_written(tmp_path: Path) -> None:
    documents = StudyDocuments(str(tmp_path / "study"))
    with pytest.raises(UserError, match="is not a study"):
        ServiceStudy.load(documents)
    asked = ServiceStudy(request(), budget=12.5, dollars_per_hour=3.0, longer=2.0)
    asked.save(documents)
    assert ServiceStudy.load(documents) == asked


def test_records_are_those_of_the_trials_in_the_order_of_their_beginning(tmp_path: Path) -> None:
    records = Records(StudyDocuments(str(tmp_path)))
    assert records.all() == []
    assert records.read("1") is None
    late = Record("1", {"learning_rate": 0.1}, began=20.0, seconds=5.0, curve=((1, 2.0), (2, 1.0)))
    early = Record("10", {"learning_rate": 0.2}, UNFIT, began=10.0, error="it diverged", curve=((1, 0.5),))
    records.write(late)
    records.write(early)
    assert records.all() == [early, late]
    assert [each.loss for each in records.all()] == [None, 1.0]
    records.write(Record("1", {"learning_rate": 0.1}, WHOLE, began=20.0, seconds=9.0))
    assert records.all()[1].seconds == 9.0, "a trial that had not ended is read again"


def test_a_budget_is_spent_by_what_all_trials_have_written_down() -> None:
    price = Price(budget=1.0, dollars_per_hour=36.0, parallel=2)  # a cent a second
    assert price.most_seconds == pytest.approx(100.0)
    assert price.seconds_ahead == pytest.approx(5.0)
    one = Record("1", {}, RUNNING, seconds=60.0)
    assert not price.is_spent([one, Record("2", {}, BUDGET, seconds=39.0)])
    assert price.is_spent([one, Record("2", {}, WHOLE, seconds=40.0)])
    assert not Price(0.0, 36.0, 2).is_spent([Record("1", {}, seconds=1e9)])
    assert Price(0.0, 36.0, 2).seconds_ahead == 60.0


def test_vertex_ai_reads_losses_from_a_file_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "folder" / "output.metric"
    monkeypatch.setenv("CLOUD_ML_HP_METRIC_FILE", str(file))
    monkeypatch.setenv("CLOUD_ML_TRIAL_ID", "7")
    teller = teller_here()
    assert isinstance(teller, HypertuneFile)
    teller.tell([(10, 0.5)])
    first = json.loads(file.read_text())
    assert {name: first[name] for name in ("val_loss", "global_step", "trial")} == {
        "val_loss": "0.5",
        "global_step": "10",
        "trial": "7",
    }
    teller.tell([(step, 1 / step) for step in range(10, 200, 10)])
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["global_step"] for each in lines] == [str(step) for step in range(10, 200, 10)]
    assert lines[0]["timestamp"] == first["timestamp"] <= lines[1]["timestamp"], "a loss keeps its time"


def test_katib_reads_losses_from_lines_of_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLOUD_ML_TRIAL_ID", raising=False)
    teller = teller_here()
    assert isinstance(teller, Lines)
    teller.tell([(10, 0.5)])
    teller.tell([(10, 0.5), (20, 0.25)])
    lines = [line.split(" ") for line in capsys.readouterr().out.splitlines()]
    assert [said for _, said in lines] == ["val_loss=0.5", "val_loss=0.25"]
    assert all(moment.endswith("Z") and "T" in moment for moment, _ in lines)
