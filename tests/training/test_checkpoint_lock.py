"""One writer at a time for a checkpoint folder, in a directory and in a bucket."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from trainings import train_here

from gpu_pipelines.artifacts.checkpoint_lock import LOCK, CheckpointLock
from gpu_pipelines.artifacts.versioned_file import versioned_file
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.script.run import run_script
from gpu_pipelines.training.script.settings import ScriptSettings
from gpu_pipelines.training.settings import TrainingSettings

#: A lease short enough for a test; renewed every quarter of it.
LEASE = 1.2
SETTINGS = TrainingSettings(model="mlp-small", max_steps=4, checkpoint_every_steps=2, global_batch_size=16)


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, bucket: str, tmp_path: Path) -> str:
    """A folder for checkpoints."""
    return str(tmp_path / "checkpoints") if request.param == "directory" else f"{bucket}/{tmp_path.name}"


def held_there(place: str) -> dict[str, Any] | None:
    content, version = versioned_file(f"{place}/{LOCK}").read()
    return json.loads(content) if version else None


def elsewhere(place: str, **changes: Any) -> None:
    """Makes the lock one of another machine that has just been heard of, and is not heard of again."""
    file = versioned_file(f"{place}/{LOCK}")
    content, version = file.read()
    changed = {**json.loads(content), "machine": "another", "token": "another", "renewed": time.time(), **changes}
    assert file.write(json.dumps(changed).encode(), version)


@pytest.mark.parametrize("below", ["", "/below"])
def test_a_place_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"{tmp_path}/file{below} is no folder and cannot be made one: "):
        CheckpointLock(f"{tmp_path}/file{below}").acquire()


def test_a_lock_is_held_renewed_and_given_back(place: str) -> None:
    with CheckpointLock(place, "run-1", LEASE) as lock:
        first = held_there(place)
        assert first is not None
        assert (first["run"], first["process"]) == ("run-1", os.getpid())
        time.sleep(LEASE)
        again = held_there(place)
        assert again is not None
        assert again["renewed"] > first["renewed"]
        lock.require_held()
    assert held_there(place) is None
    with pytest.raises(UserError, match="Nothing more is written to"):
        lock.require_held()


def test_another_run_is_refused_while_the_writer_lives(place: str) -> None:
    with CheckpointLock(place, "run-1", LEASE):
        for run in ("run-2", ""):
            with pytest.raises(UserError, match=r"Another training writes to .*process \d+ on .*run-1") as refused:
                CheckpointLock(place, run, LEASE).acquire()
            assert "give another checkpoint_uri" in refused.value.remedy


def test_another_run_on_another_machine_is_refused_once_the_writer_is_heard_of(place: str) -> None:
    with CheckpointLock(place, "run-1", LEASE) as lock:
        over = threading.Event()

        def stays_alive() -> None:
            while not over.wait(LEASE / 4):
                elsewhere(place)

        lock._over.set()
        thread = threading.Thread(target=stays_alive)
        thread.start()
        try:
            with pytest.raises(UserError, match="Another training writes to"):
                CheckpointLock(place, "run-2", LEASE).acquire()
        finally:
            over.set()
            thread.join()


def test_a_restarted_run_waits_for_its_former_self(place: str) -> None:
    former, successor = CheckpointLock(place, "run-1", LEASE), CheckpointLock(place, "run-1", LEASE)
    former.acquire()
    saved: list[float] = []

    def end() -> None:
        time.sleep(LEASE)
        former.require_held()
        saved.append(time.monotonic())
        former.release()

    ending = threading.Thread(target=end)
    ending.start()
    successor.acquire()
    assert saved
    assert time.monotonic() >= saved[0], "it has waited"
    ending.join()
    successor.require_held()
    successor.release()


def test_a_writer_that_died_elsewhere_holds_nobody_up_for_longer_than_its_lease(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    CheckpointLock(place, "run-1", LEASE).acquire()
    dead = held_there(place)
    elsewhere(place, host="gone")
    began = time.monotonic()
    with CheckpointLock(place, "run-2", LEASE):
        assert time.monotonic() - began >= LEASE, "it might have been alive"
        now = held_there(place)
    assert dead is not None
    assert now is not None
    assert now["run"] == "run-2"
    assert "waiting up to 1 s for process" in capsys.readouterr().out


def test_a_writer_that_was_taken_for_dead_writes_no_more(place: str) -> None:
    stalled = CheckpointLock(place, "run-1", LEASE)
    stalled.acquire()
    elsewhere(place, host="successor")
    time.sleep(LEASE)
    with pytest.raises(UserError, match=r"is in use by another training: process \d+ on successor"):
        stalled.require_held()
    stalled.release()
    assert held_there(place), "that of the successor stays"


def test_a_disk_that_is_full_takes_no_right_away(tmp_path: Path) -> None:
    """A limit on the size of files is what a full disk is to who writes."""
    file = versioned_file(f"{tmp_path}/{LOCK}")
    version = file.write(b"a writer", "")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert version
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            file.write(b"a writer, later", version)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read() == (b"a writer", version)
    assert file.write(b"a writer, at last", version)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


@pytest.mark.parametrize("change", [{"machine": None}, {"machine": "another", "renewed": 1.0}])
def test_one_that_is_known_to_be_dead_is_not_waited_for(place: str, change: dict[str, Any]) -> None:
    dead = f"""
from gpu_pipelines.artifacts.checkpoint_lock import CheckpointLock
import os
CheckpointLock({place!r}, "run-1", 3600).acquire()
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", dead], check=False, timeout=60)
    assert held_there(place)
    if change["machine"]:
        elsewhere(place, **change)
    with CheckpointLock(place, "run-2", 3600):
        pass


def test_of_many_that_begin_at_once_one_writes(place: str) -> None:
    held, refused = [], []

    def begin(number: int) -> None:
        lock = CheckpointLock(place, f"run-{number}", LEASE)
        try:
            lock.acquire()
            held.append(lock)
        except UserError:
            refused.append(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(refused)) == (1, 5)
    held[0].release()


def test_a_training_is_refused_while_another_writes_there(numbers: Path, tmp_path: Path) -> None:
    with CheckpointLock(str(tmp_path), "another"):
        with pytest.raises(UserError, match=f"Another training writes to {tmp_path}: process {os.getpid()} on "):
            train_here(SETTINGS, numbers, str(tmp_path))
        assert [path.name for path in tmp_path.iterdir()] == [LOCK], "it has left nothing there"


def test_a_script_is_refused_while_another_writes_there(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise SystemExit('it was started')")
    settings = ScriptSettings(script=str(tmp_path / "script.py"), launcher="plain")
    with (
        CheckpointLock(str(tmp_path / "checkpoints"), "another"),
        pytest.raises(UserError, match="Another training writes to"),
    ):
        run_script(settings, tmp_path, str(tmp_path / "checkpoints"))
