"""Temporary folders: gone afterwards, and what a killed process has left is removed by the next one."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import start_python

from gpu_pipelines.artifacts.scratch import scratch_folder

HOLDS = """
import sys, time
from pathlib import Path
from gpu_pipelines.artifacts.scratch import scratch_folder

if __name__ == "__main__":
    with scratch_folder("work", Path(sys.argv[1])) as folder:
        (folder / "large").write_bytes(bytes(1000))
        print("ready", flush=True)
        time.sleep(600)
"""


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "holds.py").write_text(HOLDS)
    (tmp_path / "place").mkdir()
    (tmp_path / "place/worked").mkdir()
    arguments = [str(tmp_path / "holds.py"), str(tmp_path / "place")]
    living, killed = (start_python(arguments, tmp_path / f"{name}.log", dict(os.environ)) for name in "ab")
    try:
        for each in (living, killed):
            each.await_line("ready")
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        assert len(list((tmp_path / "place").glob("work-*"))) == 2
        with scratch_folder("work", tmp_path / "place") as folder:
            assert list(folder.iterdir()) == []
            left = [path for path in (tmp_path / "place").glob("work-*") if path != folder]
            assert [path.name for each in left for path in each.iterdir()] == ["large"]
        assert sorted((tmp_path / "place").iterdir()) == sorted([*left, tmp_path / "place/worked"])
    finally:
        living.process.kill()
        living.process.wait()


def test_many_at_a_time_have_each_their_own(tmp_path: Path) -> None:
    def used(number: int) -> str:
        with scratch_folder("work", tmp_path) as folder:
            (folder / "mine").write_text(str(number))
            return (folder / "mine").read_text()

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(used, range(400))) == [str(number) for number in range(400)]
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_block_is_the_blocks(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), scratch_folder("work", tmp_path):
        (tmp_path / "nowhere").read_bytes()
    assert list(tmp_path.iterdir()) == []
