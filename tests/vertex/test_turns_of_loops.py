"""The turns of a loop as steps of a run on Vertex AI, whatever the service calls them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from google.cloud import aiplatform_v1 as api

from gpu_pipelines.targets.vertex.runs.state import state_of

_SPEC = {
    "root": {"dag": {"tasks": {"loop": {"componentRef": {"name": "comp-loop"}}}}},
    "components": {
        "comp-loop": {"dag": {"tasks": {"train": {"componentRef": {"name": "comp-train"}}}}},
        "comp-train": {"executorLabel": "exec-train"},
    },
}
_BEGAN = datetime(2026, 11, 25, tzinfo=timezone.utc)


def _job(*turns: tuple[int, str, int]) -> api.PipelineJob:
    job = api.PipelineJob(name="projects/p/locations/us-central1/pipelineJobs/j", pipeline_spec=_SPEC)
    details = [api.PipelineTaskDetail(task_id=1, task_name="run"), *(_detail(2, "loop", 0))]
    for turn in turns:
        details += _detail(*turn)
    job.job_detail = api.PipelineJobDetail(task_details=details)
    return job


def _detail(number: int, name: str, second: int) -> list[api.PipelineTaskDetail]:
    came = _BEGAN + timedelta(seconds=second)
    return [api.PipelineTaskDetail(task_id=number, parent_task_id=1, task_name=name, create_time=came)]


def test_turns_of_one_name_are_told_apart_and_keep_their_names() -> None:
    first = state_of(_job((9, "train", 5)))
    both = state_of(_job((3, "train", 7), (9, "train", 5)))
    assert [step.name for step in first.steps] == ["train"]
    assert {step.name for step in both.steps} == {"train", "train #2"}
    assert {step.task for step in both.steps} == {"train"}


def test_turns_with_numbers_behind_their_names_are_steps() -> None:
    run = state_of(_job((3, "train-#0", 5), (4, "train-#1-#2", 5)))
    assert [(step.name, step.task) for step in run.steps] == [("train-#0", "train"), ("train-#1-#2", "train")]
