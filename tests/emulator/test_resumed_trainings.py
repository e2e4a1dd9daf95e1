"""Whole pipelines that were stopped in the middle and go on: in another region, on this machine, and back again."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import command
from conftest import GPU_PIPELINES, newest_run
from sample_runs import ended, states

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PROJECT_FILE = "pipeline_root: gs://example-bucket/runs\nimage: eu.example/steps:1\n"
STEPS = 3000
GIVEN = {
    "task": "regression",
    "source": "gs://example-bucket/numbers/all.csv",
    "model": "mlp-small",
    "model_name": "numbers",
    "global_batch_size": 16,
    "advanced": json.dumps({"max_steps": STEPS, "checkpoint_every_steps": 250, "smoke_test": False}),
    "gates": "[]",
}
PARAMETERS = [part for name, value in GIVEN.items() for part in ("-p", f"{name}={value}")]
ON_VERTEX = ("--target", "vertex", "--accelerator", "l4:1")


def run(api: VertexApi, folder: Path, *arguments: str) -> str:
    """Submits a run on Vertex AI; gives its name."""
    before = set(api.state.pipeline_jobs.jobs)
    done = command("run", *arguments, cwd=folder, environment=api.environment())
    assert done.status == 0, done.err
    (name,) = set(api.state.pipeline_jobs.jobs) - before
    return name


def await_checkpoint(api: VertexApi, known: set[Path]) -> None:
    """Waits for the first checkpoint of a training."""
    until = time.monotonic() + 400
    while not {*api.folder.glob("gcs/example-bucket/runs/checkpoints/*/step-*/checkpoint.json")} - known:
        assert time.monotonic() < until, "\n".join(api.state.logs.messages()[-40:])
        time.sleep(0.05)


def weights(api: VertexApi) -> list[str]:
    """Hashes of the weights of the last checkpoints of all trainings in the bucket."""
    found = sorted(api.folder.glob(f"gcs/example-bucket/runs/checkpoints/*/step-{STEPS:08}"))
    return [
        hashlib.sha256(b"".join(each.read_bytes() for each in sorted(folder.glob("**/*.safetensors")))).hexdigest()
        for folder in found
    ]


def succeeded(api: VertexApi, name: str) -> Any:
    job = ended(api, name, 500)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join(api.state.logs.messages()[-60:])
    return job


@pytest.mark.slow
def test_a_training_that_was_cancelled_ends_with_the_same_bits(vertex_emulator: VertexApi, tmp_path: Path) -> None:
    """In another region; then from there on this machine, and from here on Vertex AI again."""
    api = vertex_emulator
    (tmp_path / "gpu-pipelines.yaml").write_text(PROJECT_FILE)
    lines = "".join(f"{n % 7},{n % 5},{n % 3}\n" for n in range(200))
    api.storage.put("numbers/all.csv", f"a,b,label\n{lines}".encode())
    succeeded(api, run(api, tmp_path, "train_evaluate_upload", *ON_VERTEX, *PARAMETERS))
    (undisturbed,) = weights(api)
    known = {*api.folder.glob("gcs/example-bucket/runs/checkpoints/*/step-*/checkpoint.json")}
    first = run(api, tmp_path, "train_evaluate_upload", *ON_VERTEX, *PARAMETERS, "-p", "model_name=other")
    await_checkpoint(api, known)
    assert command("cancel", first, cwd=tmp_path, environment=api.environment()).status == 0
    job = ended(api, first)
    assert states(job)["train-model"] == "CANCELLED"
    before = len(api.state.logs.messages())
    there = run(api, tmp_path, "--resume", first, "--target", "vertex", "--region", "europe-west4")
    job = succeeded(api, there)
    steps = {"train-model", "evaluate-checkpoints", "upload-model"}
    assert set(states(job)) == {*steps, "prepare-data-dataset", "prepare-data-report"}
    assert any("continuing from step-" in line for line in api.state.logs.messages()[before:])
    assert weights(api) == [undisturbed] * 2
    names = {version.display_name for versions in api.state.models.versions.values() for version in versions}
    assert names == {"numbers", "other"}
    here_and_back(api, tmp_path, first)
    assert weights(api) == [undisturbed] * 2


def here_and_back(api: VertexApi, folder: Path, first: str) -> None:
    """Goes on with a run here, stops that in its evaluation, and goes on with it on Vertex AI."""
    here = [str(GPU_PIPELINES), "run", "--resume", first, "--accelerator", "cpu:1"]
    environment = {**os.environ, **api.environment()}
    with subprocess.Popen(here, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        while not process.stdout.readline().startswith("evaluate-checkpoints: started"):
            assert process.poll() is None
        # Once: a second one would end it at once, and a line that is interrupted may be there twice.
        process.send_signal(signal.SIGTERM)
        process.communicate()
    record = newest_run(folder)
    assert record["status"] == "interrupted", record
    assert {step["name"]: step["status"] for step in record["steps"]}["prepare-data"] == "reused"
    back = run(api, folder, "--resume", record["run_id"], *ON_VERTEX)
    assert set(states(succeeded(api, back))) >= {"evaluate-checkpoints", "upload-model"}
    assert "train-model" not in states(api.state.pipeline_jobs.one(back))
