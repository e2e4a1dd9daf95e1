"""When a process of this project collects garbage: rarely while it imports, as usual afterwards."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
usual = gc.get_threshold()
frozen = gc.get_freeze_count()  # Python 3.12 has some from its start.
from gpu_pipelines.garbage import collect_as_usual, collect_rarely
collect_rarely()
print(gc.get_threshold()[0] > 4 * usual[0], gc.get_freeze_count() > frozen)
collect_as_usual()
print(gc.get_threshold() == usual, gc.get_freeze_count() > frozen)
class Cycle:
    def __init__(self): self.own = self
    def __del__(self): print("collected")
Cycle()
gc.collect()
Cycle()
print("end")
"""


def test_imports_are_left_alone_and_what_comes_later_is_collected_until_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["True False", "True True", "collected", "end"]
