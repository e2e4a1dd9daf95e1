"""`run`, `follow` and `cancel` on a VM: the real gcloud and storage client, and the start-up script with stand-ins."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from command_line import command
from compute_api import ComputeApi
from conftest import PIPELINE, Finished

from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import ProcessFailedError, as_data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROOT = "gs://bucket/root"
FROM = "Nov 22 09:00:00 vm google_metadata_script_runner[900]: startup-script: "
PLACE = ("--project", "my-project", "--pipeline-root", ROOT)
ON_A_VM = (
    *("run", PIPELINE, "--target", "compute_engine", "--accelerator", "l4:2", "--region", "us-central1"),
    *("--image", "us-docker.pkg.dev/p/r/steps:1", *PLACE),
    *("-p", "source=sample:digits", "-p", "epochs=2"),
)

pytestmark = pytest.mark.usefixtures("no_project_settings", "bucket")


def submitted(*arguments: str) -> dict[str, Any]:
    done = command(*ON_A_VM, *arguments, "--json")
    assert done.status == 0, done.err
    document: dict[str, Any] = json.loads(done.out)
    return document


def state(run: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RemoteFolder(f"{ROOT}/runs/{run}").read("run.json"))
    return content


def become(run: str, **values: Any) -> None:
    """What the program on the VM writes."""
    RemoteFolder(f"{ROOT}/runs/{run}").write("run.json", json.dumps({**state(run), **values}).encode())


def followed(run: str) -> Finished:
    return command("follow", run, "--target", "compute_engine", *PLACE, "--interval", "0.1")


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_dry_run_shows_the_vm_its_price_and_what_it_is_told(compute_api: ComputeApi) -> None:
    told = ("--notify", "slack:projects/p/secrets/hook/versions/latest")
    done = command(*ON_A_VM, "--strategy", "spot", "--at-end", "delete", *told, "--dry-run")
    assert done.status == 0, done.err
    assert "l4:2 on g2-standard-24: 2 GPUs, spot" in done.err
    assert "USD per hour" in done.err
    assert "  --provisioning-model=SPOT \\\n  --instance-termination-action=STOP" in done.out
    assert "--scopes=https://www.googleapis.com/auth/cloud-platform" in done.out
    shown = done.out.partition("/request.json\n")[2]
    assert json.loads(shown)["arguments"]["epochs"] == 2
    assert json.loads(shown)["told"]["notify"] == ["slack:projects/p/secrets/hook/versions/latest"]
    assert json.loads(shown)["dollars_per_hour"] > 0
    said = json.loads(command(*ON_A_VM, "--dry-run", "--json").out)
    assert said["command"][:4] == ["gcloud", "compute", "instances", "create"]
    assert said["request"]["arguments"]["epochs"] == 2
    assert compute_api.instances == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-p", "registry=./models"), "The registry ./models would be a directory of the container, lost at its end."),
        (("-p", "source=./photos"), "The source ./photos is not where Compute Engine can read it."),
        (("--web-access",), "The target compute_engine has no --web-access.\n  It belongs to vertex."),
        (("--nodes", "2"), "A VM is one machine, not 2."),
        (("--zone", "europe-west4-a"), "--zone europe-west4-a is in europe-west4, not in --region us-central1."),
        (("--accelerator", "cpu:2"), "cpu:2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_a_vm_cannot_do_is_refused_before_anything_is_sent(
    compute_api: ComputeApi, arguments: tuple[str, ...], told: str
) -> None:
    done = command(*ON_A_VM, *arguments)
    assert (done.status, done.out) == (2, "")
    assert told in done.err
    assert compute_api.instances == []


OF_A_CLUSTER = """
from kfp import dsl, kubernetes


@dsl.component(base_image="python:3.11")
def read():
    pass


@dsl.pipeline(name="of-a-cluster")
def of_a_cluster():
    step = read()
    kubernetes.use_secret_as_env(step, "keys", {"token": "TOKEN"})
    kubernetes.empty_dir_mount(step, "shared", "/dev/shm", "Memory", "1Gi")
"""


def test_a_secret_of_a_cluster_is_refused_before_a_vm_is_there(compute_api: ComputeApi, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OF_A_CLUSTER)
    arguments = [part for part in ON_A_VM if part not in ("-p", "source=sample:digits", "epochs=2")]
    arguments[arguments.index(PIPELINE)] = str(tmp_path / "own.py")
    done = command(*arguments)
    assert (done.status, done.out) == (2, "")
    assert "Only Kubernetes has the variable TOKEN of the secret keys (read).\n" in done.err
    assert compute_api.instances == []


def test_a_pipeline_whose_name_begins_with_a_digit_has_a_vm_all_the_same(
    compute_api: ComputeApi, tmp_path: Path
) -> None:
    own = OF_A_CLUSTER.replace("of-a-cluster", "2 steps").partition("    kubernetes.use_secret")[0]
    (tmp_path / "own.py").write_text(own)
    arguments = [part for part in ON_A_VM if part not in ("-p", "source=sample:digits", "epochs=2")]
    arguments[arguments.index(PIPELINE)] = str(tmp_path / "own.py")
    done = command(*arguments, "--dry-run")
    assert done.status == 0, done.err
    assert "gcloud compute instances create run-2-steps-" in done.out


def test_a_spot_vm_that_was_preempted_is_started_again_until_its_run_has_succeeded(compute_api: ComputeApi) -> None:
    compute_api.exhausted = {"us-central1-a"}
    run = submitted("--strategy", "spot")["run"]
    (vm,) = compute_api.instances
    assert (vm.name, vm.zone) == (run, state(run)["vm"]["zone"])
    assert vm.scheduling.instance_termination_action == "STOP"
    script = next(item.value for item in vm.metadata.items if item.key == "startup-script")
    assert f"words=(-m gpu_pipelines.targets.compute_engine.runs {ROOT}/runs/{run} /work)" in script
    assert json.loads(RemoteFolder(f"{ROOT}/runs/{run}").read("request.json"))["settings"]["pipeline_root"] == ROOT
    compute_api.serial[run] = f"a kernel boots\n{FROM}train-model: step 7\n{FROM}not yet who"

    def happens() -> None:
        # Whoever follows has read the line when it is the VM's turn to stop.
        time.sleep(1)
        compute_api.stop(run)
        soon(lambda: compute_api.started)
        compute_api.serial[run] = f"{FROM}train-model: goes on at step 7\n"
        time.sleep(0.5)
        become(run, status="succeeded", shown=["registered digits version 1"])

    vm_life = threading.Thread(target=happens)
    vm_life.start()
    done = followed(run)
    vm_life.join()
    assert done.status == 0, done.err
    assert compute_api.started == [run]
    assert "a kernel boots" not in done.out
    assert "not yet" not in done.out
    lines = [line.strip() for line in done.out.splitlines()]
    begun, preempted = lines.index("train-model: step 7"), next(n for n, x in enumerate(lines) if "preempted" in x)
    assert begun < preempted < lines.index("train-model: goes on at step 7")
    assert lines[-2:] == ["registered digits version 1", f"folder: {ROOT}/runs/{run}"]


@pytest.mark.slow
def test_a_run_is_followed_through_an_outage_of_the_service_unless_it_lasts(compute_api: ComputeApi) -> None:
    run = submitted("--strategy", "spot")["run"]
    become(run, status="succeeded", shown=["registered digits version 1"])
    compute_api.outages = 4
    done = followed(run)
    assert done.status == 0, done.err
    assert "registered digits version 1" in done.out
    compute_api.outages = 5
    done = followed(run)
    assert done.status == 2
    assert f"The state of {run} cannot be read: The service is currently unavailable." in done.err


def test_a_run_that_failed_or_was_cancelled_says_so_and_its_vm_is_not_started_again(compute_api: ComputeApi) -> None:
    run = submitted("--strategy", "spot")["run"]
    error = ProcessFailedError("prepare-data failed: there are no rows", "Its log: here")
    become(run, status="failed", error=as_data(error))
    compute_api.stop(run)
    done = followed(run)
    assert done.status == 1
    assert "error: prepare-data failed: there are no rows\n  Its log: here" in done.err
    # The script itself failed: the run does not know of it, its log does.
    become(run, status="starting", error=None)
    said = "09:00:00 gpu-pipelines: error: the image cannot be pulled\n"
    RemoteFolder(f"{ROOT}/runs/{run}").write(
        "vm-logs/a.log", f"{said}09:00:01 gpu-pipelines: the start-up script ends with exit status 1\n".encode()
    )
    done = followed(run)
    assert done.status == 1
    assert "failed: the image cannot be pulled" in done.err
    assert state(run)["error"]["kind"] == "process_failed"
    assert compute_api.started == []
    # Cancelled while it runs.
    become(run, status="running")
    gone = command("cancel", run, "--target", "compute_engine", *PLACE)
    assert gone.status == 0, gone.err
    assert (compute_api.instances, state(run)["status"]) == ([], "cancelled")
    assert "was cancelled" in followed(run).err
    missing = followed("no-such-run")
    assert missing.status == 2
    assert "There is no run no-such-run on Compute Engine" in missing.err


def test_a_vm_that_somebody_stops_or_deletes_is_told_with_the_way_to_go_on(compute_api: ComputeApi) -> None:
    run = submitted()["run"]
    compute_api.stop(run)
    done = followed(run)
    assert done.status == 1
    assert f"was stopped before the run ended.\n  gcloud compute instances start {run}" in done.err
    become(run, status="running", error=None)
    compute_api.instances = []
    assert f"-p checkpoint_uri={ROOT}/runs/{run}/checkpoints" in followed(run).err


@pytest.mark.slow
def test_a_run_that_failed_goes_on_on_its_vm(compute_api: ComputeApi) -> None:
    run = submitted()["run"]
    resume = ("run", "--resume", run, "--target", "compute_engine", *PLACE)
    assert "has not ended: it is starting" in command(*resume).err
    become(run, status="failed", error=as_data(ProcessFailedError("upload-model failed: the registry is away")))
    compute_api.stop(run)
    assert f"instances start {run}" in command(*resume, "--dry-run").out
    assert run in json.loads(command(*resume, "--dry-run", "--json").out)["command"]
    assert "without another pipeline or other parameters" in command(*resume, "-p", "epochs=2").err
    assert compute_api.started == []
    done = command(*resume)
    assert done.status == 0, done.err
    assert f"goes on: {run}" in done.out
    assert compute_api.started == [run]
    assert (state(run)["status"], state(run)["error"]) == ("starting", None)
    become(run, status="succeeded")
    assert "has succeeded, so there is nothing to resume" in command(*resume).err
    become(run, status="failed")
    compute_api.instances.clear()
    gone = command(*resume)
    assert (gone.status, f"-p checkpoint_uri={ROOT}/runs/{run}/checkpoints" in gone.err) == (2, True)


@pytest.mark.slow
def test_a_resumed_run_that_is_preempted_before_it_has_a_log_has_not_failed_again(compute_api: ComputeApi) -> None:
    run = submitted("--strategy", "spot")["run"]
    become(run, status="failed", error=as_data(ProcessFailedError("upload-model failed: the registry is away")))
    said = b"09:00:01 gpu-pipelines: the start-up script ends with exit status 1\n"
    RemoteFolder(f"{ROOT}/runs/{run}").write(f"vm-logs/{run}-20261122-090000-abc.log", said)
    compute_api.stop(run)
    assert command("run", "--resume", run, "--target", "compute_engine", *PLACE).status == 0
    compute_api.stop(run)

    def happens() -> None:
        soon(lambda: len(compute_api.started) == 2)
        become(run, status="succeeded", shown=[])

    vm_life = threading.Thread(target=happens)
    vm_life.start()
    done = followed(run)
    vm_life.join()
    assert done.status == 0, done.err
    assert "was preempted; starting it again" in done.out


@pytest.mark.slow
def test_the_zone_that_is_asked_is_written_down_before_it_has_answered(compute_api: ComputeApi) -> None:
    before = set(RemoteFolder(f"{ROOT}/runs").names())
    compute_api.exhausted, compute_api.without = {"us-east4-a"}, {"us-east4-c"}
    arguments = ["us-east4" if each == "us-central1" else each for each in ON_A_VM]
    assert command(*arguments).status == 2
    [left] = [name for name in RemoteFolder(f"{ROOT}/runs").names() if name not in before and name.endswith("run.json")]
    assert state(left.partition("/")[0])["vm"]["zone"] == "us-east4-c"


@pytest.mark.slow
def test_a_bucket_that_the_vm_may_not_use_is_told_without_a_traceback(compute_api: ComputeApi, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "gpu_pipelines.targets.compute_engine.runs", f"{ROOT}/runs/not-there", tmp_path]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: There is no run not-there on Compute Engine")
    run = submitted()["run"]
    compute_api.serial[run] = "".join(
        f"{FROM}{line}\n"
        for line in (
            f"error: {ROOT}/runs/{run}/request.json cannot be read: Forbidden: trainer has no storage.objects.get.",
            "  Check the bucket's name and the account's permissions.",
            "09:00:01 gpu-pipelines: the training failed with exit status 1",
            "09:00:01 gpu-pipelines: the start-up script ends with exit status 1",
        )
    )
    told = followed(run)
    assert told.status == 1
    assert "failed: gs://bucket/root" in told.err
    assert "Forbidden: trainer has no storage.objects.get.\n" in told.err
