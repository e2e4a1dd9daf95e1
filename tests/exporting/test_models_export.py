"""`gpu-pipelines models export`: from a registry, of the rows of a run, to a folder or a bucket."""

from __future__ import annotations

import json
import os
import shutil
import socket
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_line import command
from conftest import SmallDatasets, set_variables
from exported import evaluated
from forked import Forked

from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.cli import models
from gpu_pipelines.exporting.settings import DEFAULT_MARGIN, DEFAULT_OPSET
from gpu_pipelines.registry.upload import UploadSettings, upload_model

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi


@pytest.fixture(scope="module")
def place(datasets: SmallDatasets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a registry that has one language model."""
    folder = tmp_path_factory.mktemp("exports")
    model = evaluated(datasets["lm"], folder, "llama-micro")
    upload_model(UploadSettings(str(folder / "registry"), "mine", smoke_test=False), model, passed=True)
    return folder


def export(place: Path, *arguments: str) -> tuple[int, str, str]:
    done = command("models", "export", *arguments, cwd=place)
    return done.status, done.out, done.err


def test_the_champion_is_exported_with_the_rows_of_the_run_that_made_it(datasets: SmallDatasets, place: Path) -> None:
    where = ["mine@champion", "--format", "gguf", "--to", "out/gguf"]
    status, _, err = export(place, *where)
    assert status == 2
    assert "No run in runs/ has the dataset that mine version 1 was evaluated on" in err
    assert "--dataset" in err
    assert not (place / "out").exists()
    shutil.copytree(datasets["lm"], place / "runs/mine-1/artifacts/mine-2/prepare-data/dataset")
    (place / f"out/.export-{socket.gethostname()}-killed/model").mkdir(parents=True)
    status, out, err = export(place, *where)
    assert (status, err) == (0, "")
    assert "writing mine version 1 as gguf in f16" in out
    assert "mine version 1 is in out/gguf, with export.json" in out
    assert {path.name for path in (place / "out/gguf").iterdir()} == {"model.gguf", "export.json"}
    assert {path.name for path in (place / "out").iterdir()} == {"gguf"}
    content = json.loads((place / "out/gguf/export.json").read_text())
    assert content["before"].keys() == content["after"].keys() >= {"loss", "perplexity"}
    status, _, err = export(place, *where)
    assert (status, "out/gguf is not empty" in err) == (2, True)


def test_the_help_says_what_is_taken_where_nothing_is_given() -> None:
    said = {name: parameter.default for name, parameter in signature(models.export).parameters.items()}
    assert (said["margin"], said["opset"]) == (DEFAULT_MARGIN, DEFAULT_OPSET)


def test_json_is_one_document(datasets: SmallDatasets, place: Path) -> None:
    given = ("--dataset", str(datasets["lm"]), "--dtype", "q8_0", "--json")
    status, out, err = export(place, "best", "--format", "gguf", "--to", "as json", *given)
    assert status == 0
    content = json.loads(out)
    assert (content["place"], content["dtype"], content["model"]) == ("as json", "q8_0", "best")
    assert "writing best" in err


@pytest.mark.parametrize("format", ["gguf", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_full_disk_is_not_the_models_fault(datasets: SmallDatasets, place: Path, tmp_path: Path, format: str) -> None:
    given = ("models", "export", "best", "--format", format, "--to", str(tmp_path / "out"))
    data = ("--dataset", str(datasets["lm"]))
    process = Forked("gpu_pipelines.cli.main", (*given, *data), os.environ, cwd=place, disk=(tmp_path, "16k"))
    _, errors = process.communicate(120)
    assert process.returncode == 2
    assert errors.startswith(f"error: The export could not be written on the disk of {tmp_path}: "), errors


def test_a_bucket_gets_the_files(
    vertex_api: VertexApi, datasets: SmallDatasets, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, vertex_api.environment())
    to = "gs://example-bucket/exports/one"
    given = ("mine", "--format", "gguf", "--to", to, "--dataset", str(datasets["lm"]))
    status, out, _ = export(place, *given)
    assert (status, sorted(RemoteFolder(to).names())) == (0, ["export.json", "model.gguf"])
    assert f"in {to}" in out
    status, _, err = export(place, *given)
    assert (status, f"{to} is not empty" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mine", "--format", "tflite"), "format is 'tflite'; give onnx or gguf."),
        (("mine", "--format", "gguf", "--dtype", "q4_0"), "dtype is 'q4_0'; gguf has f16, f32, bf16 and q8_0."),
        (("other", "--format", "gguf"), "other"),
        (("mine@7", "--format", "gguf"), "7"),
    ],
)
def test_a_mistake_is_named(place: Path, arguments: tuple[str, ...], said: str) -> None:
    status, _, err = export(place, *arguments, "--to", "nowhere")
    assert (status, said in " ".join(err.split())) == (2, True), err
    assert "Traceback" not in err
    assert not (place / "nowhere").exists()
