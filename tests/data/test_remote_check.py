"""Data in a bucket is looked at before a run is sent that reads it elsewhere, in seconds; what is unseen is said."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from conftest import storage_emulator
from gcsfs.core import GCSFileSystem
from gcsfs.extended_gcsfs import ExtendedGcsFileSystem

from gpu_pipelines.artifacts.remote_files import RemoteFolder, connected
from gpu_pipelines.data.remote_check import look_at_sources
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.driver.data_check import require_usable_data, warn_of_data
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.messages import Compiled, Values

PIPELINE = Compiled("train-evaluate-upload", spec={"pipelineInfo": {"name": "train-evaluate-upload"}, "root": {}})


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with storage_emulator("looked-at") as uri:
        folder = RemoteFolder(uri)
        folder.write("reviews.csv", b"text,label\ngood,yes\nbad,no\n")
        folder.write("one.csv", b"text,label\ngood,yes\nfine,yes\n")
        folder.write("photos/red/1.png", b"")
        folder.write("photos/blue/1.png", b"")
        folder.write("reds/red/1.png", b"")
        folder.write("flat/1.png", b"")
        folder.write("mixed/a.csv", b"text,label\ngood,yes\n")
        folder.write("mixed/b.jsonl", b'{"text": "good", "label": "yes"}\n')
        yield uri


def test_an_emulator_is_not_asked_over_grpc_though_gcsfs_was_imported_before(bucket: str) -> None:
    fsspec.register_implementation("gs", ExtendedGcsFileSystem, clobber=True)  # as an import without its variable does
    assert type(connected(bucket)[0]) is GCSFileSystem


def texts(source: str, **changes: Any) -> dict[str, Any]:
    return {"task": "text_classification", "source": source, **changes}


def said_to_the_reader(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Notes and warnings; the emulator writes to the same stream."""
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith(("note: ", "warning: "))]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (texts("/reviews.csv"), ""),
        (texts("/reviews.csv", text_column="body"), "no column 'body'; it has text, label."),
        (texts("/one.csv"), "a single class, 'yes'; a classifier needs at least two."),
        (texts("/reviews.csv", test_source="/one.csv"), "/one.csv has a single class"),
        (texts("/reviews.csv", test_source="/nothing.csv"), "/nothing.csv does not exist."),
        (texts("/mixed"), "files in several formats: 1 × csv, 1 × jsonl."),
        ({"source": "/photos"}, ""),
        ({"source": "/photos/*/*.png"}, ""),
        ({"source": "/reds"}, "a single class, 'red'; a classifier needs at least two."),
        ({"source": "/flat"}, "/flat has no sub-folders."),
        ({"source": "/nowhere"}, "/nowhere does not exist."),
    ],
)
def test_data_that_the_first_step_would_refuse_is_refused_before(
    bucket: str, given: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {name: f"{bucket}{value}" if "source" in name else value for name, value in given.items()}
    columns = {name: arguments.pop(name) for name in ("text_column", "label_column") if name in arguments}
    asked = (PIPELINE, Values({**arguments, **columns}, {**arguments, "advanced": columns}))
    if not said:
        require_usable_data(*asked, ProjectSettings())
        assert said_to_the_reader(capsys) == []
        return
    with pytest.raises(UserError) as refused:
        require_usable_data(*asked, ProjectSettings())
    assert said in refused.value.problem
    warn_of_data(*asked, ProjectSettings())
    (told,) = said_to_the_reader(capsys)
    assert told.startswith("warning: as things are now, each run will fail: ")
    assert said in told


@pytest.mark.parametrize("address", ["mlflow:http://localhost:5000", "mlflow:http://127.0.0.1:5000"])
def test_a_server_of_this_machine_is_said_to_be_none_of_the_steps(
    bucket: str, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"source": "sample:digits", "registry": "mlflow:https://mlflow.example", "tracking": address}
    require_usable_data(PIPELINE, Values(arguments, arguments), ProjectSettings())
    (told,) = said_to_the_reader(capsys)
    assert told.startswith(f"note: tracking is {address}, which each step looks for on its own machine")


def test_a_storage_that_does_not_answer_keeps_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{silent.getsockname()[1]}")
        look = look_at_sources(PrepareSettings(source="gs://silent/photos"), seconds=0.3)
    assert (look.problems, look.unseen) == ([], ["gs://silent/photos could not be looked at within 0.3 s."])


def test_what_cannot_be_read_from_here_is_left_to_the_first_step(
    bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_usable_data(PIPELINE, Values({"source": "s4://bucket/photos"}, {}), ProjectSettings())
    (told,) = said_to_the_reader(capsys)
    assert told.startswith("note: s4://bucket/photos cannot be read: ")
    assert told.endswith("The step that needs it checks it.")
    # As it is where only the command line is installed.
    monkeypatch.setitem(sys.modules, "gpu_pipelines.data.source_check", None)
    require_usable_data(PIPELINE, Values({"source": f"{bucket}/photos"}, {}), ProjectSettings())
    (told,) = said_to_the_reader(capsys)
    assert told.endswith("is not installed. The step that needs it checks it.")
    # Of a pipeline of somebody else's nothing is known.
    require_usable_data(Compiled("mine"), Values({"source": f"{bucket}/nowhere"}, {}), ProjectSettings())
    assert said_to_the_reader(capsys) == []
