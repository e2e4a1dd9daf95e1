"""Tasks of one job that run at the same time: what one waits for, and what two must not share."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

from gpu_pipelines.emulator.pipelines.payload import PipelineRun
from gpu_pipelines.emulator.running.pipeline_run import SUCCEEDED, Ended, JobRun, Task, Values
from gpu_pipelines.emulator.running.step_environments import StepEnvironments

TAKES = {"parameters": {"n": {"taskOutputParameter": {"producerTask": "slow", "outputParameterKey": "Output"}}}}


def test_a_task_waits_for_whose_output_it_takes_though_the_file_does_not_say_so() -> None:
    """KFP's compiler leaves it out of `dependentTasks` where machines are outputs of tasks."""
    quick = threading.Event()
    given: dict[str, Any] = {}

    def carry_out(task: Task) -> Ended:
        if task.name == "slow":
            quick.wait(5)
        given[task.name] = dict(task.given.parameters)
        if task.name == "quick":
            quick.set()
        return Ended(SUCCEEDED, Values({"Output": 7}))

    tasks = {
        "taker": {"componentRef": {"name": "any"}, "dependentTasks": ["quick"], "inputs": TAKES},
        "quick": {"componentRef": {"name": "any"}},
        "slow": {"componentRef": {"name": "any"}},
    }
    spec = {"root": {"dag": {"tasks": tasks}}, "components": {"any": {}}}
    run = PipelineRun("gs://example-bucket/r", Path("/gcs/example-bucket/r"), {})
    ended = JobRun(spec, run, "", carry_out, lambda *_: None, lambda *_: None, lambda: False).whole({})
    assert (ended.state, given["taker"]) == (SUCCEEDED, {"n": 7})


def test_steps_that_install_at_the_same_time_have_an_environment_each(tmp_path: Path) -> None:
    lender, command = StepEnvironments(tmp_path), ["sh", "-c", "pip install that"]
    with lender.lent(command) as first:
        with lender.lent(command) as second:
            assert first != second
            python = (str(second / "bin/python"), "-c", "import kfp, sys; print(sys.prefix)")
            assert subprocess.check_output(python, text=True).strip() == str(second)
        with lender.lent(command) as again:
            assert again == second, "what was installed is there for the next step"
    with lender.lent(["sh", "-c", "pip install another"]) as other:
        assert other not in (first, second)
