"""The whole pipeline as a VM runs it: the start-up script by bash, its container as a process, all storage real."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from answering_posts import answering_posts
from command_line import command
from compute_api import serving
from conftest import PIPELINE, set_variables
from standins import Ran, Vm

from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.targets.compute_engine.startup import StartupSettings
from gpu_pipelines.targets.container import Container

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_pipelines.emulator.vertex_api import VertexApi

ROOT = "gs://example-bucket/root"
PLACE = ("--target", "compute_engine", "--pipeline-root", ROOT)


@pytest.mark.slow
def test_a_preempted_run_goes_on_and_leaves_model_report_and_record(
    vertex_api: VertexApi, no_project_settings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_variables(monkeypatch, vertex_api.environment())
    with serving() as api, answering_posts(lambda body: {}) as (hook, messages):
        secret = vertex_api.state.secrets.put("example-project", "hook", hook)
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", f"{api.address}/compute/v1/")
        given = {"source": "sample:digits", "max_steps": 300, "checkpoint_every_steps": 10, "smoke_test": "false"}
        done = command(
            *("run", PIPELINE, "--accelerator", "l4:2", "--strategy", "spot", "--json", *PLACE),
            *("--image", "us-docker.pkg.dev/p/r/steps:1", "--notify", f"webhook:{secret}"),
            *(part for name, value in given.items() for part in ("-p", f"{name}={value}")),
        )
        assert done.status == 0, done.err
        run = json.loads(done.out)["run"]
        folder = RemoteFolder(f"{ROOT}/runs/{run}")
        vm = machine(tmp_path / "vm", folder.uri)
        first = preempted_in_training(vm, folder)
        assert first.status == 75, first.out
        assert "train-model: started" in first.out
        assert json.loads(folder.read("run.json"))["status"] == "running"
        (vm.folder / "preempted").unlink()
        second = vm.end(vm.start(), timeout=400)
        assert second.status == 0, second.out
        assert "prepare-data: reused" in second.out
        assert second.called("shutdown")
        (message,) = messages
        assert (message["outcome"], message["link"]) == ("promoted", folder.uri)
        assert message["cost"].startswith("about $")
        followed = command("follow", run, *PLACE)
    assert followed.status == 0, followed.err
    assert "registered digits version 1 as challenger and champion in vertex://" in followed.out
    assert f"report: {folder.uri}/report.html" in followed.out
    told: dict[str, Any] = json.loads(folder.read("run.json"))
    assert told["record"]["model"]["aliases"] == ["challenger", "champion"]
    names = folder.names()
    assert {"report.html", "logs/train-model.log"} <= set(names)
    assert any(name.startswith("checkpoints/step-") for name in names)
    # It went on from where it was, and did not begin anew.
    assert "continuing from step-" in folder.read("logs/train-model.log").decode()
    again = vm.run()
    assert "ended at an earlier start" in again.out


def machine(folder: Path, uri: str) -> Vm:
    """A VM whose container is a process with the test's own interpreter, and whose volume is a folder."""
    folder.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in ("PATH", "HOME")}
    module = "gpu_pipelines.targets.compute_engine.runs"
    return Vm(
        folder,
        training=f'exec {sys.executable} -m {module} {uri} "$STANDINS/state/work"',
        environment=kept,
        settings=StartupSettings(
            "run", "us-central1-a", 2, Container("steps:1"), driver_seconds=0, work_directory="/work"
        ),
    )


def preempted_in_training(vm: Vm, folder: RemoteFolder) -> Ran:
    """Starts the VM, and takes it away when the training has written a checkpoint."""
    process = vm.start()
    deadline = time.monotonic() + 300
    while not any(name.startswith("checkpoints/step-") for name in folder.names()):
        assert process.poll() is None, vm.end(process).out
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (vm.folder / "preempted").touch()
    return vm.end(process, timeout=100)
