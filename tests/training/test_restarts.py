"""A worker that is killed: the training goes on by itself, and ends as one that was left alone."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
from gated import GATE
from started_training import run_training, weights_digest
from trainings import entries, names

from gpu_pipelines.distributed.processes import Program
from gpu_pipelines.distributed.restarts import Restarts, is_of_a_machine
from gpu_pipelines.errors import (
    ConnectionLostError,
    NodeFailedError,
    NodeLostError,
    ProcessFailedError,
    ProcessKilledError,
    UserError,
)
from gpu_pipelines.step_environment import RESTARTS
from gpu_pipelines.training.settings import TrainingSettings

SETTINGS = TrainingSettings(
    model="mlp-small", recipe="gated:Gated", max_steps=400, checkpoint_every_steps=100, global_batch_size=16
)
LAST = "step-00000400"


def two_processes(gate: Path) -> dict[str, str]:
    """The environment of a training by two, which waits in its middle for a file."""
    return {"GPU_PIPELINES_ACCELERATOR": "cpu:2", "PYTHONPATH": str(Path(__file__).parent), GATE: str(gate)}


def kill_one_worker(gate: Path) -> None:
    """Kills a worker, and lets the other one go on to what it misses then."""
    workers = [
        child
        for child in psutil.Process().children(recursive=True)
        if "gpu_pipelines.training.worker" in " ".join(child.cmdline())
    ]
    assert len(workers) == 2
    max(workers, key=lambda worker: worker.pid).kill()
    gate.touch()


@pytest.mark.slow
def test_a_training_whose_worker_is_killed_ends_with_the_same_bits(numbers: Path, tmp_path: Path) -> None:
    alone, killed, gate = tmp_path / "alone", tmp_path / "killed", tmp_path / "gate"
    assert run_training(SETTINGS, numbers, str(alone), environment=two_processes(tmp_path)).status == 0
    kills = []

    def kill_once(line: str) -> bool:
        if line.startswith("step 200/") and "val" in line and not kills:
            kills.append(line)
            kill_one_worker(gate)
        return False

    ended = run_training(SETTINGS, numbers, str(killed), stop_when=kill_once, environment=two_processes(gate))
    assert ended.status == 0, ended.text
    assert kills
    (warning,) = [line for line in ended.lines if "started again" in line]
    assert "ended with SIGKILL while training" in warning
    assert "1 of 2 within an hour" in warning
    assert any(line.startswith("continuing from step-00000") for line in ended.lines)
    assert weights_digest(killed / LAST) == weights_digest(alone / LAST)
    assert entries(killed, "loss") == entries(alone, "loss")
    assert names(killed) == names(alone)


@pytest.mark.slow
def test_without_restarts_it_ends_with_its_message(numbers: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def kill(line: str) -> bool:
        if line.startswith("step 100/") and "val" in line:
            kill_one_worker(gate)
        return False

    environment = {**two_processes(gate), RESTARTS: "0"}
    ended = run_training(SETTINGS, numbers, str(tmp_path / "run"), stop_when=kill, environment=environment)
    assert ended.status == 1
    assert "started again" not in ended.text
    assert "error: Process 1 of the training ended with SIGKILL while training (often: the machine" in ended.text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ProcessKilledError("Process 0 of the training ended with SIGKILL."), True),
        (ConnectionLostError("Connection closed by peer"), True),
        (ProcessFailedError("DistBackendError: NCCL error in: NCCLUtils.cpp, unhandled system error"), True),
        (ProcessFailedError("RuntimeError: CUDA error: uncorrectable ECC error encountered"), True),
        (ProcessFailedError("ValueError: the loss is not finite"), False),
        (UserError("cuda:0 ran out of memory."), False),
        (NodeLostError("node 1 has not been heard from for 30 s."), False),
    ],
)
def test_what_is_tried_again(error: UserError, expected: bool) -> None:
    assert is_of_a_machine(error) == expected
    elsewhere = NodeFailedError("node 1 failed")
    elsewhere.__cause__ = error
    assert is_of_a_machine(elsewhere) == expected


#: What PyTorch's watchdog of NCCL writes as it ends a process, with fewer frames.
TIMED_OUT = """\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] \
Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, Timeout(ms)=100000) ran too long
""" + "".join(
    f"Exception raised from {what} at /pytorch/torch/csrc/distributed/c10d/x.cpp:1 (most recent call first):\n"
    + "".join(f"frame #{number}: <unknown function> + 0x94ac3 (0x7f in libtorch_cuda.so)\n" for number in range(9))
    + "\n"
    for what in ("checkTimeout", "ncclCommWatchdog")
)


def test_of_an_exception_of_cpp_what_it_says_is_told_and_not_its_frames(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "stderr.log").write_text(TIMED_OUT)
    workers = Program([], {})
    workers._logs = tmp_path
    lines = workers.last_lines(0)
    assert "OpType=ALLREDUCE" in "".join(lines)
    assert not any(line.startswith("frame #") for line in lines)
    assert is_of_a_machine(ProcessFailedError("\n".join(lines)))


def test_it_is_tried_so_often_within_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    restarts, killed = Restarts(2), ProcessKilledError("killed")
    for number in (1, 2):
        assert restarts.are_worth(killed)
        assert restarts.note() == f"{number} of 2 within an hour"
    assert not restarts.are_worth(killed)
    now += 3601
    assert restarts.are_worth(killed)


def test_a_wrong_number_of_restarts_is_refused(numbers: Path, tmp_path: Path) -> None:
    ended = run_training(SETTINGS, numbers, str(tmp_path), environment={RESTARTS: "often"})
    assert ended.status == 1
    assert f"error: {RESTARTS} is 'often'." in ended.text
