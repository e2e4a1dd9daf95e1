"""What is served is what was uploaded: a registered version is compared with its hashes before it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import uvicorn
from conftest import gpu_pipelines
from exported_models import MODELS, export

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import DirectoryRegistry
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.serving.app import Serving
from gpu_pipelines.serving.comparison import differences
from gpu_pipelines.serving.connections import Connections
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.server import FAILED, _Server
from gpu_pipelines.serving.settings import Contract, ServerSettings


def test_no_more_threads_compute_than_a_container_has_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, before = export("text_classification", tmp_path / "model"), torch.get_num_threads()
    monkeypatch.setattr("gpu_pipelines.processors.cores", lambda: 2)
    torch.set_num_threads(3)
    try:
        load_predictor(model, ServerSettings())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_truncated_file_of_weights_is_told_in_a_line(tmp_path: Path) -> None:
    model = export("text_classification", tmp_path / "model")
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(UserError, match=r"weights of the model in .*/model cannot be read"):
        load_predictor(model, ServerSettings())


def test_a_server_that_gets_no_threads_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a limit of processes: a server that stays, and is never ready, is not started again."""

    def refuse(*given: object) -> None:
        raise RuntimeError("can't start new thread")

    settings, contract = ServerSettings(), Contract()
    serving = Serving(settings, contract)
    server = _Server(uvicorn.Config(serving), serving, Connections(settings), drain_seconds=0)
    monkeypatch.setattr("gpu_pipelines.serving.app.RequestWork", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        server.load(str(export("text_classification", tmp_path / "model")), settings, "here", contract)
    assert (server.status, server.should_exit) == (FAILED, True)


@pytest.mark.parametrize("task", MODELS)
def test_a_model_with_its_weights_in_several_files_is_uploaded_verified_and_served(tmp_path: Path, task: str) -> None:
    model = export(task, tmp_path / "model", max_shard_size="60KB")
    files = sorted(path.name for path in model.glob("*.safetensors"))
    assert len(files) > 1
    assert not (model / "model.safetensors").exists()
    settings = UploadSettings(str(tmp_path / "registry"), "mine", smoke_test=False)
    place = Path(upload_model(settings, model, passed=True).place)
    assert sorted(path.name for path in place.glob("*.safetensors")) == files
    predictor, examples = load_predictor(place, ServerSettings()), Examples.load(place)
    answers = predictor.predict([predictor.read(i, predictor.checked({})).row() for i in examples.instances])
    assert differences(examples, answers) == []
    with (place / files[1]).open("r+b") as file:
        file.seek(500)
        file.write(bytes(1000))
    with pytest.raises(UserError, match=f"{files[1]} is not as it was uploaded"):
        load_predictor(place, ServerSettings())


def test_a_missing_file_of_weights_is_named(tmp_path: Path) -> None:
    model = export("text_classification", tmp_path / "model", max_shard_size="60KB")
    gone = sorted(model.glob("*.safetensors"))[1]
    gone.unlink()
    settings = UploadSettings(str(tmp_path / "registry"), "mine", smoke_test=False)
    with pytest.raises(UserError, match=f"it has no {gone.name}"):
        upload_model(settings, model, passed=True)
    with pytest.raises(UserError, match=f"has no {gone.name}"):
        load_predictor(model, ServerSettings())
    (model / "model.safetensors.index.json").write_text('{"metadata": {}}')
    with pytest.raises(UserError, match="does not say which files the weights are in"):
        upload_model(settings, model, passed=True)


def test_damaged_weights_are_neither_served_nor_replaced_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry, settings = DirectoryRegistry(tmp_path / "registry"), UploadSettings(str(tmp_path / "registry"), "animals")
    model = export("text_classification", tmp_path / "model")
    champion = upload_model(UploadSettings(settings.registry, "animals", smoke_test=False), model, passed=True)
    with (Path(champion.place) / "model.safetensors").open("r+b") as file:
        file.seek(1000)
        file.write(bytes(60_000))
    done = gpu_pipelines("serve", "animals@champion", "--port", "0", cwd=tmp_path, apart=True)
    assert done.status == 2
    assert "versions/1 is damaged: model.safetensors is not as it was uploaded" in done.err
    assert "Traceback" not in done.err

    better = export("text_classification", tmp_path / "better", seed=1)
    evaluation = Evaluation.load(better)
    Evaluation(**{**vars(evaluation), "champion": {"version": 1, "metrics": {}}}).save(better)
    version = upload_model(UploadSettings(settings.registry, "animals", smoke_test=False), better, passed=True)
    assert version.aliases == ("challenger",)
    assert registry.aliases("animals")["champion"] == 1
    assert "warning: the champion stays. Version 1 of 'animals'" in capsys.readouterr().out


def test_the_same_model_uploaded_again_says_that_nothing_was_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = UploadSettings(str(tmp_path / "registry"), "animals", smoke_test=False)
    model = export("text_classification", tmp_path / "model")
    upload_model(settings, model, passed=True)
    evaluation = Evaluation.load(model)
    Evaluation(**{**vars(evaluation), "champion": {"version": 1, "metrics": {}}, "gates": [{}]}).save(model)
    again = upload_model(settings, model, passed=True)
    assert (again.number, again.added) == (1, False)
    said = "nothing was added: animals version 1 (challenger, champion) is the same model, byte for byte"
    assert said in capsys.readouterr().out
