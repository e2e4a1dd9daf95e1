"""Models that no step of this project has evaluated: they are registered, and replace no champion that was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from command_line import command
from conftest import set_variables
from kfp import dsl
from safetensors.numpy import save_file

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.exported_model import MODEL_CARD
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import UserError
from gpu_pipelines.notifications.notes import left
from gpu_pipelines.notifications.settings import MessageSettings
from gpu_pipelines.notifications.step import message_of
from gpu_pipelines.registry import open_registry
from gpu_pipelines.registry.missing import require_champion_not_lost
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.registry.upload_step import run
from gpu_pipelines.targets.runs.record import RunRecord

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi


def write_onnx(folder: Path, weights: bytes = b"\x08\x07weights") -> Path:
    """A model that is one file, as a step leaves it at the path of its output."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(weights)
    return folder / "model.onnx"


def write_hugging_face(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["BertForSequenceClassification"]}))
    save_file({"weight": np.random.default_rng(seed).normal(size=(2, 2))}, folder / "model.safetensors")
    return folder


def write_evaluated(folder: Path, champion: int | None = None) -> Path:
    """One with an evaluation that it has passed."""
    write_hugging_face(folder, seed=1)
    Evaluation(
        model_name="mine",
        task="image_classification",
        labels=["no", "yes"],
        dataset_fingerprint="d" * 64,
        configuration={"settings": {}, "devices": {}},
        select_by="accuracy",
        checkpoints=[],
        best="step-00000100",
        test={"rows": 10, "metrics": {"accuracy": {"value": 0.9, "low": 0.8, "high": 1.0}}},
        champion=champion and {"version": champion, "metrics": {}},
        gates=[],
        passed=True,
        mistakes=[],
    ).save(folder)
    (folder / MODEL_CARD).write_text("# mine")
    return folder


def upload(registry: str, place: Path | str, *, passed: bool = True, model_name: str = "mine", **given: Any) -> Any:
    """Runs the step; what it leaves is the artifact of the version."""
    version = dsl.Model(name="model", uri=given.pop("uri", "/nowhere"))
    outcome_uri = given.pop("outcome_uri", "")
    run(
        UploadSettings(registry=registry, model_name=model_name, **given),
        best_checkpoint=dsl.Artifact(name="best_checkpoint", uri=str(place)),
        model=version,
        passed=passed,
        outcome_uri=outcome_uri,
        advanced={},
    )
    return version


def test_a_single_file_is_registered_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = str(tmp_path / "registry")
    first = upload(registry, write_onnx(tmp_path / "run-1"))
    assert first.metadata["aliases"] == ["challenger", "champion"]
    assert (Path(first.uri) / "model.onnx").read_bytes() == b"\x08\x07weights"
    said = capsys.readouterr().out
    assert "registered without metrics" in said
    assert "no smoke test: the model has no evaluation.json" in said
    again = upload(registry, write_onnx(tmp_path / "run-2"), passed=False)
    assert (again.metadata["version"], again.metadata["added"]) == (1, False)
    shown = command("models", "show", "mine", "--registry", registry, cwd=tmp_path)
    assert "not evaluated" in shown.out
    assert json.loads(command("models", "list", "--registry", registry, "--json", cwd=tmp_path).out) == [
        {"name": "mine", "versions": 1, "aliases": {"challenger": 1, "champion": 1}}
    ]


def test_a_model_needs_a_name_files_and_no_file_of_the_registrys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = str(tmp_path / "registry")

    def refused(place: Path, **given: Any) -> str:
        with pytest.raises(SystemExit):
            upload(registry, place, **given)
        return capsys.readouterr().err

    model = write_hugging_face(tmp_path / "model")
    assert "Give model_name" in refused(model, model_name="")
    (tmp_path / "empty" / "variables").mkdir(parents=True)
    assert "no files to upload" in refused(tmp_path / "empty")
    (model / "version.json").write_text("{}")
    assert "which the registry writes itself" in refused(model)
    for marker, said in (
        ("data/dataset.json", "is a dataset of prepare_data"),
        ("step-1/checkpoint.json", "Give eval"),
    ):
        write_hugging_face((tmp_path / marker).parent)
        (tmp_path / marker).write_text("{}")
        (tmp_path / "data/train").mkdir(exist_ok=True)
        assert said in refused((tmp_path / marker).parent)
    assert not (tmp_path / "registry").exists()


def test_one_that_was_not_evaluated_never_replaces_one_that_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = str(tmp_path / "registry")
    assert upload(registry, write_hugging_face(tmp_path / "bare")).metadata["aliases"] == ["challenger", "champion"]
    other = upload(registry, write_onnx(tmp_path))
    assert other.metadata["aliases"] == ["challenger", "champion"], (
        "neither was evaluated, and it is said to have passed"
    )
    evaluated = upload(registry, write_evaluated(tmp_path / "evaluated", champion=2), smoke_test=False)
    assert evaluated.metadata["aliases"] == ["challenger", "champion"]
    capsys.readouterr()
    late = upload(registry, write_onnx(tmp_path, b"better weights, they say"))
    assert late.metadata["aliases"] == ["challenger"]
    assert "version 3 was evaluated and this model was not" in capsys.readouterr().out
    assert open_registry(registry).aliases("mine") == {"challenger": 4, "champion": 3}
    table = command("models", "show", "mine", "--registry", registry, cwd=tmp_path).out
    assert [line.count("not evaluated") for line in table.splitlines()[-4:]] == [1, 0, 1, 1]
    assert "accuracy" in table, "what some versions have is shown of them"


def test_a_model_that_was_compared_with_the_champion_of_another_name_replaces_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = str(tmp_path / "registry")
    given: dict[str, Any] = {"smoke_test": False, "model_name": "theirs"}
    model = write_evaluated(tmp_path / "evaluated", champion=1)
    alone = upload(registry, model, passed=False, **given)
    assert alone.metadata["aliases"] == ["challenger"]
    require_champion_not_lost(open_registry(registry), "theirs")
    upload(registry, write_onnx(tmp_path), model_name="theirs")
    open_registry(registry).set_alias("theirs", "champion", 1)
    (model / "number.txt").write_text("2")
    assert upload(registry, model, **given).metadata["aliases"] == ["challenger"]
    assert "Run the evaluation again with model_name=theirs and registry=" in capsys.readouterr().out


def test_a_version_of_one_registry_is_uploaded_to_another_without_the_record_of_the_first(tmp_path: Path) -> None:
    registry = str(tmp_path / "registry")
    first = upload(str(tmp_path / "first"), write_evaluated(tmp_path / "evaluated"), smoke_test=False)
    assert upload(registry, first.uri, smoke_test=False).metadata["aliases"] == ["challenger", "champion"]
    open_registry(registry).version("mine", 1).require_undamaged()
    assert upload(registry, tmp_path / "evaluated", smoke_test=False).metadata["added"] is False
    (Path(first.uri) / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"is damaged: config\.json is not as it was uploaded"):
        upload_model(UploadSettings(registry, smoke_test=False), Path(first.uri), passed=True)


def test_a_message_says_why_a_model_that_has_passed_is_not_the_champion(tmp_path: Path) -> None:
    registry, notes = str(tmp_path / "registry"), str(tmp_path / "notes")
    for number in (1, 2):
        # Both were compared with none: they were trained at the same time.
        place = write_evaluated(tmp_path / str(number))
        (place / "number.txt").write_text(str(number))
        upload(registry, place, smoke_test=False, outcome_uri=notes)
    message = message_of(MessageSettings(), None, left(notes), "nightly")
    assert (message.outcome, message.model, message.gates) == ("not promoted", "mine@2", [])
    assert message.reason.startswith("the champion has changed since the evaluation")


def test_of_two_runs_that_give_the_same_first_model_one_has_promoted_it(tmp_path: Path) -> None:
    registry, model = str(tmp_path / "registry"), write_evaluated(tmp_path / "model")

    def outcome_of(run: str) -> tuple[str, str, str]:
        notes = str(tmp_path / f"notes-{run}")
        # Both were compared with none: they were trained at the same time.
        version = upload(registry, model, smoke_test=False, outcome_uri=notes, pipeline_job=run)
        record = RunRecord(run, "mine", "2026-11-22T04:43:14+00:00", {}, "", {}, tmp_path, status="succeeded")
        record.model, record.artifacts = version.metadata, {"best_checkpoint": str(model)}
        return message_of(MessageSettings(), None, left(notes), "nightly").outcome, record.outcome, record.instead

    assert outcome_of("first")[:2] == ("promoted", "promoted")
    told = "another run has registered it meanwhile, and it is the champion"
    assert outcome_of("second") == ("unchanged", "unchanged", told)
    assert outcome_of("first")[:2] == ("promoted", "promoted"), "a step that is tried again has promoted it"


def test_the_same_files_with_an_evaluation_are_another_version(tmp_path: Path) -> None:
    registry = str(tmp_path / "registry")
    evaluated = write_evaluated(tmp_path / "evaluated", champion=1)
    bare = write_hugging_face(tmp_path / "bare", seed=1)
    assert upload(registry, bare).metadata["version"] == 1
    assert upload(registry, evaluated, smoke_test=False).metadata["version"] == 2
    assert upload(registry, bare).metadata["version"] == 1
    assert open_registry(registry).aliases("mine") == {"challenger": 1, "champion": 2}


def test_vertex_ai_gets_any_model_with_the_container_that_serves_it(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_variables(monkeypatch, vertex_api.environment())
    monkeypatch.setattr("gpu_pipelines.registry.vertex._POLL_SECONDS", 0.02)
    run_folder = "gs://example-bucket/run/step"
    RemoteFolder(run_folder).upload(write_onnx(tmp_path).parent, ["model.onnx"])
    given: dict[str, Any] = {"uri": f"{run_folder}/version", "smoke_test": False}
    with pytest.raises(SystemExit):
        upload("vertex://", f"{run_folder}/model.onnx", **given)
    assert "give serving_image" in capsys.readouterr().err
    assert RemoteFolder("gs://example-bucket/models/mine").names() == []
    served = {**given, "serving_image": "eu.example/triton:24"}
    first = upload("vertex://", f"{run_folder}/model.onnx", **served)
    assert first.metadata["aliases"] == ["challenger", "champion"]
    assert "model.onnx" in RemoteFolder(first.uri).names()
    bare = write_hugging_face(tmp_path / "bare", seed=1)
    assert upload("vertex://", bare, **given).metadata["aliases"] == ["challenger", "champion"]
    evaluated = upload("vertex://", write_evaluated(tmp_path / "evaluated", champion=2), **given)
    assert (evaluated.metadata["version"], evaluated.metadata["aliases"]) == (3, ["challenger", "champion"])
    RemoteFolder(run_folder).upload(write_onnx(tmp_path, b"more").parent, ["model.onnx"])
    late = upload("vertex://", f"{run_folder}/model.onnx", **served)
    assert late.metadata["aliases"] == ["challenger"]
    versions = open_registry("vertex://").versions("mine")
    assert [version.has_evaluation for version in versions] == [False, False, True, False]
    assert not any(version.is_damaged for version in versions)
