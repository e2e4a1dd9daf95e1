"""Pipelines that are run whole: with the command, with a fixture of one's own tests, and those of others."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from command_line import command
from conftest import gpu_pipelines
from kfp import compiler
from pipelines_of_tests import everything, no, one, twice
from sample_runs import PARENT, outputs, states
from sample_runs import run_spec as run

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.state_folder import StateFolder

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

OF_KFP = Path(__file__).parents[1] / "own_pipelines/of_kfp"

SMALL = """
from kfp import dsl

@dsl.component(install_kfp_package=False)
def double(number: int, page: dsl.Output[dsl.HTML]) -> int:
    if number < 0:
        raise SystemExit("it is negative")
    with open(page.path, "w") as file:
        file.write(f"<p>{2 * number}</p>")
    return 2 * number

@dsl.pipeline(name="small")
def small(number: int = 4):
    double(number=number)
"""


def test_a_file_is_rehearsed_and_leaves_its_report(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    command = ("run", "small.py", "--target", "vertex", "--emulate", "--json")
    done = gpu_pipelines(*command, "-p", "number=21", cwd=tmp_path)
    assert done.status == 0, done.err
    document = json.loads(done.out)
    assert (document["emulated"], document["state"]) == (True, "succeeded")
    (report,) = document["reports"]
    assert Path(report).read_text() == "<p>42</p>"
    assert Path(report).is_relative_to(tmp_path / "runs")
    failed = gpu_pipelines(*command[:-1], "-p", "number=-1", cwd=tmp_path)
    assert failed.status == 1
    assert "it is negative" in failed.err
    wrong = gpu_pipelines("run", "small.py", "--target", "kubeflow", "--emulate", cwd=tmp_path)
    assert wrong.status == 2
    assert "The target kubeflow has no --emulate" in wrong.err
    followed = gpu_pipelines(*command, "--follow", cwd=tmp_path)
    assert followed.status == 2
    assert "a run on this machine is always shown until its end" in followed.err


def test_no_image_is_needed_where_none_is_pulled(tmp_path: Path) -> None:
    given = ("--accelerator", "l4:1,t4:1", "--dry-run")
    done = command("run", "train_evaluate_upload", "--target", "vertex", "--emulate", *given, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "example-project/gpu-pipelines/steps:" in done.out


@pytest.mark.parametrize(
    ("name", "place", "service"),
    [
        ("source", "bq://example-project.shop.reviews", "BigQuery"),
        ("source", "gs://my-bucket/reviews", "Cloud Storage"),
        ("test_source", "gs://my-bucket/reviews", "Cloud Storage"),
        ("image_root", "/gcs/my-bucket/images", "Cloud Storage"),
    ],
)
def test_data_is_refused_where_the_emulator_has_none(tmp_path: Path, name: str, place: str, service: str) -> None:
    pipeline = "batch_prediction" if name == "source" else "train_evaluate_upload"
    given = ("-p", f"{name}={place}", "-p", "model_name=reviews")
    machine = ("--accelerator", "l4:1")
    done = command("run", pipeline, "--target", "vertex", "--emulate", *machine, *given, cwd=tmp_path)
    assert done.status == 2
    assert f"The {name} {place} is in {service}, which is empty on the emulator that --emulate starts" in done.err
    assert not (tmp_path / "runs").exists()


OF_USER = """
import os

def test_a_pipeline(vertex_emulator, tmp_path):
    from google.cloud import aiplatform
    assert os.environ["STORAGE_EMULATOR_HOST"] == vertex_emulator.url
    assert vertex_emulator.state.pipeline_jobs.jobs == {}
    vertex_emulator.storage.put("a.txt", b"a")
    assert (vertex_emulator.folder / "gcs/example-bucket/a.txt").read_bytes() == b"a"

def test_nothing_is_left(vertex_emulator):
    assert not (vertex_emulator.folder / "gcs/example-bucket/a.txt").exists()
"""


@pytest.mark.slow
def test_the_fixture_is_there_in_tests_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(OF_USER)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def compiled(pipeline: Any, folder: Path) -> dict[str, Any]:
    compiler.Compiler().compile(pipeline, str(folder / "compiled.yaml"))
    return dict(next(yaml.safe_load_all((folder / "compiled.yaml").read_text())))


def test_branches_loops_and_an_exit_handler_run_as_on_the_service(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    spec = compiled(everything, tmp_path)
    job = run(vertex_emulator, spec)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", job.error.message
    said = vertex_emulator.state.logs.messages()
    assert {"a", "taken", "x", "y", "in-a", "in-b", "<w> s"} <= set(said)
    assert not {"elif", "else"} & set(said)
    (told,) = [json.loads(line.removeprefix("status ")) for line in said if line.startswith("status")]
    assert (told["state"], told["error"]) == ("SUCCEEDED", {})
    other = run(vertex_emulator, spec, text="b", number=1)
    assert "else" in vertex_emulator.state.logs.messages()
    assert "elif" not in vertex_emulator.state.logs.messages()
    assert other.state.name == "PIPELINE_STATE_SUCCEEDED"


def test_a_failure_is_handed_to_the_exit_handler_and_ends_the_job(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    job = run(vertex_emulator, compiled(everything, tmp_path), text="bad")
    assert job.state.name == "PIPELINE_STATE_FAILED"
    assert "The failed tasks are: [shell]" in job.error.message
    (told,) = [line for line in vertex_emulator.state.logs.messages() if line.startswith("status")]
    assert json.loads(told.removeprefix("status "))["state"] == "FAILED"
    assert states(job)["status"] == "SUCCEEDED"


def test_a_result_is_taken_again_only_for_the_same_inputs(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    spec = compiled(one, tmp_path)
    found = [states(run(vertex_emulator, spec, text=text))["shell"] for text in ("a", "a", "b")]
    assert found == ["SUCCEEDED", "SKIPPED", "SUCCEEDED"]


def test_tasks_of_one_name_in_two_parts_keep_their_outputs_apart(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    job = run(vertex_emulator, compiled(twice, tmp_path))
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", job.error.message
    assert {"a and b", "none", "c"} <= set(vertex_emulator.state.logs.messages())
    names = sorted(name for name in states(job) if name.endswith("shell"))
    assert len(names) == 2
    assert {outputs(job, name)["made"] for name in names} == {"a", "b"}
    inner = [outputs(job, name)["Output"] for name in ("inner", "inner-2")]
    assert inner == ["a", "b"]


def test_what_cannot_be_run_is_refused_by_its_name(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    from gpu_pipelines.emulator.api_error import ApiError

    with pytest.raises(ApiError) as caught:
        run(vertex_emulator, compiled(no, tmp_path))
    assert "comp-strange runs a-program-of-the-image, which is not on this machine" in caught.value.message
    assert "comp-entry has no command" in caught.value.message
    assert "comp-image-dataset-create is a component of Google's whose service is not emulated" in caught.value.message
    assert vertex_emulator.state.pipeline_jobs.jobs == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "name", "parameters", "outputs"),
    [
        ("component_with_env_variable", "pipeline_with_env_variable", {}, []),
        ("flip_coin", "flipcoin_pipeline", {}, []),
        ("local_execution_pipeline_with_exit_handler", "pipeline_with_exit_handler", {}, []),
        ("local_execution_pipeline_with_oneof", "pipeline_with_oneof", {}, []),
        ("pipeline_with_caching", "pipeline_with_caching", {}, []),
        ("pipeline_with_collected_artifacts", "pipeline_with_collected_artifacts", {}, []),
        ("pipeline_with_loops", "my_pipeline", {}, []),
        ("sequential_v1", "sequential", {"param1": "one", "param2": "two"}, ["one", "two"]),
    ],
)
def test_pipelines_of_kfp_run_unchanged(
    vertex_emulator: VertexApi, tmp_path: Path, file: str, name: str, parameters: dict[str, Any], outputs: list[str]
) -> None:
    import runpy

    job = run(vertex_emulator, compiled(runpy.run_path(str(OF_KFP / f"{file}.py"))[name], tmp_path), **parameters)
    said = vertex_emulator.state.logs.messages()
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join(said[-20:])
    assert set(outputs) <= set(said)


def test_a_schedule_fires_as_often_as_it_may(tmp_path: Path, vertex_certificates: Any) -> None:
    from google.cloud import aiplatform_v1 as api

    from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator

    job = {"displayName": "p", "pipelineSpec": compiled(one, tmp_path)}
    job["runtimeConfig"] = {"gcsOutputDirectory": "gs://example-bucket/r"}
    document = {"displayName": "s", "cron": "* * * * *", "maxRunCount": 2, "maxConcurrentRunCount": 1}
    document["createPipelineJobRequest"] = {"parent": PARENT, "pipelineJob": job}
    schedule = api.Schedule.from_json(json.dumps(document))
    settings = EmulatorSettings(state=tmp_path / "state", certificates=vertex_certificates, speed=240)
    with running_emulator(settings) as emulator:
        name = emulator.state.schedules.create(api.CreateScheduleRequest(parent=PARENT, schedule=schedule)).name
        until = time.monotonic() + 20
        while emulator.state.schedules.one(name).state.name != "COMPLETED":
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(0.5)
        assert [each.schedule_name for each in emulator.state.pipeline_jobs.jobs.values()] == [name, name]
        assert "next_run_time" not in emulator.state.schedules.one(name)


@pytest.mark.parametrize("queue", [False, True])
def test_a_schedule_waits_for_its_runs_or_leaves_out_what_is_due(
    vertex_api: VertexApi, tmp_path: Path, queue: bool
) -> None:
    from google.cloud import aiplatform_v1 as api

    from gpu_pipelines.emulator.running.clock import Clock

    job = {"displayName": "p", "pipelineSpec": compiled(one, tmp_path)}
    job["runtimeConfig"] = {"gcsOutputDirectory": "gs://example-bucket/r"}
    document = {"displayName": "s", "cron": "* * * * *", "maxConcurrentRunCount": 1, "allowQueueing": queue}
    document |= {"maxConcurrentActiveRunCount": 1, "createPipelineJobRequest": {"parent": PARENT, "pipelineJob": job}}
    schedules, jobs = vertex_api.state.schedules, vertex_api.state.pipeline_jobs
    clock = Clock(schedules, jobs, speed=600)
    schedule = api.Schedule.from_json(json.dumps(document))
    name = schedules.create(api.CreateScheduleRequest(parent=PARENT, schedule=schedule)).name

    def wait(reached: Callable[[], bool]) -> None:
        until = time.monotonic() + 20
        while not reached():
            assert time.monotonic() < until
            time.sleep(0.02)

    clock.start()
    try:
        wait(lambda: len(jobs.jobs) == 1)
        due, began = schedules.one(name).next_run_time, clock.time()
        wait(lambda: clock.time() > began + timedelta(minutes=4))
        assert len(jobs.jobs) == 1, "the first goes on"
        assert (schedules.one(name).next_run_time == due) is queue
        jobs.end(next(iter(jobs.jobs)), "SUCCEEDED")
        wait(lambda: len(jobs.jobs) == 2)
    finally:
        clock.close()


class Hand:
    """A clock that is set by hand, and one schedule, every hour."""

    def __init__(self, api: VertexApi, folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
        from google.cloud.aiplatform_v1 import CreateScheduleRequest, Schedule

        from gpu_pipelines.emulator.running.clock import Clock

        self.hour = 0.0
        monkeypatch.setattr(Clock, "time", lambda _: self.at(self.hour))
        self.schedules, self.jobs = api.state.schedules, api.state.pipeline_jobs
        self.clock = Clock(self.schedules, self.jobs)
        job = {"displayName": "p", "pipelineSpec": compiled(one, folder)}
        job["runtimeConfig"] = {"gcsOutputDirectory": "gs://example-bucket/r"}
        document = {"displayName": "s", "cron": "0 * * * *", "maxConcurrentRunCount": 1, **given}
        document["createPipelineJobRequest"] = {"parent": PARENT, "pipelineJob": job}
        schedule = Schedule.from_json(json.dumps(document))
        self.name = self.schedules.create(CreateScheduleRequest(parent=PARENT, schedule=schedule)).name

    @staticmethod
    def at(hour: float) -> datetime:
        return datetime(2098, 1, 1, tzinfo=timezone.utc) + timedelta(hours=hour)

    def runs_by(self, hour: float) -> int:
        """How many there are at that hour, when the emulator has looked often enough."""
        self.hour = hour
        for _ in range(10):
            self.clock.look()
        return len(self.jobs.jobs)


def test_a_schedule_that_catches_up_starts_the_runs_that_were_due_while_it_was_paused(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.cloud.aiplatform_v1 import PauseScheduleRequest, ResumeScheduleRequest

    hand = Hand(vertex_api, tmp_path, monkeypatch, maxConcurrentActiveRunCount=1)
    pause, resume = PauseScheduleRequest(name=hand.name), ResumeScheduleRequest(name=hand.name)
    assert hand.runs_by(1) == 1
    hand.schedules.pause(pause)
    assert hand.runs_by(3.5) == 1
    hand.schedules.resume(resume)
    assert hand.runs_by(3.9) == 1
    hand.schedules.pause(pause)
    assert hand.runs_by(6.5) == 1
    resume.catch_up = True
    hand.schedules.resume(resume)
    started = []
    for _ in range(5):
        for job in hand.jobs.jobs:
            hand.jobs.end(job, "SUCCEEDED")
        started.append(hand.runs_by(6.6))
    assert started == [2, 3, 4, 4, 4], "those of 4, 5 and 6 o'clock, each when the one before has ended"
    assert hand.schedules.one(hand.name).next_run_time == hand.at(7)


def test_the_last_run_of_a_schedule_may_be_at_its_end(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(vertex_api, tmp_path, monkeypatch, endTime="2098-01-01T02:00:00Z")
    assert [hand.runs_by(hour) for hour in (1.5, 2.01, 4)] == [1, 2, 2]
    last = hand.schedules.one(hand.name).last_scheduled_run_response
    assert (last.scheduled_run_time, last.run_response) == (hand.at(2), list(hand.jobs.jobs)[-1])
    assert hand.schedules.one(hand.name).state.name == "COMPLETED"


def test_a_schedule_whose_limit_is_lowered_to_what_it_has_run_is_completed(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.cloud.aiplatform_v1 import Schedule, UpdateScheduleRequest

    hand = Hand(vertex_api, tmp_path, monkeypatch)
    assert [hand.runs_by(hour) for hour in (1, 2, 3)] == [1, 2, 3]
    lower = Schedule(name=hand.name, max_run_count=2)
    hand.schedules.update(UpdateScheduleRequest(schedule=lower, update_mask={"paths": ["max_run_count"]}))
    assert hand.runs_by(4) == 3
    assert hand.schedules.one(hand.name).state.name == "COMPLETED"


@pytest.mark.parametrize("change", ["updated", "deleted"])
def test_a_schedule_that_is_changed_while_a_run_of_it_starts_stays_so(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    from google.cloud.aiplatform_v1 import DeleteScheduleRequest, Schedule, UpdateScheduleRequest

    hand = Hand(vertex_api, tmp_path, monkeypatch)
    create = hand.jobs.create
    schedule = Schedule(name=hand.name, display_name="new")

    def send() -> None:
        if change == "deleted":
            hand.schedules.delete(DeleteScheduleRequest(name=hand.name))
        else:
            hand.schedules.update(UpdateScheduleRequest(schedule=schedule, update_mask={"paths": ["display_name"]}))

    sender = threading.Thread(target=send)

    def slowly(request: Any) -> Any:
        sender.start()
        sender.join(0.1)
        return create(request)

    monkeypatch.setattr(hand.jobs, "create", slowly)
    hand.hour = 1
    hand.clock.look()
    sender.join()
    assert [each.display_name for each in hand.schedules.held.values()] == (["new"] if change == "updated" else [])


def _full(*_: object) -> None:
    raise ApiError(400, "The emulator cannot write its state: No space left on device.")


def test_a_schedule_starts_runs_after_its_state_could_not_be_written(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.cloud import aiplatform_v1 as api

    from gpu_pipelines.emulator.running.clock import Clock

    job = {"displayName": "p", "pipelineSpec": compiled(one, tmp_path)}
    job["runtimeConfig"] = {"gcsOutputDirectory": "gs://example-bucket/r"}
    document = {"displayName": "s", "cron": "* * * * *", "maxConcurrentRunCount": 1}
    document["createPipelineJobRequest"] = {"parent": PARENT, "pipelineJob": job}
    schedules, jobs = vertex_api.state.schedules, vertex_api.state.pipeline_jobs
    clock = Clock(schedules, jobs, speed=600)
    schedules.create(api.CreateScheduleRequest(parent=PARENT, schedule=api.Schedule.from_json(json.dumps(document))))
    monkeypatch.setattr(schedules, "keep", _full)
    clock.start()
    try:
        until = time.monotonic() + 20
        while len(jobs.jobs) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        clock.close()


def _created(emulator: VertexApi, spec: dict[str, Any]) -> str:
    from google.cloud import aiplatform_v1 as api

    document = {"pipelineSpec": spec, "runtimeConfig": {"gcsOutputDirectory": "gs://example-bucket/r"}}
    job = api.PipelineJob.from_json(json.dumps(document))
    request = api.CreatePipelineJobRequest(parent=PARENT, pipeline_job=job)
    return str(emulator.state.pipeline_jobs.create(request).name)


def test_a_job_that_is_cancelled_while_it_starts_or_ends_stays_so(vertex_api: VertexApi, tmp_path: Path) -> None:
    from google.cloud import aiplatform_v1 as api

    jobs, name = vertex_api.state.pipeline_jobs, _created(vertex_api, compiled(one, tmp_path))
    jobs.cancel(api.CancelPipelineJobRequest(name=name))
    jobs.begin(name)
    jobs.end(name, "SUCCEEDED")
    assert jobs.one(name).state.name == "PIPELINE_STATE_CANCELLED"


def test_a_job_ends_though_its_end_cannot_be_written(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, name = vertex_api.state.pipeline_jobs, _created(vertex_api, compiled(one, tmp_path))
    jobs.begin(name)
    monkeypatch.setattr(StateFolder, "write", _full)
    jobs.end(name, "FAILED", "it is broken")
    assert jobs.one(name).state.name == "PIPELINE_STATE_FAILED"
    assert "warning: The emulator cannot write its state" in capsys.readouterr().err


def test_so_does_a_custom_job(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.cloud import aiplatform_v1 as api

    jobs = vertex_api.state.custom_jobs
    name = jobs.begin(PARENT, api.CustomJob(display_name="c")).name
    monkeypatch.setattr(StateFolder, "write", _full)
    jobs.set_state(name, "JOB_STATE_SUCCEEDED")
    assert jobs.one(name).state.name == "JOB_STATE_SUCCEEDED"


def test_a_job_that_cannot_begin_has_failed(
    vertex_emulator: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vertex_emulator.state.pipeline_jobs, "begin", _full)
    job = run(vertex_emulator, compiled(one, tmp_path))
    assert (job.state.name, "No space left" in job.error.message) == ("PIPELINE_STATE_FAILED", True)


TURNS = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def train(seed: int):
    print(f"training from {seed}")
    assert seed < 2, "the loss is no number"


@dsl.pipeline(name="turns")
def turns():
    with dsl.ParallelFor([1, 2], parallelism=1) as seed:
        train(seed=seed)
"""


def test_each_turn_of_a_loop_is_followed_and_told_of_when_it_fails(tmp_path: Path) -> None:
    (tmp_path / "turns.py").write_text(TURNS)
    done = gpu_pipelines("run", "turns.py", "--target", "vertex", "--emulate", cwd=tmp_path)
    assert done.status == 1, done.out + done.err
    assert {"train-#0: training from 1", "train-#1: training from 2"} <= set(done.out.splitlines())
    assert "error: train-#1 failed" in done.err
    assert "the loss is no number" in done.err
