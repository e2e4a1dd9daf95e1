"""The process that sends to a tracker: no step waits for it, and it may be killed at any time.

It reads its standard input, a JSON object on each line: first what to follow, last how the step has ended. It keeps no
record of what it has sent: whenever it starts, and after each failure, it asks the tracker for its last step, so that
nothing is sent twice and nothing is missing, wherever a process, a machine or a connection was lost.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import queue
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from gpu_pipelines.artifacts.checkpoint import CONFIGURATION, METRICS
from gpu_pipelines.distributed.signals import ENDING
from gpu_pipelines.errors import named
from gpu_pipelines.tracking.facts import Facts, facts_of_training
from gpu_pipelines.tracking.journal import Journal, points_of
from gpu_pipelines.tracking.tracker import Point, TrackedRun, Tracker
from gpu_pipelines.tracking.trackers import tracker_for

_POLL_SECONDS = 1.0
#: Most of a core that sending may take; the longer it takes, the more is sent at once.
_MOST_SHARE = 0.01
#: Seconds between two tries while the tracker is unreachable.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0
#: Points of one request; MLflow takes 1,000 metrics.
_MOST_POINTS = 500
#: The training has priority for the CPU.
_NICE = 10


class Sender:
    """Sends the facts of one step to one run of a tracker.

    Args:
        tracking: the tracker, as in the parameter.
        run: the run.
        folder: the folder of a training, with its log and configuration; None for none.

    Attributes:
        cost: CPU seconds of the last sending, without connecting.
    """

    def __init__(self, tracking: str, run: TrackedRun, folder: Path | None = None) -> None:
        self._name, self._tracking, self._run, self._folder = tracking.partition(":")[0], tracking, run, folder
        self._journal = Journal(folder / METRICS) if folder else None
        self._tracker: Tracker | None = None
        self._steps: dict[str, int] = {}
        self._waiting: list[Point] = []
        self._facts, self._told, self._files = Facts(), Facts(), dict[str, Path]()
        self._knows_configuration = folder is None
        self._is_away = False
        self.cost = 0.0

    def add(self, facts: Facts, files: Mapping[str, Path]) -> None:
        """Adds further facts and files to send."""
        self._facts += facts
        self._files |= files
        self._waiting += [point for entry in facts.entries for point in points_of(entry)]

    def send(self) -> bool:
        """Sends what is new; returns whether the tracker took all. Only the first of several failures is reported."""
        try:
            self._send()
        except Exception as error:
            # It is not known how much of the last request arrived, so the tracker is asked again.
            self._tracker = None
            if not self._is_away:
                self._is_away = True
                print(
                    f"tracking: {self._name} is away ({_said(error)}); the step does not wait; what it misses "
                    "is sent when it is back",
                    flush=True,
                )
            return False
        if self._is_away:
            self._is_away = False
            print(f"tracking: {self._name} is back, and has all", flush=True)
        return True

    def end(self, succeeded: bool) -> None:
        """Records how the step ended, if the tracker can be reached."""
        if self.send():
            try:
                assert self._tracker is not None
                self._tracker.end(succeeded)
            except Exception as error:
                print(f"tracking: {self._name} did not get the end of the step ({_said(error)})", flush=True)
            return
        print(
            f"warning: {self._name} has not got all of this step; the next step of the run sends it what it misses",
            flush=True,
        )

    def _send(self) -> None:
        tracker = self._tracker
        if tracker is None:
            tracker = tracker_for(self._tracking)
            tracker.begin(self._run)
            self._steps = tracker.last_steps()
            self._told = Facts()
            self._tracker = tracker
        began = time.process_time()
        self._read_configuration()
        if new := {k: v for k, v in self._facts.parameters.items() if self._told.parameters.get(k) != v}:
            tracker.log_parameters(new)
        self._send_points(tracker)
        if changed := {k: v for k, v in self._facts.figures.items() if self._told.figures.get(k) != v}:
            tracker.log_figures(changed)
        for name, file in list(self._files.items()):
            tracker.log_file(name, file)
            del self._files[name]
        self._told = Facts(dict(self._facts.parameters), dict(self._facts.figures))
        self.cost = time.process_time() - began

    def _read_configuration(self) -> None:
        if self._knows_configuration or self._folder is None:
            return
        path = self._folder / CONFIGURATION
        if path.is_file():
            self._facts += facts_of_training(json.loads(path.read_text(encoding="utf-8")))
            self._knows_configuration = True

    def _send_points(self, tracker: Tracker) -> None:
        if self._journal is not None:
            self._waiting += self._journal.points()
        # After an interruption, the training logs the same values again, at other times.
        # The order is kept, so that whatever a tracker has of a curve is its beginning.
        new = sorted(
            {(p.name, p.step): p for p in self._waiting if p.step > self._steps.get(p.name, -1)}.values(),
            key=lambda point: point.step,
        )
        for start in range(0, len(new), _MOST_POINTS):
            part = new[start : start + _MOST_POINTS]
            tracker.log_points(part)
            self._steps |= {point.name: point.step for point in part}
        self._waiting.clear()


def _said(error: Exception) -> str:
    """An error in words, without the login or the key of an address, as MLFLOW_TRACKING_URI may have one."""
    without_login = re.sub(r"//[^\s/]*@", "//", named(error))
    return re.sub(r"([?&][^\s=&/]+=)[^\s&/]+", r"\1…", without_login)[:200]


def main() -> None:
    """Follows a step until it reports its end; ends at once if the step's process is gone."""
    os.nice(_NICE)
    # A Ctrl-C also reaches the step, which then reports its end.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    first = json.loads(sys.stdin.readline() or "null")
    if first is None:
        return
    told: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(told,), daemon=True).start()
    run = TrackedRun(**first["run"])
    sender = Sender(first["tracking"], run, Path(first["folder"]) if first["folder"] else None)
    _adopt(sender, first)
    with _only_one(run):
        wait = _POLL_SECONDS
        while True:
            is_there = sender.send()
            wait = max(_POLL_SECONDS, sender.cost / _MOST_SHARE) if is_there else max(_FIRST_WAIT, wait * 2)
            wait = min(_LONGEST_WAIT, wait)
            try:
                last = told.get(timeout=wait)
            except queue.Empty:
                continue
            _adopt(sender, last)
            sender.end(bool(last["succeeded"]))
            break
    sys.stdout.flush()
    os._exit(0)  # the threads of a client must not keep the step waiting for this process


def _adopt(sender: Sender, line: dict[str, Any]) -> None:
    sender.add(Facts(**line["facts"]), {name: Path(file) for name, file in line["files"].items()})


def _listen(told: queue.Queue[dict[str, Any]]) -> None:
    line = sys.stdin.readline()
    if not line:
        # The step was killed. The step that replaces it has its own process for this.
        os._exit(0)
    told.put(json.loads(line))
    if not sys.stdin.readline():
        return


def _only_one(run: TrackedRun) -> IO[str]:
    """Waits for a killed step's process that is still sending; the lock ends with its process."""
    name = hashlib.sha256(run.key.encode()).hexdigest()[:16]
    lock = (Path(tempfile.gettempdir()) / f"gpu-pipelines-tracking-{os.getuid()}-{name}.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


if __name__ == "__main__":
    main()
