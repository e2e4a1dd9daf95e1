"""KFP's own pipelines for local execution, run by the command, with the outputs that their authors state."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import gpu_pipelines, newest_run

PIPELINES = Path(__file__).with_name("of_kfp")


@pytest.mark.parametrize(
    ("file", "parameters", "said"),
    [
        ("concat_message.py", ["message1=Hello ", "message2=World!"], "Output: Hello World!"),
        ("component_with_env_variable.py", ["var_name=KFP_TEST_ENV_VAR"], "Output: env_var_value"),
        ("pipeline_with_collected_artifacts.py", [], "Output: 0,1,2"),
        ("local_execution_pipeline_with_oneof.py", ["pick_a=true"], "Output: selected:A"),
        pytest.param(
            "local_execution_pipeline_with_k8s_only_methods.py",
            ["message=hello"],
            "Output: hello",
            marks=pytest.mark.slow,
        ),
        pytest.param("sequential_v1.py", ["param1=one", "param2=two"], "echo-2: two", marks=pytest.mark.slow),
        pytest.param("pipeline_with_loops.py", ["loop_parameter=x,y"], "print-text #2: ", marks=pytest.mark.slow),
        pytest.param("flip_coin.py", [], "flip-coin: (heads|tails)", marks=pytest.mark.slow),
        pytest.param(
            "nested_return.py",
            [],
            # The names of a dictionary come in any order.
            r'Output: \[\{("B_b": "2"|"A_a": "1"|, ){3}\}, \{("B_b": "20"|"A_a": "10"|, ){3}\}\]',
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_pipeline_of_kfp_leaves_what_its_authors_state(
    file: str, parameters: list[str], said: str, tmp_path: Path
) -> None:
    given = [part for parameter in parameters for part in ("-p", parameter)]
    done = gpu_pipelines("run", str(PIPELINES / file), "--no-containers", *given, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert re.search(said, done.out), done.out
    assert "executor_input" not in done.out, "KFP's own chatter belongs into the log"
    assert (newest_run(tmp_path)["directory"] / "report.html").is_file()


def test_a_step_that_fails_first_is_tried_again_and_each_attempt_has_its_log(tmp_path: Path) -> None:
    file = str(PIPELINES / "local_execution_pipeline_with_retry.py")
    done = gpu_pipelines("run", file, "-p", f"counter_path={tmp_path}/count", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert "Output: attempt=2" in done.out
    record = newest_run(tmp_path)
    assert [(step["name"], step["status"]) for step in record["steps"]] == [
        ("flaky", "failed"),
        ("flaky #2", "failed"),
        ("flaky #3", "succeeded"),
    ] or [step["status"] for step in record["steps"]] == ["failed", "succeeded"]
    assert all((record["directory"] / step["log"]).is_file() for step in record["steps"])


def test_a_step_that_runs_after_a_failure_hides_it_not(tmp_path: Path) -> None:
    file = str(PIPELINES / "local_execution_pipeline_with_ignore_upstream_failure.py")
    done = gpu_pipelines("run", file, "-p", f"marker_path={tmp_path}/marker", cwd=tmp_path)
    assert done.status == 1
    assert (tmp_path / "marker").read_text() == "cleanup_ran"
    assert "fail-always failed" in done.err
    assert "upstream failed intentionally" in done.err
    assert "Traceback (most recent call last)" not in done.err.partition("its log ends")[0]
    outcome = json.loads((tmp_path / "runs/pipeline-with-ignore-upstream-failure-outcome.json").read_text())
    assert (outcome["outcome"], outcome["reason"]) == ("failed", "fail-always failed")
