"""GCPC's launcher, unmodified, as its container runs it on Vertex AI Pipelines, on the payload of compiled files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import write_photos

from gpu_pipelines.components.data_prep.prepare import prepare_data
from gpu_pipelines.components.data_prep.settings import PrepareSettings

if TYPE_CHECKING:
    from vertex_api.server import VertexApi

COMPILED = Path(__file__).parents[2] / "compiled" / "train_evaluate_upload" / "vertex" / "h100-mega-8-2-nodes.yaml"


def test_train(vertex_api: VertexApi, tmp_path: Path) -> None:
    from vertex_api.payload import PipelineRun, executor_input_of, launcher_arguments

    prepare_data(PrepareSettings(source=str(write_photos(tmp_path / "source")), image_size=16), tmp_path / "dataset")
    run = PipelineRun(
        "gs://example-bucket/root",
        tmp_path / "files",
        {"max_steps": 6, "checkpoint_every_steps": 3, "global_batch_size": 16},
    )
    ei = executor_input_of(COMPILED, "train-model", run, {"dataset": str(tmp_path / "dataset")})
    (tmp_path / "files" / "train-model").mkdir(parents=True)
    command = launcher_arguments(COMPILED, "train-model", run, ei)
    state = vertex_api.state
    env = vertex_api.environment()
    state.replicas.run_jobs(
        "cpu:1", **{k: env[k] for k in ("STORAGE_EMULATOR_HOST", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT")}
    )
    state.custom_jobs.hold_s = 60
    import os

    done = subprocess.run(
        [sys.executable, *command[1:]],
        env={**os.environ, **vertex_api.proxy_environment()},
        capture_output=True,
        text=True,
        timeout=200,
    )
    print(done.stdout[-3000:], done.stderr[-3000:])
    print("\n".join(state.logs.messages()))
    print(list((tmp_path / "files").rglob("*")))
    import requests

    print("\n".join(i["name"] for i in requests.get(vertex_api.url + "/storage/v1/b/example-bucket/o").json()["items"]))
    print(done.returncode)
    assert 0
