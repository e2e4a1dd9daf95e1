"""The start-up script of a VM, run by bash with stand-ins for the programs that a VM has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from standins import BUCKET, PROGRAMS, Vm

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.compute_engine.startup import StartupSettings, startup_script
from gpu_pipelines.targets.container import Container

IMAGE = "us-docker.pkg.dev/p/r/t:1"
#: What a shell would take apart, or run.
AWKWARD = [
    "two words",
    "it's",
    'say "hi"',
    "$HOME",
    "$(touch run)",
    "`touch run`",
    "a\nb",
    "",
    "*",
    "a\\",
    "#x",
    "é",
]


@pytest.fixture
def vm(tmp_path: Path) -> Vm:
    return Vm(tmp_path)


def test_a_training_gets_its_image_its_arguments_and_all_gpus_and_then_the_vm_stops(vm: Vm) -> None:
    container = Container(IMAGE, ["python", "-m", "my trainer"], AWKWARD)
    ran = vm.told(
        container=container, environment={"NAME": "$(touch run) it's"}, output_directory=f"{BUCKET}/run"
    ).run()
    assert ran.status == 0, ran.out
    assert "2 NVIDIA L4" in ran.out
    assert ran.called("gcloud", "auth") == [["gcloud", "auth", "configure-docker", "us-docker.pkg.dev", "--quiet"]]
    assert ran.called("docker", "pull") == [["docker", "pull", "--quiet", IMAGE]]
    (run,) = ran.called("docker", "run")
    options, words = run[: run.index(IMAGE)], run[run.index(IMAGE) + 1 :]
    assert words == ["-m", "my trainer", *AWKWARD]
    assert {"--entrypoint=python", "--env=NAME=$(touch run) it's"} <= set(options)
    assert f"--env=AIP_CHECKPOINT_DIR={BUCKET}/run/checkpoints/" in options
    assert options[options.index("--gpus") + 1] == "all"
    assert ran.called("shutdown") == [["shutdown", "-h", "now"]]
    (log,) = (vm.bucket / "run" / "vm-logs").iterdir()
    assert "trained" in log.read_text()
    assert ran.out.startswith(log.read_text()), "the serial port shows what the log has"
    assert not Path("run").exists(), "an argument was run"


def test_a_training_that_has_ended_is_not_begun_again_and_the_vm_can_be_entered(vm: Vm) -> None:
    assert vm.run().status == 0
    again = vm.run()
    assert again.status == 0
    assert not again.called("nvidia-smi")
    assert not again.called("docker")
    assert not again.called("shutdown")
    assert "ended at an earlier start" in again.out


@pytest.mark.parametrize("number", [1, 4])
def test_a_wrong_number_of_gpus_ends_the_vm_before_anything_is_pulled(vm: Vm, number: int) -> None:
    vm.gpus = ["NVIDIA L4"] * number
    ran = vm.run()
    assert ran.status == 1
    assert f"nvidia-smi shows {number} GPUs; the plan has 2" in ran.out
    assert not ran.called("docker")
    assert ran.called("shutdown")


def test_a_driver_that_never_comes_ends_the_vm_with_what_it_says(vm: Vm) -> None:
    vm.gpus = []
    ran = vm.run()
    assert ran.status == 1
    assert "no devices were found" in ran.out
    assert ran.called("shutdown")


def test_a_driver_that_hangs_ends_the_vm(vm: Vm) -> None:
    vm.programs = {"nvidia-smi": "exec sleep 60"}
    ran = vm.run()
    assert ran.status == 1
    assert "nvidia-smi does not answer" in ran.out
    assert ran.called("shutdown")


def test_a_disk_that_takes_no_log_ends_the_vm(vm: Vm) -> None:
    (vm.folder / "state").touch()
    ran = vm.run()
    assert ran.status == 1
    assert "gpu-pipelines: error: a log cannot be written in" in ran.out
    assert "gpu-pipelines: the start-up script ends with exit status 1" in ran.out
    assert not ran.called("docker")
    assert ran.called("shutdown")


def test_an_image_is_asked_for_again_where_docker_or_the_registry_is_not_ready(vm: Vm) -> None:
    pull = 'mkdir "$STANDINS/asked" 2>/dev/null && { echo "Cannot connect to the Docker daemon" >&2; exit 1; }'
    vm.programs = {"docker": PROGRAMS["docker"].replace('exit "${PULL_STATUS:-0}"', f"{pull}; exit 0")}
    ran = vm.told(pull_pauses=(0.1, 60)).run()
    assert ran.status == 0, ran.out
    assert len(ran.called("docker", "pull")) == 2
    assert "trained" in ran.out


def test_an_image_that_cannot_be_pulled_ends_the_vm_and_says_which_role_is_missing(vm: Vm) -> None:
    vm.environment = {"PULL_STATUS": "1"}
    ran = vm.told(container=Container("docker.io/library/x:1")).run()
    assert ran.status == 1
    assert "roles/artifactregistry.reader" in ran.out
    assert not ran.called("docker", "run")
    assert not ran.called("gcloud", "auth"), "no Artifact Registry"


@pytest.mark.parametrize(
    ("at_end", "denied", "deleted", "stopped"),
    [
        ("stop", "0", False, True),
        ("delete", "0", True, False),
        ("delete", "1", True, True),
        ("keep", "0", False, False),
    ],
)
def test_a_training_that_fails_ends_the_vm_as_one_that_does_not(
    vm: Vm, at_end: str, denied: str, deleted: bool, stopped: bool
) -> None:
    vm.training, vm.environment = "echo no more memory >&2; exit 3", {"DELETE_STATUS": denied}
    ran = vm.told(at_end=at_end, output_directory=BUCKET).run()
    assert ran.status == 3
    assert "failed with exit status 3" in ran.out
    assert bool(ran.called("shutdown")) is stopped
    expected = ["gcloud", "compute", "instances", "delete", "train-l4-2", "--zone=us-central1-a", "--quiet"]
    assert ran.called("gcloud", "compute") == ([expected] if deleted else [])
    (log,) = (vm.bucket / "vm-logs").iterdir()
    assert "no more memory" in log.read_text()
    assert vm.run().called("docker", "run"), "the next start tries again"


@pytest.mark.parametrize("preempted", [True, False])
def test_a_training_told_to_stop_writes_a_checkpoint_that_is_copied_and_the_next_start_continues(
    vm: Vm, preempted: bool
) -> None:
    vm.training = """trap 'echo saved >"$STANDINS/state/synced/step-2"; exit 75' TERM
    ls "$STANDINS/state/synced"; touch "$STANDINS/begun"; while true; do sleep 0.1; done"""
    vm.told(output_directory=f"{BUCKET}/run", sync_directory="/checkpoints", at_end="delete")
    ran = vm.stopped_when("begun", preempted=preempted)
    assert ran.status == 75, ran.out
    assert (vm.bucket / "run" / "checkpoints" / "step-2").read_text() == "saved\n"
    assert ran.called("docker", "stop") == [["docker", "stop", "-t", "20", "training"]]
    assert not ran.called("shutdown"), "Compute Engine ends the VM itself"
    assert not ran.called("gcloud", "compute")
    (vm.folder / "begun").unlink()
    (vm.folder / "preempted").unlink(missing_ok=True)
    # A new VM: what it knows is in the bucket.
    (vm.synced / "step-2").unlink()
    vm.training = 'cat "$STANDINS/state/synced/step-2"'
    again = vm.run()
    assert again.status == 0
    assert "saved" in again.out


def test_checkpoints_are_copied_while_the_training_runs(vm: Vm) -> None:
    vm.training = """echo 1 >"$STANDINS/state/synced/step-1"
    for _ in {1..200}; do [ -e "$STANDINS/bucket/checkpoints/step-1" ] && exit 0; sleep 0.05; done; exit 9"""
    ran = vm.told(output_directory=f"{BUCKET}/", sync_directory="/checkpoints", sync_seconds=0.2).run()
    assert ran.status == 0, ran.out
    (run,) = ran.called("docker", "run")
    assert f"--volume={vm.synced}:/checkpoints" in run
    assert len(ran.called("gcloud", "storage", "rsync")) > 1
    assert not (vm.folder / "two-at-once").exists(), "the last copy waits for the one before"


def test_a_work_directory_is_on_the_disk_of_the_vm_and_any_user_of_the_image_may_write_it(vm: Vm) -> None:
    vm.training = 'touch "$STANDINS/state/work/prepared"; exit 75'
    ran = vm.told(work_directory="/work").run()
    (run,) = ran.called("docker", "run")
    work = vm.folder / "state" / "work"
    assert f"--volume={work}:/work" in run
    assert work.stat().st_mode & 0o7777 == 0o1777
    vm.training = 'ls "$STANDINS/state/work"'
    assert "prepared" in vm.run().out, "the next start has it"


def test_checkpoints_that_cannot_be_read_end_the_vm_rather_than_begin_anew(vm: Vm) -> None:
    (vm.bucket / "checkpoints").mkdir(parents=True)
    vm.environment = {"STORAGE_DENIED": "yes"}
    ran = vm.told(output_directory=BUCKET, sync_directory="/checkpoints").run()
    assert ran.status == 1
    assert "403 no access" in ran.out
    assert not ran.called("docker", "run")


def test_maintenance_that_ends_the_vm_does_not_delete_it(vm: Vm) -> None:
    vm.training, vm.environment = "exit 143", {"SYSTEM_STATE": "stopping"}
    ran = vm.told(at_end="delete").run()
    assert ran.status == 75
    assert not ran.called("gcloud", "compute")
    assert not ran.called("shutdown")


@pytest.mark.parametrize("arguments", [[], AWKWARD])
def test_shellcheck_finds_nothing(tmp_path: Path, arguments: list[str]) -> None:
    container = Container(IMAGE, ["python"] if arguments else [], arguments)
    settings = StartupSettings("a", "us-central1-a", 1, container, output_directory=BUCKET, sync_directory="/c")
    path = tmp_path / "startup.sh"
    path.write_text(startup_script(settings))
    # SC2016, SC1003: arguments in single quotes may look like an expansion or an escape; none is meant.
    command = [Path(sys.executable).with_name("shellcheck"), "--exclude=SC2016,SC1003", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_script_that_is_too_long_for_the_metadata_is_refused() -> None:
    settings = StartupSettings("a", "us-central1-a", 1, Container(IMAGE, (), ["x" * 262_144]))
    with pytest.raises(UserError, match="262,144"):
        startup_script(settings)
