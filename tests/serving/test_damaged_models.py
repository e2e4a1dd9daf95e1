"""What is served is what was uploaded: a registered version is compared with its hashes before it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import gpu_pipelines
from exported_models import export

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import DirectoryRegistry
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.settings import ServerSettings


def test_a_truncated_file_of_weights_is_told_in_a_line(tmp_path: Path) -> None:
    model = export("text_classification", tmp_path / "model")
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(UserError, match=r"weights of the model in .*/model cannot be read"):
        load_predictor(model, ServerSettings())


def test_damaged_weights_are_neither_served_nor_replaced_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry, settings = DirectoryRegistry(tmp_path / "registry"), UploadSettings(str(tmp_path / "registry"), "animals")
    model = export("text_classification", tmp_path / "model")
    champion = upload_model(UploadSettings(settings.registry, "animals", smoke_test=False), model, passed=True)
    with (Path(champion.place) / "model.safetensors").open("r+b") as file:
        file.seek(1000)
        file.write(bytes(60_000))
    done = gpu_pipelines("serve", "animals@champion", "--port", "0", cwd=tmp_path)
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
