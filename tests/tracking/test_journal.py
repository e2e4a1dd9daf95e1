"""The log of a training as it grows, is cut off and written again."""

from __future__ import annotations

import json
import time
from pathlib import Path

from gpu_pipelines.tracking.journal import Journal


def write(path: Path, steps: range, how: str = "a") -> None:
    with path.open(how) as file:
        file.writelines(json.dumps({"step": step, "loss": step / 10, "time": 5.5}) + "\n" for step in steps)


def steps_of(journal: Journal) -> list[int]:
    return [point.step for point in journal.points()]


def test_points_come_once_and_with_their_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    journal = Journal(path)
    assert journal.points() == []
    write(path, range(1, 3))
    first, _ = journal.points()
    assert (first.name, first.step, first.value, first.seconds) == ("loss", 1, 0.1, 5.5)
    assert journal.points() == []
    write(path, range(3, 5))
    assert steps_of(journal) == [3, 4]


def test_a_line_that_is_being_written_waits_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    journal = Journal(path)
    path.write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "lo')
    assert steps_of(journal) == [1]
    with path.open("a") as file:
        file.write('ss": 2.0}\n')
    assert steps_of(journal) == [2]


def test_a_file_whose_end_was_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    journal = Journal(path)
    write(path, range(1, 9))
    journal.points()
    # It is as long as before when it is looked at again, and longer.
    path.write_text("")
    write(path, range(1, 5))
    write(path, range(6, 20, 2))
    assert steps_of(journal) == [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18]


def test_what_is_no_finite_number_is_no_point(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        '{"step": 1, "val_loss": null, "note": "x", "loss": NaN, "epoch": 0.5}',
        "cut off",
        '{"step": "2", "a": 1}',
    ]
    path.write_text("\n".join([*lines, ""]))
    (point,) = Journal(path).points()
    assert point.name == "epoch"
    # A script's own log need not have a time.
    assert abs(point.seconds - time.time()) < 60
