"""The start-up script with a real container of the steps' image: `make test-images`. Needs a Docker engine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from standins import BUCKET, Vm

from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.targets.container import Container

pytestmark = [pytest.mark.slow, pytest.mark.images]

IMAGE = os.environ.get("IMAGE", STEPS_IMAGE)
#: The engine here has no GPU, no registry to pull the image from, and may have to keep to a limit on locked memory.
DOCKER = """words=()
while (($#)); do
  case $1 in --gpus | --ulimit) shift 2 ;; *) words+=("$1"); shift ;; esac
done
[ "${words[0]}" != pull ] || exec "$REAL_DOCKER" image inspect "${words[2]}"
exec "$REAL_DOCKER" "${words[@]}"
"""
TRAINING = """
import os, pathlib, signal, sys, time
place = pathlib.Path("/checkpoints")
def stop(*_):
    (place / "step-2").write_text("saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print("arguments", sys.argv[1:], os.environ["AIP_CHECKPOINT_DIR"], flush=True)
if (place / "step-2").exists():
    (place / "step-2").unlink()
    sys.exit(0)
(place / "begun").touch()
time.sleep(60)
"""


def test_a_container_is_told_to_stop_writes_as_its_own_user_and_continues(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    assert docker, "There is no docker."
    arguments = ["it's", "two words", "$HOME"]
    vm = Vm(tmp_path, programs={"docker": DOCKER})
    vm.environment = {"REAL_DOCKER": docker, **{n: os.environ[n] for n in ("DOCKER_HOST",) if n in os.environ}}
    vm.told(
        container=Container(IMAGE, ["python3", "-c", TRAINING], arguments),
        output_directory=f"{BUCKET}/run",
        sync_directory="/checkpoints",
    )
    tmp_path.chmod(0o755)
    ran = vm.stopped_when("state/synced/begun", preempted=False)
    assert ran.status == 75, ran.out
    assert f"arguments {arguments} {BUCKET}/run/checkpoints/" in ran.out
    assert (vm.bucket / "run" / "checkpoints" / "step-2").read_text() == "saved"
    shutil.rmtree(tmp_path / "state")
    again = vm.run()
    assert again.status == 0, again.out
    assert again.called("shutdown")
