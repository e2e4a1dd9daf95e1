"""Tasks that do not wait for each other run at the same time, as many as there are cores. KFP reads the annotations."""

import itertools
import json
import time
from pathlib import Path

import pytest
import yaml
from kfp import compiler, dsl

from gpu_pipelines.emulator.jobs.capacity import Capacity
from gpu_pipelines.emulator.pipelines.jobs import ENDED
from gpu_pipelines.emulator.transcoding import as_json

PARENT = "projects/example-project/locations/us-central1"


@dsl.container_component
def meet(own: str, other: str):
    waits = 'touch /gcs/example-bucket/$0; until [ -e "/gcs/example-bucket/$1" ]; do sleep 0.05; done; echo met $1'
    return dsl.ContainerSpec("any", ["timeout", "20", "sh", "-c", waits], [own, other])


@dsl.container_component
def turn(number: int):
    return dsl.ContainerSpec("any", ["sh", "-c", "echo begin $0; sleep 0.3; echo end $0"], [number])


@dsl.pipeline(name="together")
def together():
    meet(own="a", other="b")
    meet(own="b", other="a")


@dsl.pipeline(name="turns")
def turns(numbers: list = [1, 2, 3]):  # noqa: B006
    with dsl.ParallelFor(numbers, parallelism=1) as number:
        turn(number=number)


@dsl.pipeline(name="accelerated")
def accelerated():
    turn(number=1).set_accelerator_type("NVIDIA_L4").set_accelerator_limit(1)


def finished(emulator, pipeline, folder: Path):
    """Runs a pipeline to its end."""
    from google.cloud import aiplatform_v1 as api

    compiler.Compiler().compile(pipeline, str(folder / "compiled.yaml"))
    spec = next(yaml.safe_load_all((folder / "compiled.yaml").read_text()))
    body = {"displayName": "p", "pipelineSpec": spec, "runtimeConfig": {"gcsOutputDirectory": "gs://example-bucket/r"}}
    job = api.PipelineJob.from_json(json.dumps(body))
    name = emulator.state.pipeline_jobs.create(api.CreatePipelineJobRequest(parent=PARENT, pipeline_job=job)).name
    until = time.monotonic() + 60
    while emulator.state.pipeline_jobs.one(name).state not in ENDED:
        assert time.monotonic() < until
        time.sleep(0.05)
    # Its end is written before it can be read.
    return emulator.state.pipeline_jobs.get(api.GetPipelineJobRequest(name=name))


def test_tasks_that_do_not_depend_on_each_other_run_at_the_same_time(
    vertex_emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, written = vertex_emulator.kept, []
    write = kept.write
    monkeypatch.setattr(kept, "write", lambda kind, *given: written.append(kind) or write(kind, *given))
    job = finished(vertex_emulator, together, tmp_path)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", job.error.message
    assert {"met a", "met b"} <= set(vertex_emulator.state.logs.messages())
    # Each task as it begins and ends; the run as it is created, begins and ends.
    assert written.count("pipelineJobs") == 2 * 2 + 3
    ((_, document),) = kept.documents("pipelineJobs")
    assert document == as_json(job)


def test_no_more_turns_of_a_loop_run_at_a_time_than_it_says(vertex_emulator, tmp_path: Path) -> None:
    job = finished(vertex_emulator, turns, tmp_path)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", job.error.message
    said = [line for line in vertex_emulator.state.logs.messages() if line.startswith(("begin", "end"))]
    assert said == list(itertools.chain(*((f"begin {n}", f"end {n}") for n in (1, 2, 3))))


def test_a_step_with_a_gpu_needs_one_that_is_there(vertex_emulator, tmp_path: Path) -> None:
    vertex_emulator.state.replicas.capacity = Capacity({("us-central1", "NVIDIA_L4"): 0})
    job = finished(vertex_emulator, accelerated, tmp_path)
    assert job.state.name == "PIPELINE_STATE_FAILED"
    assert "Resources are insufficient in region: us-central1" in job.job_detail.task_details[1].error.message
    vertex_emulator.state.replicas.capacity = Capacity({("us-central1", "NVIDIA_L4"): 1})
    assert finished(vertex_emulator, accelerated, tmp_path).state.name == "PIPELINE_STATE_SUCCEEDED"
