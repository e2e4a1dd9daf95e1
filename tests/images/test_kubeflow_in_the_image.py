"""A file compiled for Kubeflow, run in containers of the image: `make test-images`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import docker
import pytest
from docker.types import Mount

from gpu_pipelines.accelerators import plan
from gpu_pipelines.component_interface.image import STEPS_IMAGE
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.step_environment import REHEARSE, RUN
from gpu_pipelines.targets.kubeflow.target import MOUNT_PATH, KubeflowTarget

pytestmark = [pytest.mark.slow, pytest.mark.images]

IMAGE = os.environ.get("IMAGE", STEPS_IMAGE)
# KFP lets the engine remove a container that ended, then asks for it, and takes Podman's answer for a failure.
STAYS_A_WHILE = ["/bin/bash", "-c", '"$@"; status=$?; sleep 2; exit $status', "step"]


def test_a_compiled_file_runs_with_its_claim_mounted(tmp_path: Path) -> None:
    from kfp import components, local

    root, claim = tmp_path / "root", tmp_path / "claim"
    for folder in (tmp_path, root, claim):
        folder.mkdir(exist_ok=True)
        # The user of the image is none of this machine's.
        folder.chmod(0o777)
    target = KubeflowTarget(ProjectSettings(image=IMAGE), {REHEARSE: "cpu:2", RUN: "run-1"})
    text = target.text_of("train_evaluate_upload", plan("l4:1"))
    pipeline = components.load_component_from_text(text)
    mount = Mount(MOUNT_PATH, str(claim), type="bind")
    local.init(local.DockerRunner(entrypoint=STAYS_A_WHILE, mounts=[mount]), pipeline_root=str(root))
    steps = {"max_steps": 20, "checkpoint_every_steps": 10}
    task = pipeline(gates=["accuracy>=0"], model_name="digits", advanced=steps)
    checkpoints = sorted(path.name for path in (claim / "checkpoints" / "run-1").glob("step-*"))
    assert checkpoints == ["step-00000010", "step-00000020"]
    assert json.loads((claim / "registry/digits/model.json").read_text())["aliases"]["champion"] == 1
    assert (Path(task.outputs["best_checkpoint"].uri) / "evaluation.json").is_file()
    assert task.outputs["model"].metadata["place"].startswith(f"{MOUNT_PATH}/registry/digits")


def test_the_image_can_start_a_train_job() -> None:
    engine = docker.from_env()
    program = (
        "from gpu_pipelines.targets.kubeflow.in_cluster import node, train_job\n"
        "from kubeflow.trainer import TrainerClient, CustomTrainerContainer\n"
        "from kubeflow.trainer.options import RuntimePatch\n"
        "print('ready')"
    )
    said = engine.containers.run(IMAGE, ["python3", "-c", program], remove=True)
    assert b"ready" in said
