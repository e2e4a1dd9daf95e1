"""Inputs that may be left out, of steps and of pipelines in pipelines: on this machine as on Vertex AI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import gpu_pipelines

PIPELINE = """
from typing import Optional

from kfp import dsl
from kfp.dsl import Dataset, Input, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(
    text: str, whole: Optional[int] = None, part: Optional[float] = None, seven: int = 7, read: Input[Dataset] = None
) -> str:
    return f"{text} {whole} {part} {seven} {read and open(read.path).read()}"


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def make(made: Output[Dataset]):
    open(made.path, "w").write("made")


@dsl.pipeline
def inner(text: str, whole: int = 5, part: Optional[float] = None, read: Input[Dataset] = None):
    say(text=text, whole=whole, part=part, read=read)


@dsl.pipeline(name="outer")
def outer(whole: int = 100, part: float = 0.5, nothing: Optional[int] = None):
    say(text="none")
    say(text="of the pipeline", whole=nothing, seven=nothing)
    inner(text="its own")
    inner(text="given", whole=whole, part=part, read=make().outputs["made"])
    with dsl.If(whole > 5):
        inner(text="in a branch")
    with dsl.ParallelFor([1, 2]) as turn:
        say(text="in a loop", whole=turn, seven=nothing)
"""
SAID = """
given 100 0.5 7 made
in a branch 5 None 7 None
in a loop 1 None 7 None
in a loop 2 None 7 None
its own 5 None 7 None
none None None 7 None
of the pipeline NOTHING None SEVEN None
"""


def _said(folder: Path, *options: str) -> list[str]:
    (folder / "outer.py").write_text(PIPELINE)
    done = gpu_pipelines("run", "outer.py:outer", *options, cwd=folder)
    assert done.status == 0, done.out + done.err
    contents = [json.loads(file.read_text()) for file in folder.rglob("executor_output.json")]
    values = [content["parameterValues"]["Output"] for content in contents if "parameterValues" in content]
    return sorted(values)


@pytest.mark.parametrize("nothing", ["", "3"])
@pytest.mark.parametrize("place", [(), pytest.param(("--target", "vertex", "--emulate"), marks=pytest.mark.slow)])
def test_what_is_not_given_is_the_default_of_the_one_who_takes_it(
    nothing: str, place: tuple[str, ...], tmp_path: Path
) -> None:
    expected = SAID.replace("NOTHING", nothing or "None").replace("SEVEN", nothing or "7").strip().splitlines()
    if nothing:
        expected = [line.replace(" 7 ", f" {nothing} ") if "loop" in line else line for line in expected]
    assert _said(tmp_path, *place, *(("-p", f"nothing={nothing}") if nothing else ())) == expected


UNMADE = """
from kfp import dsl
from kfp.dsl import Dataset, Input, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def make(fails: bool, made: Output[Dataset]) -> str:
    assert not fails, "it fails"


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(text: str = "default", read: Input[Dataset] = None):
    with open("SAID", "a") as file:
        file.write(f"{text} {read}\\n")


@dsl.pipeline
def inner(text: str = "inner", read: Input[Dataset] = None):
    say(text=text, read=read)


@dsl.pipeline(name="unmade")
def unmade():
    say(text=make(fails=False).outputs["Output"])
    failed = make(fails=True)
    inner(text=failed.outputs["Output"], read=failed.outputs["made"]).ignore_upstream_failure()
"""


@pytest.mark.parametrize("place", [(), pytest.param(("--target", "vertex", "--emulate"), marks=pytest.mark.slow)])
def test_what_no_step_has_made_is_the_default_of_the_one_who_takes_it(place: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "unmade.py").write_text(UNMADE.replace("SAID", str(tmp_path / "SAID")))
    done = gpu_pipelines("run", "unmade.py:unmade", *place, cwd=tmp_path)
    assert done.status == 1
    assert "it fails" in done.err
    assert sorted((tmp_path / "SAID").read_text().splitlines()) == ["default None", "inner None"]
