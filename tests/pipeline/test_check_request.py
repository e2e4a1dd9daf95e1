"""The first step of every run: what it refuses, and what it opens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import set_variables

from gpu_pipelines.artifacts.checkpoint import mark_complete, write_configuration
from gpu_pipelines.artifacts.mlflow_server import mlflow_client
from gpu_pipelines.component_interface.catalog import load_component
from gpu_pipelines.component_interface.step import fields_from, with_advanced
from gpu_pipelines.dag.advanced import COMMON
from gpu_pipelines.dag.check import Checked
from gpu_pipelines.dag.check import check as check_request
from gpu_pipelines.dag.request import Request
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import open_registry
from gpu_pipelines.registry.registered import Promotion
from gpu_pipelines.training.settings import TrainingSettings

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

SCORES = "def score(checkpoint, dataset, split):\n    raise SystemExit('is not to be run')\n"


def check(**given: Any) -> Checked:
    """The step with these inputs, and defaults for all others."""
    known = load_component("check_request").component_spec.inputs
    assert set(given) <= set(known)
    values = {**{name: spec.default for name, spec in known.items()}, **given}
    common = {name: values[name] for name in COMMON if name != "checkpoint_uri"}
    return check_request(common, fields_from(Request, values), values["advanced"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gates": ["acuracy>=0.9"]}, "no metric 'acuracy' to gate on. Did you mean 'accuracy'?"),
        ({"source": "nowhere"}, "The source nowhere does not exist"),
        ({"registry": "notes.txt/models"}, "cannot be written: Not a directory"),
        ({"registry": "./registry", "storage": "gs://bucket/root"}, "would be a directory of the container, lost"),
        ({"advanced": {"scoring_function": "notes.txt:score"}}, "scoring_function is 'notes.txt:score'"),
        ({"advanced": {"scoring_function": "gs://b/mine.py:score"}}, "is 'gs://b/mine.py:score'; give package.module:"),
        (
            {"task": "causal_lm", "advanced": {"generate": ["gs://b/mine.py:score"]}},
            "generate names 'gs://b/mine.py:score'",
        ),
        ({"advanced": {"scoring_function": "score.py:scores"}}, "score.py has no scores. Did you mean 'score'?"),
        ({"advanced": {"scoring_function": "not_there.at_all:score"}}, "not_there"),
        ({"advanced": {"recipe": "json:Recipe"}}, "The recipe json:Recipe cannot be imported: AttributeError"),
        ({"advanced": {"paking": False}}, "advanced has no field 'paking'. Did you mean 'packing'?"),
        ({"advanced": {"epochs": 2}}, "advanced has no field 'epochs'. It stands beside advanced."),
        ({"advanced": {"packing": "false"}}, 'packing (in advanced) takes true or false; got "false".'),
        ({"advanced": {"keep_last": 1.5}}, "keep_last (in advanced) takes a whole number; got 1.5."),
        ({"advanced": {"keep_last": -1.0}}, "keep_last is -1; give 0 to 2^53."),
        ({"checkpoint_uri": "runs/none"}, "checkpoint_uri is runs/none, which has no checkpoint."),
        ({"data_nodes": 2, "source": "bq://p.d.t"}, "is read by one machine"),
        ({"place": "vertex", "pipeline": "scheduled_retraining"}, "notify has 0 addresses; give one to 3"),
        (
            {"pipeline": "scheduled_retraining", "advanced": {"min_champion_age_days": -1}},
            "min_champion_age_days is -1",
        ),
    ],
)
def test_what_would_fail_after_the_training_is_refused_before_it(
    here: Path, given: Mapping[str, Any], message: str
) -> None:
    (here / "notes.txt").write_text("")
    (here / "score.py").write_text(SCORES)
    with pytest.raises(UserError) as caught:
        check(**given)
    assert message in str(caught.value)


def test_a_model_that_does_not_learn_from_the_columns_is_refused(here: Path) -> None:
    (here / "films.csv").write_text("text,stars\n" + "".join(f"film {n},{n}\n" for n in range(9)))
    given = {"source": "films.csv", "task": "regression", "label_column": "stars"}
    with pytest.raises(UserError, match=r"learned from the texts in 'text'\. Give bert-micro, bert-base\."):
        check(**given, model="mlp-small")
    assert check(**given, model="bert-micro").parameters["prepare"] == {}
    with pytest.raises(UserError, match=r"changes images, and films\.csv is not learned from any\. Leave it empty\."):
        check(**given, model="bert-micro", advanced={"augmentation": "flip"})
    (here / "sizes.csv").write_text("size,stars\n" + "".join(f"{n},{n}\n" for n in range(9)))
    with pytest.raises(UserError, match=r"learned from numbers\. Give mlp-small, linear\."):
        check(**{**given, "source": "sizes.csv"}, model="bert-micro")


def test_everything_is_told_at_once(here: Path) -> None:
    with pytest.raises(UserError, match="3 things are wrong"):
        check(gates=["x>=1"], epochs=-1.0, advanced={"no_such_thing": 1})


def test_each_step_gets_its_own_parameters_with_their_types(here: Path) -> None:
    (here / "score.py").write_text(SCORES)
    given = {"packing": False, "keep_last": 2.0, "weight_decay": 1, "slice_by": ""}
    checked = check(advanced={**given, "scoring_function": "score.py:score"})
    assert repr(checked.parameters) == repr(
        {
            "prepare": {"packing": False, "slice_by": ""},
            "train": {"keep_last": 2, "weight_decay": 1.0},
            "evaluate": {"slice_by": "", "scoring_function": "score.py:score"},
            "upload": {},
        }
    )


def test_a_step_takes_what_it_is_handed_on_for_its_own() -> None:
    given = TrainingSettings(max_steps=8.0, precision="fp32")  # type: ignore[arg-type]  # as JSON may have a number
    merged = with_advanced(given, {"seed": 3.0, "lora_alpha": 1, "precision": "bf16", "place": "there"}, "place")
    assert repr(merged) == repr(TrainingSettings(max_steps=8, seed=3, lora_alpha=1.0, precision="bf16"))
    with pytest.raises(UserError, match="advanced has a field 'sed'"):
        with_advanced(given, {"sed": 1})
    with pytest.raises(UserError, match=r'seed \(in advanced\) takes a whole number; got "one"'):
        with_advanced(given, {"seed": "one"})


def test_settings_are_the_same_however_a_service_writes_numbers() -> None:
    written = (dict.fromkeys(("epochs", "seed"), 15), dict.fromkeys(("epochs", "seed"), 15.0))
    first, second = (fields_from(TrainingSettings, given) for given in written)
    assert repr(first) == repr(second) == repr(TrainingSettings(epochs=15.0, seed=15))
    hashes = {each.resolved("image_classification").configuration_hash() for each in (first, second)}
    assert len(hashes) == 1


@pytest.mark.parametrize("rows", [1000, 9], ids=["more rows than a step takes", "fewer"])
def test_checkpoints_of_other_parameters_are_refused_before_the_data_is_prepared(
    here: Path, capsys: pytest.CaptureFixture[str], rows: int
) -> None:
    step = here / "checkpoints" / "step-00000004"
    step.mkdir(parents=True)
    seen = {"step": 4, "epoch": 1.0, "samples_seen": 64, "world_size": 1, "dataset_fingerprint": "d"}
    resolved = TrainingSettings(max_steps=8).resolved("image_classification", rows=rows)
    mark_complete(step, {}, **seen, configuration_hash=resolved.configuration_hash())
    with pytest.raises(UserError, match="step-00000004 there was trained with other parameters"):
        check(checkpoint_uri="checkpoints")
    checked = check(checkpoint_uri="checkpoints", advanced={"max_steps": 8, "keep_last": 1})
    assert checked.parameters["train"] == {"max_steps": 8, "keep_last": 1, "checkpoint_uri": "checkpoints"}
    assert "the training continues from step-00000004 in checkpoints" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "fixed"),
    [
        ({"learning_rate": 0.1}, ""),
        ({"freeze": "head.*"}, "freeze is 'head.*', there it was ''"),
        ({"global_batch_size": 32, "learning_rate": 0.1}, ""),  # 16 of few rows
        ({"global_batch_size": 24}, "global_batch_size is 24, there it was 16"),
        ({"optimizer": "sgd", "momentum": 0.0}, "optimizer is 'sgd'"),
    ],
)
def test_what_no_step_can_go_on_with_is_refused_before_the_data_is_prepared(
    here: Path, changed: dict[str, Any], fixed: str
) -> None:
    """The training would say so only after the preparation, on its machine."""
    resolved = TrainingSettings(max_steps=8, global_batch_size=16).resolved("image_classification")
    step = here / "checkpoints" / "step-00000004"
    step.mkdir(parents=True)
    write_configuration(here / "checkpoints", {"settings": asdict(resolved)})
    seen = {"step": 4, "epoch": 1.0, "samples_seen": 64, "world_size": 1, "dataset_fingerprint": "d"}
    mark_complete(step, {}, **seen, configuration_hash=resolved.configuration_hash())
    common = {name: changed[name] for name in COMMON if name in changed}
    own = {name: value for name, value in changed.items() if name not in common}
    given = {"checkpoint_uri": "checkpoints", "global_batch_size": 16, **common}
    with pytest.raises(UserError, match="step-00000004 there was trained with other parameters") as error:
        check(**given, advanced={"max_steps": 8, **own})
    again = "" if fixed else ", or resume_from_step=4 to continue from there with these"
    assert f"leave out checkpoint_uri to start anew{again}." in str(error.value)
    with pytest.raises(UserError, match=re.escape(fixed)) if fixed else nullcontext():
        check(**given, advanced={"max_steps": 8, **own, "resume_from_step": 4})


@pytest.mark.parametrize(
    ("denied", "message"),
    [
        ("aiplatform.models.upload", "may not add versions (aiplatform.models.upload) in Vertex AI Model Registry"),
        ("aiplatform.models.update", "may not move aliases (aiplatform.models.update)"),
        ("storage.objects.create", "may not write files (storage.objects.create) in gs://example-bucket"),
        ("", ""),
    ],
)
def test_a_registry_that_may_not_be_written_is_found_before_the_training(
    vertex_api: VertexApi, here: Path, monkeypatch: pytest.MonkeyPatch, denied: str, message: str
) -> None:
    set_variables(monkeypatch, vertex_api.environment())
    vertex_api.state.project.denied = {denied}
    given = {"registry": "vertex://example-project/us-central1", "storage": "gs://example-bucket/root"}
    if denied:
        with pytest.raises(UserError) as caught:
            check(**given, place="vertex")
        assert message in str(caught.value)
    else:
        assert check(**given, place="vertex").source_fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("passed", [True, False])
def test_a_champion_that_was_deleted_in_mlflow_is_missed(mlflow: str, here: Path, passed: bool) -> None:
    name, model, registry = f"deleted-{passed}".lower(), here / "model", open_registry(mlflow)
    model.mkdir()
    first: dict[str, Any] = {"passed": passed}
    for number, info in enumerate((first, {"passed": False, "compared_with": None if passed else 1}), 1):
        (model / "model.safetensors").write_text(str(number))
        registry.add(name, model, info, Promotion(number == 1, None))
    # Of the two the deleted one is the champion; the other has passed its gates, or was compared with it.
    registry.set_alias(name, "champion", deleted := 2 if passed else 1)
    mlflow_client(mlflow).delete_model_version(name, str(deleted))
    with pytest.raises(UserError, match=rf"{name} champion NUMBER") as caught:
        check(registry=mlflow, model_name=name)
    assert "has lost its champion" in str(caught.value)
    registry.set_alias(name, "champion", 3 - deleted)
    assert check(registry=mlflow, model_name=name).source_fingerprint


def test_a_model_that_never_had_a_champion_misses_none(here: Path) -> None:
    (here / "model").mkdir()
    (here / "model" / "model.safetensors").write_text("weights")
    open_registry("registry").add("failed", here / "model", {"passed": False}, Promotion(False, None))
    assert check(registry="registry", model_name="failed").source_fingerprint


def test_a_champion_for_another_task_is_found_before_the_training(here: Path) -> None:
    (here / "model").mkdir()
    (here / "model" / "model.safetensors").write_text("weights")
    registry = open_registry("registry")
    registry.add("mine", here / "model", {"passed": True, "task": "regression"}, Promotion(True, None))
    registry.set_alias("mine", "champion", 1)
    with pytest.raises(UserError, match=r"is a model for regression, this one for image_classification\."):
        check(registry="registry", model_name="mine")
    function = {"scoring_function": "mine.py:score"}
    (here / "mine.py").write_text(SCORES)
    assert check(registry="registry", model_name="mine", advanced=function).source_fingerprint
