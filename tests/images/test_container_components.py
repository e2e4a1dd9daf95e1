"""Container components between steps of this project, in containers of a real engine; IMAGE names an image in it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import docker
import pytest
from conftest import GPU_PIPELINES, gpu_pipelines, newest_run

from gpu_pipelines.component_interface.image import STEPS_IMAGE

pytestmark = [pytest.mark.slow, pytest.mark.images]

IMAGE = os.environ.get("IMAGE", STEPS_IMAGE)
PIPELINE = f'''
from kfp import dsl, kubernetes
from gpu_pipelines.components import prepare_data

ROWS = """
import sys
from pathlib import Path
Path(sys.argv[2]).mkdir(parents=True)
rows = [f"{{n}}.5,{{n % 3}},{{n % 7}}.25" for n in range(int(sys.argv[1]))]
Path(sys.argv[2], "rows.csv").write_text("\\\\n".join(["a,b,target", *rows]))
"""


@dsl.container_component
def make_rows(count: int, rows: dsl.Output[dsl.Dataset], word: dsl.OutputPath(str)):
    script = 'python3 -c "$0" "$1" "$2" && printf "%s, not %s" "$WORD" "$HOSTNAME_HERE" > "$3"'
    return dsl.ContainerSpec("{IMAGE}", ["sh", "-c", script], [ROWS, count, rows.path, word])


@dsl.container_component
def count_files(prepared: dsl.Input[dsl.Dataset], files: dsl.OutputPath(int)):
    script = 'find "$0" -name dataset.json | wc -l > "$1"'
    return dsl.ContainerSpec("{IMAGE}", ["sh", "-c", script, prepared.path, files])


@dsl.container_component
def leave(status: int, seconds: int):
    return dsl.ContainerSpec("{IMAGE}", ["sh", "-c", 'echo begun; sleep "$1"; exit "$0"', status, seconds])


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def told(word: str, files: int) -> str:
    return f"{{word}}; {{files}}"


@dsl.pipeline(name="contained")
def contained(count: int = 300) -> str:
    made = make_rows(count=count).set_env_variable("WORD", "two words")
    prepared = prepare_data(data=made.outputs["rows"], task="regression", label_column="target")
    counted = count_files(prepared=prepared.outputs["dataset"])
    return told(word=made.outputs["word"], files=counted.outputs["files"]).output


@dsl.container_component
def look(seen: dsl.OutputPath(str)):
    script = 'printf "%s, %s" "$TOKEN" "$(cat "$0/word")" > "$1"'
    return dsl.ContainerSpec("{IMAGE}", ["sh", "-c", script], ["FOLDER", seen])


@dsl.pipeline(name="on-a-cluster")
def on_a_cluster() -> str:
    looked = look()
    kubernetes.use_secret_as_env(looked, "keys", {{"token": "TOKEN"}})
    kubernetes.mount_pvc(looked, "words", "FOLDER")
    return looked.outputs["seen"]


@dsl.pipeline(name="leaving")
def leaving(status: int = 3, seconds: int = 0):
    leave(status=status, seconds=seconds)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the pipelines; a variable of this machine is none of the container's."""
    monkeypatch.setenv("HOSTNAME_HERE", "this machine's")
    (tmp_path / "contained.py").write_text(PIPELINE)
    return tmp_path


def containers() -> set[str]:
    """The containers of this program that the engine knows."""
    found = docker.from_env().containers.list(all=True, ignore_removed=True)
    return {str(each.name) for each in found if str(each.name).startswith("gpu-pipelines-")}


def test_steps_in_containers_pass_on_data_and_values_among_those_of_this_project(folder: Path) -> None:
    before = containers()
    done = gpu_pipelines("run", "contained.py:contained", cwd=folder, apart=True)
    assert done.status == 0, done.out + done.err
    record = newest_run(folder)
    assert record["outputs"] == {"Output": "two words, not ; 1"}
    assert [step["name"] for step in record["steps"]] == ["make-rows", "prepare-data", "count-files", "told"]
    # Whoever runs it can remove what the container has written.
    assert {path.stat().st_uid for path in record["directory"].rglob("*")} == {os.getuid()}
    assert containers() == before
    again = gpu_pipelines("run", "contained.py:contained", "--cache", cwd=folder, apart=True)
    assert "make-rows: reused" in again.out


def test_a_container_gets_the_variables_and_folders_that_it_has_on_a_cluster(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = tmp_path_factory.mktemp("claim")
    (claim / "word").write_text("a word")
    monkeypatch.setenv("TOKEN", "two words")
    (folder / "contained.py").write_text(PIPELINE.replace("FOLDER", str(claim)))
    done = gpu_pipelines("run", "contained.py:on_a_cluster", cwd=folder, apart=True)
    assert done.status == 0, done.out + done.err
    assert newest_run(folder)["outputs"] == {"Output": "two words, a word"}


def test_a_container_that_fails_fails_its_step(folder: Path) -> None:
    before = containers()
    done = gpu_pipelines("run", "contained.py:leaving", cwd=folder, apart=True)
    assert done.status == 1
    assert "leave failed" in done.err
    assert "begun" in done.out
    assert containers() == before


def test_a_container_of_a_run_that_is_interrupted_is_gone(folder: Path) -> None:
    before = containers()
    request = [str(GPU_PIPELINES), "run", "contained.py:leaving", "-p", "seconds=600"]
    with subprocess.Popen(request, cwd=folder, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout
        for line in command.stdout:
            if line.startswith("leave: begun"):
                break
        (container,) = containers() - before
        began = time.monotonic()
        command.send_signal(signal.SIGTERM)
        command.communicate(timeout=60)
    assert command.returncode == 130
    assert container not in containers()
    assert time.monotonic() - began < 50
