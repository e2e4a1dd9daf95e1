"""A pipeline of somebody's on Vertex AI: uploaded, scheduled, sent, and run there as the service runs it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import set_variables
from vertex_commands import command, put_texts

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

OWN = Path(__file__).parents[1] / "own_pipelines/mine.py"
MINE = f"{OWN}:mine"
FLAGS = ("--target", "vertex", "--accelerator", "l4:1")


def test_it_is_uploaded_scheduled_and_sent_as_it_was_placed(vertex_api: VertexApi, tmp_path: Path) -> None:
    vertex = partial(command, vertex_api, tmp_path)
    done = vertex("upload", MINE, *FLAGS)
    assert done.status == 0, done.err
    assert "uploaded mine" in done.out
    done = vertex("schedule", "create", "mine", "--name", "nightly", "--cron", "0 3 * * *", "-p", "steps=7")
    assert done.status == 0, done.err
    done = vertex("schedule", "create", f"{OWN}:seeds", "--name", "of-a-file", "--cron", "0 4 * * *")
    assert "train-model has no accelerator" in done.err
    done = vertex("schedule", "create", f"{OWN}:seeds", "--name", "of-a-file", "--cron", "0 4 * * *", *FLAGS)
    assert done.status == 0, done.err
    assert {each.display_name for each in vertex_api.state.schedules.schedules.values()} == {"nightly", "of-a-file"}
    done = vertex("schedule", "create", "mine", "--name", "other", "--cron", "0 3 * * *", *FLAGS)
    assert "The uploaded mine is compiled already; --accelerator cannot change it" in done.err
    done = vertex("run", MINE, *FLAGS, "--json")
    assert done.status == 0, done.err
    (job,) = vertex_api.state.pipeline_jobs.jobs.values()
    assert job.pipeline_spec["root"]["dag"]["tasks"]["train-model"]


def test_its_data_in_a_bucket_is_looked_at_before_it_is_sent(vertex_api: VertexApi, tmp_path: Path) -> None:
    put_texts(vertex_api)
    data = ("-p", "task=text_classification", "-p", "model=bert-micro", "-p", "source=gs://example-bucket/texts")
    done = command(vertex_api, tmp_path, "run", MINE, *FLAGS, *data, "--json")
    assert done.status == 0, done.err
    vertex_api.storage.put("texts/1.jsonl", b'{"body": "one", "label": "a"}\n')
    done = command(vertex_api, tmp_path, "run", MINE, *FLAGS, *data)
    assert done.status == 2
    assert "has no column 'text'; it has body, label." in done.err
    wanted = ("schedule", "create", MINE, "--name", "nightly", "--cron", "0 3 * * *")
    done = command(vertex_api, tmp_path, *wanted, *FLAGS, *data)
    assert done.status == 0, done.err
    assert "warning: with the data as it is now, each run will fail: " in done.err
    assert len(vertex_api.state.pipeline_jobs.jobs) == 1


@pytest.mark.slow
def test_it_runs_there_from_the_data_to_the_registry(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, vertex_api.environment())
    from gpu_pipelines.emulator.pipeline_backend import PipelineBackend

    done = command(vertex_api, tmp_path, "run", MINE, *FLAGS, "-p", "steps=2", "--json")
    assert done.status == 0, done.err
    (job,) = vertex_api.state.pipeline_jobs.jobs.values()
    PipelineBackend(vertex_api, rehearse="cpu:1").run(job.name)
    job = vertex_api.state.pipeline_jobs.one(job.name)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join(vertex_api.state.logs.messages()[-60:])
    assert len(vertex_api.state.custom_jobs.jobs) == 3, "count, the training, and the evaluation"
    ((version,),) = vertex_api.state.models.versions.values()
    assert version.display_name == "digits"
