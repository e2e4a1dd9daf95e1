"""A step that is tracked: its facts go to a process that sends them, which the step neither needs nor waits for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from gpu_pipelines.errors import Interrupted, UserError
from gpu_pipelines.step_environment import TRACKED_RUN
from gpu_pipelines.tracking.facts import Facts
from gpu_pipelines.tracking.tracker import TrackedRun
from gpu_pipelines.tracking.trackers import NONE, problems_of_tracking, tracking_of

#: Most seconds that a step waits at its end for data to be sent; fewer if its machine is taken away.
_AT_THE_END, _WHEN_INTERRUPTED = 60.0, 5.0
_SENDER = ("-m", "gpu_pipelines.tracking.sender")
#: Metadata of an artifact that names its run if its place does not.
RUN_OF_ARTIFACT = "tracked_run"
#: The last part of the place of an artifact that is not named after the run.
_NO_NAME = "checkpoints"


def run_at(place: str, from_step: int = 0) -> TrackedRun:
    """The run of a step, as a tracker knows it.

    On this machine it is set in the environment. Elsewhere it follows from the place of the checkpoints, which stays
    the same when a run is tried again or continued.

    Args:
        place: the place of the checkpoints.
        from_step: the step from which they were continued with other parameters, which is another run. 0 for none.
    """
    if here := os.environ.get(TRACKED_RUN):
        return TrackedRun(here, Path(here).name)
    parts = place.rstrip("/").split("/")
    name = "-".join(parts[-3:-1]) if parts[-1] == _NO_NAME and len(parts) > 2 else parts[-1]
    return TrackedRun(f"{place}#{from_step}", f"{name}-from-{from_step}") if from_step else TrackedRun(place, name)


def run_of(artifact: Any, place: str) -> TrackedRun:
    """The run of an artifact; see `run_at`.

    Args:
        artifact: a KFP artifact.
        place: its place.
    """
    said = artifact.metadata.get(RUN_OF_ARTIFACT)
    return TrackedRun.from_json(said) if said and not os.environ.get(TRACKED_RUN) else run_at(place)


class Tracked:
    """Tracks the work in its block; the end of the block is the end of the step. A tracker never makes the step fail.

    Args:
        tracking: the tracker, as in the parameter; `none` for none.
        run: the run of the step.

    Attributes:
        run: the run of the step.
    """

    def __init__(self, tracking: str, run: TrackedRun) -> None:
        self.run = run
        self._tracking = tracking_of(tracking)
        self._facts, self._files = Facts(), dict[str, str]()
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is a tracker; without one no facts need be collected."""
        return self._tracking != NONE

    def require_tracker(self) -> None:
        """Checks that the tracker exists, and that it is installed here.

        Raises:
            UserError: it does not exist, or is not installed.
        """
        place = "local" if os.environ.get(TRACKED_RUN) else ""
        if problems := problems_of_tracking(self._tracking, place, is_here=True):
            raise UserError.of_all(problems)

    def __enter__(self) -> Tracked:
        return self

    def add(self, facts: Facts, **files: str) -> None:
        """Adds facts for the tracker, sent at once or at the end of the step.

        Args:
            facts: the facts.
            files: pages by name; they have to exist until the step ends.
        """
        self._facts += facts
        self._files |= {f"{name}.html": str(Path(file).absolute()) for name, file in files.items()}

    def follow(self, folder: Path) -> None:
        """Starts to send what a training writes.

        Args:
            folder: where its log will be.
        """
        if self.is_on:
            self._start(folder)

    def _start(self, folder: Path | None) -> None:
        try:
            self._process = subprocess.Popen([sys.executable, *_SENDER], stdin=subprocess.PIPE, text=True)
            first = {"tracking": self._tracking, "run": asdict(self.run), "folder": str(folder) if folder else ""}
            self._tell({**first, **self._added()})
        except OSError as error:
            print(f"warning: nothing is tracked: {error}", flush=True)

    def _tell(self, line: dict[str, object]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def _added(self) -> dict[str, object]:
        added: dict[str, object] = {"facts": asdict(self._facts), "files": self._files}
        self._facts, self._files = Facts(), {}
        return added

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.is_on:
            return
        if self._process is None and kind is None and (self._facts != Facts() or self._files):
            self._start(None)
        if self._process is None:
            return
        interrupted = kind is not None and issubclass(kind, (Interrupted, KeyboardInterrupt))
        try:
            self._tell({"succeeded": kind is None, **self._added()})
            self._process.wait(_WHEN_INTERRUPTED if interrupted else _AT_THE_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            told = "warning: the tracker takes too long; the next step of the run sends it what it misses"
            print(told, flush=True)
        except OSError:
            print("warning: the process that sends to the tracker is gone", flush=True)
