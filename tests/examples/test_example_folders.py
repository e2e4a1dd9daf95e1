"""The folders of examples/: their data is prepared as it is meant, and their commands run as they are written."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_line import command

from gpu_pipelines.artifacts.dataset import Manifest
from gpu_pipelines.component_interface.step import fields_from
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings

EXAMPLES = Path(__file__).parents[2] / "examples"
WITH_DATA = ("chats", "photos", "tables", "texts")
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an example, in which the test is."""
    monkeypatch.chdir(shutil.copytree(EXAMPLES / request.param, tmp_path / request.param))
    return Path.cwd()


def test_the_index_names_all_examples() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()} - {"__pycache__"}
    named = re.findall(r"^\| \[\w+\]\((\w+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(folders)


@pytest.mark.slow_but_for("tables", "texts")
@pytest.mark.parametrize("example", WITH_DATA, indirect=True)
def test_the_data_of_an_example_is_prepared_and_its_request_is_sound(example: Path) -> None:
    runpy.run_path(f"{example.name}.py", run_name="__main__")
    given = yaml.safe_load((example / "params.yaml").read_text())
    manifest: Manifest = prepare_data(fields_from(PrepareSettings, given), example / "dataset")
    assert manifest.records_kept > 100
    # Nothing is rejected but what the example has put there to be.
    assert manifest.rows_rejected == (1 if example.name == "photos" else 0)
    done = command("run", "train_evaluate_upload", "--params", "params.yaml", "--dry-run", cwd=example)
    assert done.status == 0, done.err
    assert given["source"] in done.out


@pytest.mark.slow
@pytest.mark.parametrize("example", [*WITH_DATA, "own_script", "own_task"], indirect=True)
def test_the_commands_of_an_example_run(example: Path) -> None:
    (script,) = COMMANDS.findall((example / "README.md").read_text(encoding="utf-8"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = ["/bin/bash", "-ex", "-o", "pipefail", "-c", script]
    done = subprocess.run(
        shell, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"registered \S+ version 1 as challenger and champion", done.stdout), done.stdout


def test_the_task_of_the_example_is_that_of_the_document() -> None:
    text = (EXAMPLES.parent / "docs/tasks.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for file in ("task.py", "parts.py"):
        assert (EXAMPLES / "own_task/counts" / file).read_text(encoding="utf-8") in code
