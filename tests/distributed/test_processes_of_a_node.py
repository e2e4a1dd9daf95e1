"""The processes of a node are asked to end, and killed; one may end by itself in the same moment."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import psutil

from gpu_pipelines.distributed.processes import Workers


class Ended(Workers):
    """Whose process has ended since it was listed."""

    def _run(self) -> None: ...

    def processes(self) -> list[Any]:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        known = psutil.Process(child.pid)
        child.communicate()
        return [known]


def test_a_process_that_has_ended_meanwhile_is_no_error() -> None:
    workers = Ended()
    workers.ask_to_stop()
    workers.kill()
