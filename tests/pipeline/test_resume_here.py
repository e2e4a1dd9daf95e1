"""`run --resume RUN` of a run on this machine: its steps that are done are reused, and it is named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import command
from conftest import newest_run

import gpu_pipelines
from gpu_pipelines.driver.resuming import _require_reachable, resumed_submission
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.local.local import Local, LocalOptions
from gpu_pipelines.targets.runs.record import RunRecord

THREE = """
from kfp import dsl


@dsl.container_component
def first(text: str, made: dsl.OutputPath(str)):
    return dsl.ContainerSpec("any", ["sh", "-c"], ['echo first; printf %s "$0" > "$1"', text, made])


@dsl.container_component
def second(mode: str, one: str, made: dsl.OutputPath(str)):
    return dsl.ContainerSpec("any", ["sh", "-c"], ['[ "$0" != bad ] && printf %s "$1" > "$2"', mode, one, made])


@dsl.container_component
def third(two: str):
    return dsl.ContainerSpec("any", ["sh", "-c"], ['echo "third: $0"', two])


@dsl.pipeline(name="three")
def three(text: str = "a", mode: str = "bad"):
    third(two=second(mode=mode, one=first(text=text).outputs["made"]).outputs["made"])
"""


def test_a_run_here_goes_on_with_its_parameters(tmp_path: Path) -> None:
    (tmp_path / "three.py").write_text(THREE)
    run = ("run", "three.py", "--no-containers")
    assert command(*run, "-p", "text=given", cwd=tmp_path).status == 1
    failed = newest_run(tmp_path)
    resume = (*run, "--resume", failed["run_id"])
    refused = command(*resume, "-p", "text=other", cwd=tmp_path)
    assert (refused.status, "text is of first, which is done in" in refused.err) == (2, True), refused.err
    assert newest_run(tmp_path)["run_id"] == failed["run_id"]
    for named in (failed["run_id"], gpu_pipelines.open_run(failed["run_id"], tmp_path / "runs")):
        with pytest.raises(UserError, match="Give its file as the pipeline"):
            gpu_pipelines.run(resume=named, runs=tmp_path / "runs")
    failed_again = command(*resume, "-p", "mode=bad", cwd=tmp_path)
    resumed = newest_run(tmp_path)["run_id"]
    assert failed_again.status == 1
    assert f"  gpu-pipelines run three.py --resume {resumed} --no-containers" in failed_again.err.splitlines()
    resume = (*run, "--resume", resumed)
    done = command(*resume, "-p", "mode=good", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert "third: given" in done.out
    record = newest_run(tmp_path)
    assert [step["status"] for step in record["steps"]] == ["reused", "succeeded", "succeeded"]
    assert record["resumes"] == resumed
    shown = command("runs", "show", record["run_id"], cwd=tmp_path).out
    assert f"goes on from {resumed}" in shown
    again = command(*run, "--resume", record["run_id"], cwd=tmp_path)
    assert (again.status, "has succeeded, so there is nothing to resume" in again.err) == (2, True)
    unknown = command(*run, "--resume", "three-2020", cwd=tmp_path)
    assert (unknown.status, "There is no run 'three-2020'" in unknown.err) == (2, True)


@pytest.mark.parametrize("of_an_earlier_version", [{}, {"compile_model": False}])
def test_a_resumed_run_is_asked_for_again_with_all_its_parameters(
    tmp_path: Path, of_an_earlier_version: dict[str, Any]
) -> None:
    before = {"source": "sample:diabetes", "task": "regression", "model": "mlp-small", "max_steps": 2, "packing": False}
    recorded = {**before, **of_an_earlier_version}
    record = RunRecord(
        "a-run", "train_evaluate_upload", "2026-11-22T04:43:14+00:00", recorded, "cpu:1", {}, tmp_path / "a-run"
    )
    record.status = "failed"
    record.directory.mkdir()
    record.save()
    target = Local(LocalOptions(runs=tmp_path))
    _, _, request = resumed_submission(target, "", "a-run", ["gates=r2>=0.1"], None, None).content
    assert request.given == {**before, **dict.fromkeys(of_an_earlier_version, "off"), "gates": ["r2>=0.1"]}


def test_a_run_that_cannot_be_gone_on_with_for_its_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "a-run").mkdir()
    (tmp_path / "a-run/run.json").write_text('{"format_version": 1, "run_id"')
    refused = command("run", "train_evaluate_upload", "--resume", "--runs", str(tmp_path), cwd=tmp_path)
    assert (refused.status, "that was interrupted or failed" in refused.err) == (2, True), refused.err
    assert "warning: --resume ignores a run: " in refused.err
    assert "a-run/run.json is damaged" in refused.err


def test_an_artifact_that_only_this_machine_reads_is_refused_elsewhere_with_what_to_do(tmp_path: Path) -> None:
    target: Any = SimpleNamespace(can_read=lambda uri: False, readers="", title="Vertex AI")
    found: Any = SimpleNamespace(needed={str(tmp_path): "made of make"}, trainings={})
    with pytest.raises(UserError, match=r"which Vertex AI cannot read\. Continue it where it ran, or run it again\."):
        _require_reachable(target, found)
