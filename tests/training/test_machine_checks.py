"""What is found out in the first second: the wrong machine, the wrong build, too little shared memory, a rehearsal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from started_training import run_training
from trainings import numbers_dataset

from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.artifacts.checkpoint import complete_checkpoints, read_configuration
from gpu_pipelines.training.machine.local_devices import build_problem
from gpu_pipelines.training.metrics import peak_memory
from gpu_pipelines.training.settings import TrainingSettings

CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


def test_the_memory_of_a_rehearsal_beside_gpus_is_that_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert peak_memory() > 1e6


@pytest.mark.parametrize(
    ("capability", "fits"),
    [((7, 5), True), ((8, 0), True), ((8, 9), True), ((9, 0), True), ((7, 0), False), ((6, 0), False), ((12, 1), True)],
)
def test_a_build_fits_gpus_of_its_generations(capability: tuple[int, int], fits: bool) -> None:
    assert (build_problem("GPU", capability, CUDA_13, "2.13.0+cu130") == "") == fits


def test_a_build_that_does_not_fit_says_what_the_gpu_needs() -> None:
    problem = build_problem("Tesla V100-SXM2-16GB", (7, 0), CUDA_13, "2.13.0+cu130")
    assert "2.13.0+cu130 was not built for the Tesla V100-SXM2-16GB (compute capability 7.0" in problem
    assert load_catalog().gpus["v100"].pytorch in problem


def test_a_build_for_one_family_alone_fits_it() -> None:
    assert build_problem("H100", (9, 0), ["sm_90a"], "2.13.0") == ""


IN_SMALL_SHM = """
import sys
from gpu_pipelines.training.machine.local_devices import shared_memory_problem
print(shared_memory_problem(int(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("size", "gpus", "found"),
    [("64m", 2, "error"), ("64m", 1, ""), ("512m", 8, "warning"), ("2g", 8, "")],
)
def test_shared_memory_too_small_for_several_gpus_is_found(size: str, gpus: int, found: str) -> None:
    script = 'mount -t tmpfs -o size="$1" tmpfs /dev/shm && exec "$2" -c "$3" "$4"'
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-ec", script, "sh", size, sys.executable, IN_SMALL_SHM, str(gpus)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    error, warning = eval(done.stdout)
    assert bool(error) == (found == "error")
    assert bool(warning) == (found == "warning")
    assert not (error or warning) or "--shm-size=1g" in error + warning


def test_gpus_that_are_not_there_end_the_training_before_any_data_is_read(tmp_path: Path) -> None:
    ended = run_training(
        TrainingSettings(),
        tmp_path / "no dataset",
        str(tmp_path / "run"),
        environment={"GPU_PIPELINES_ACCELERATOR": "h100:8"},
    )
    assert ended.status == 1
    assert "placed on h100:8, but PyTorch sees 0 GPUs" in ended.text
    assert "GPU_PIPELINES_REHEARSE=cpu:2" in ended.text
    assert "no dataset" not in ended.text


@pytest.mark.slow
def test_a_rehearsal_runs_on_cpu_processes_says_so_and_marks_what_it_leaves(tmp_path: Path) -> None:
    settings = TrainingSettings(model="mlp-small", max_steps=2, checkpoint_every_steps=2, global_batch_size=8)
    variables = {"GPU_PIPELINES_ACCELERATOR": "h100:8", "GPU_PIPELINES_REHEARSE": "cpu:1"}
    ended = run_training(settings, numbers_dataset(tmp_path), str(tmp_path / "run"), environment=variables)
    assert ended.status == 0, ended.text
    assert "REHEARSAL: 1 CPU processes in place of the accelerators" in ended.text
    (checkpoint,) = complete_checkpoints(tmp_path / "run")
    assert checkpoint.info.rehearsal
    assert read_configuration(tmp_path / "run")["devices"]["rehearsal"] is True


def test_a_rehearsal_on_gpus_is_refused(tmp_path: Path) -> None:
    ended = run_training(
        TrainingSettings(), tmp_path, str(tmp_path / "run"), environment={"GPU_PIPELINES_REHEARSE": "l4:1"}
    )
    assert ended.status == 1
    assert "Give cpu:N" in ended.text
    assert json.dumps("l4:1")[1:-1] in ended.text
    assert not list(tmp_path.iterdir())
