"""A step is tried again after an error of a service, and never after a mistake of the user's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_line import command
from conftest import newest_run
from sample_runs import ended, states

from gpu_pipelines.component_interface.attempts import attempts
from gpu_pipelines.errors import InvalidRequestError, NodeLostError, UnavailableError, UserError
from gpu_pipelines.step_environment import ATTEMPT, PAUSES, STORAGE

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

WORK = """
from kfp import dsl


@dsl.component(install_kfp_package=False)
def work(log: str, kind: str, data: dsl.Output[dsl.Dataset]):
    from pathlib import Path

    from gpu_pipelines.component_interface.step import own_process
    from gpu_pipelines.errors import InvalidRequestError, UnavailableError

    with own_process():
        with open(log, "a") as file:
            file.write(f"{kind}\\n")
        if kind == "mistake":
            raise InvalidRequestError("the request is wrong", "Change it.")
        if Path(log).read_text().count(kind) < 3:
            raise UnavailableError("the service is away", status=503)
        Path(data.path).write_text("done")


@dsl.pipeline(name="works")
def works(mistakes: str, faults: str):
    first = work(log=faults, kind="fault").set_retry(2, "0s").set_env_variable("GPU_PIPELINES_PAUSES", "0,0")
    work(log=mistakes, kind="mistake").set_retry(1, "0s").after(first)
"""


@pytest.mark.slow
def test_the_platform_begins_a_mistake_again_in_vain(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    (tmp_path / "works.py").write_text(WORK)
    (tmp_path / "gpu-pipelines.yaml").write_text("pipeline_root: gs://example-bucket/runs\n")
    mistakes, faults = tmp_path / "mistakes", tmp_path / "faults"
    given = ("-p", f"mistakes={mistakes}", "-p", f"faults={faults}", "--target", "vertex")
    done = command("run", "works.py", *given, cwd=tmp_path, environment=vertex_emulator.environment())
    assert done.status == 0, done.err
    (name,) = vertex_emulator.state.pipeline_jobs.jobs
    job = ended(vertex_emulator, name)
    said = vertex_emulator.state.logs.messages()
    assert states(job)["work"] == "SUCCEEDED", "\n".join(said)
    assert states(job)["work-2"] == "FAILED"
    assert faults.read_text().split() == ["fault"] * 3
    assert mistakes.read_text().split() == ["mistake"], "the work was done once"
    assert sum(line.startswith("error: the request is wrong") for line in said) == 2, "each attempt says it"
    assert sum("an error of a service, tried again in 0 s" in line for line in said) == 2


def test_on_this_machine_a_fault_is_tried_again_and_a_mistake_is_not(tmp_path: Path) -> None:
    (tmp_path / "works.py").write_text(WORK)
    mistakes, faults = tmp_path / "mistakes", tmp_path / "faults"
    given = ("-p", f"mistakes={mistakes}", "-p", f"faults={faults}")
    done = command("run", "works.py", *given, cwd=tmp_path)
    assert done.status == 1
    assert faults.read_text().split() == ["fault"] * 3
    assert mistakes.read_text().split() == ["mistake"]
    failed = [step for step in newest_run(tmp_path)["steps"] if step["status"] == "failed"]
    assert {step["kind"] for step in failed} == {"invalid_request"}


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the outputs of the step go that this process stands for."""
    outputs = {"outputs": {"artifacts": {"data": {"artifacts": [{"uri": str(tmp_path / "step/data")}]}}}}
    (tmp_path / "step").mkdir()
    monkeypatch.setattr(sys, "orig_argv", ["python", "--executor_input", json.dumps(outputs)])
    monkeypatch.setenv(PAUSES, "0,0")
    monkeypatch.setenv(ATTEMPT, "1")
    return tmp_path / "step"


def attempt(error: UserError, begun: list[str]) -> None:
    """An attempt at a step that ends with an error."""
    with attempts(lambda: begun.append("again")):
        begun.append("work")
        raise error


def test_a_mistake_is_found_again_by_the_same_step_alone(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="no such column"):
            attempt(InvalidRequestError("no such column", "Take another."), begun)
    assert begun == ["work"]
    assert json.loads((step / "mistake.json").read_text())["error"]["remedy"] == "Take another."
    other = json.loads(sys.orig_argv[-1]) | {"inputs": {"parameterValues": {"column": "b"}}}
    monkeypatch.setattr(sys, "orig_argv", ["python", "--executor_input", json.dumps(other)])
    with pytest.raises(InvalidRequestError):
        attempt(InvalidRequestError("no such column"), begun)
    assert begun == ["work", "work"]


@pytest.mark.parametrize("error", [NodeLostError("gone"), UnavailableError("away")])
def test_what_is_no_mistake_leaves_nothing(error: UserError, step: Path) -> None:
    with pytest.raises(type(error)):
        attempt(error, [])
    assert not list(step.iterdir())


def test_where_a_user_alone_begins_a_step_again_a_mistake_may_be_mended(
    step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORAGE, "gs://example-bucket/storage")
    begun: list[str] = []
    for _ in range(2):
        with pytest.raises(InvalidRequestError):
            attempt(InvalidRequestError("no"), begun)
    assert begun == ["work", "work"]


def test_an_error_of_a_service_is_tried_again_so_often_and_no_more(
    step: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[str] = []
    wrapped = UserError("the bucket cannot be read")
    wrapped.__cause__ = UnavailableError("away", status=503)
    for error in (UnavailableError("away"), wrapped, UnavailableError("away")):
        with pytest.raises(UserError):
            attempt(error, begun)
    assert begun == ["work", "again"] * 2 + ["work"]
    assert "(attempt 3 of 3)" in capsys.readouterr().err
    monkeypatch.setenv(ATTEMPT, "1")
    cluster = {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]}
    task = {"type": "workerpool0", "index": 0}
    monkeypatch.setenv("CLUSTER_SPEC", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(UnavailableError):
        attempt(UnavailableError("away"), begun)
    assert begun[-1] == "work", "the other node would wait for this one"
