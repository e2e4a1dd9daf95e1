"""A training that hangs is stopped, with what it has saved and the reason; one that works is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from trainings import names, numbers_dataset, train_here

from gpu_pipelines.distributed.idleness import Idleness
from gpu_pipelines.distributed.launch import launch, run_program
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.peers import Timing
from gpu_pipelines.emulator.json_server import free_port
from gpu_pipelines.errors import IdleError, from_data
from gpu_pipelines.training import engine
from gpu_pipelines.training.machine.utilization import CpuShares
from gpu_pipelines.training.rows.batches import TrainingBatches
from gpu_pipelines.training.script.run import run_script
from gpu_pipelines.training.script.settings import ScriptSettings
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

#: Works for a second, then waits for what never comes, but for one rank; asked to stop, it saves.
HANGS = """
import os, signal, sys, time
folder, works_on = sys.argv[1:]
rank = os.environ.get("RANK", "alone")
def save(*_):
    open(os.path.join(folder, f"saved-{rank}"), "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
until = time.monotonic() + 1
while time.monotonic() < until or rank == works_on:
    sum(range(1000))
time.sleep(60)
"""


@pytest.fixture
def hangs(tmp_path: Path) -> str:
    (tmp_path / "hangs.py").write_text(HANGS)
    return str(tmp_path / "hangs.py")


def same_model(first: Path, second: Path) -> bool:
    """Whether the files of both last checkpoints hold the same numbers."""
    files = [sorted((each / "step-00000008").rglob("*.safetensors")) for each in (first, second)]
    return bool(files[0]) and [each.read_bytes() for each in files[0]] == [each.read_bytes() for each in files[1]]


def of_cpus(minutes: float, processes: int) -> Idleness:
    return Idleness(minutes, [f"rank {each}" for each in range(processes)], CpuShares())


@pytest.mark.slow
def test_a_rank_that_hangs_while_the_other_computes_is_named_and_all_save(hangs: str, tmp_path: Path) -> None:
    idleness = of_cpus(0.05, 2)
    with pytest.raises(IdleError, match=r"because rank 1 did nothing for \d s\. Utilization now: rank 0 \d\d+ %, "):
        # What would be tried again is a process that was killed, not one that hangs.
        launch([hangs, str(tmp_path), "0"], processes=2, cluster=Cluster(), restarts=2, idleness=idleness)
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]


def test_a_program_that_does_not_end_when_it_is_asked_to_is_killed() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    with pytest.raises(IdleError, match="rank 0 did nothing"):
        run_program(
            [sys.executable, "-c", deaf],
            dict(os.environ),
            cluster=Cluster(),
            timing=Timing(stop=0.5),
            idleness=of_cpus(0.02, 1),
        )


def test_a_script_that_hangs_is_asked_to_save_and_the_step_fails(
    hangs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:1")
    settings = ScriptSettings(script=hangs, arguments=[str(tmp_path), "none"], launcher="plain", idle_stop=0.03)
    with pytest.raises(IdleError, match="rank 0 did nothing"):
        run_script(settings, tmp_path, str(tmp_path / "checkpoints"))
    assert (tmp_path / "saved-alone").is_file()


def test_the_reason_outlives_its_process() -> None:
    found = from_data({"kind": "idle", "problem": "rank 3 did nothing", "remedy": "look"})
    assert isinstance(found, IdleError)


def test_a_training_that_waits_for_rows_saves_the_steps_it_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where a thread makes the batches; the rows of step 6 do not come before the state is saved."""
    dataset, run = numbers_dataset(tmp_path), tmp_path / "run"
    comes = threading.Event()

    class Stuck(TrainingBatches):
        def _make(self, step: int) -> object:
            if step == 5:
                threading.Thread(target=interrupt, daemon=True).start()
                assert comes.wait(20)
            return super()._make(step)

    def interrupt() -> None:
        time.sleep(0.5)  # the steps before are computed meanwhile
        os.kill(os.getpid(), signal.SIGTERM)
        until = time.monotonic() + 20
        while not list(run.glob("step-*/checkpoint.json")) and time.monotonic() < until:
            time.sleep(0.05)
        comes.set()

    monkeypatch.setattr(engine, "TrainingBatches", partial(Stuck, on_thread=True))
    settings = TrainingSettings(model="mlp-small", max_steps=8, checkpoint_every_steps=8, global_batch_size=16)
    assert not train_here(settings, dataset, str(run))
    assert names(run) == ["step-00000005"]
    monkeypatch.undo()
    assert train_here(settings, dataset, str(run))
    whole = tmp_path / "undisturbed"
    assert train_here(settings, dataset, str(whole))
    assert same_model(run, whole)


def test_idle_stop_is_minutes_and_shapes_nothing() -> None:
    assert TrainingSettings(idle_stop=-1).problems() == ["idle_stop is -1; give minutes, or 0 for never."]
    assert any("idle_stop" in each for each in ScriptSettings(script="a.py", idle_stop=float("inf")).problems())
    assert "idle_stop" not in TrainingSettings().shaping()


@pytest.mark.slow
def test_a_training_of_two_processes_that_hangs_ends_with_its_newest_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging.py").write_text(
        "import time\n"
        "from gpu_pipelines.tasks.regression.recipe import Regression\n"
        "class Hanging(Regression):\n"
        "    losses = 0\n"
        "    def loss(self, model, batch):\n"
        "        self.losses += 1\n"
        "        if self.losses == 20:\n"
        "            time.sleep(600)\n"
        "        return super().loss(model, batch)\n"
    )
    dataset, run = numbers_dataset(tmp_path), tmp_path / "run"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:2")
    settings = TrainingSettings(
        model="mlp-small", recipe="hanging:Hanging", max_steps=50, checkpoint_every_steps=5, idle_stop=0.2
    )
    with pytest.raises(IdleError, match=r"did nothing for \d+ s\..* Step-000000\d\d is kept\."):
        train_model(settings, dataset, str(run))


NODE = """
import sys
from gpu_pipelines.distributed.idleness import Idleness
from gpu_pipelines.distributed.launch import run_program
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.training.machine.utilization import CpuShares
import os
rank, port, minutes, script, folder, works = sys.argv[1:]
cluster = Cluster(2, int(rank), (), "127.0.0.1", int(port), 60.0)
idleness = Idleness(float(minutes), [f"rank {rank}"], CpuShares())
with own_process():
    environment = {**os.environ, "RANK": rank}
    run_program([sys.executable, script, folder, works], environment, cluster=cluster, idleness=idleness)
"""


@pytest.mark.slow
def test_a_node_that_does_nothing_ends_the_others_with_its_reason(hangs: str, tmp_path: Path) -> None:
    port = free_port()
    nodes = [
        subprocess.Popen(
            [sys.executable, "-c", NODE, str(rank), str(port), "0.1", hangs, str(tmp_path), "0"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [node.communicate(timeout=120)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [1, 1]
    assert all("because rank 1 did nothing for" in each for each in said), said
    assert "node 1 (127.0.0.1" in said[0]
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]
