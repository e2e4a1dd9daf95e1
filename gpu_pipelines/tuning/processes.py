"""The processes of the trials that are being trained on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.documents import write_document
from gpu_pipelines.distributed.peers import Timing
from gpu_pipelines.errors import ERROR_FILE, Interrupted, ProcessFailedError, ProcessKilledError, UserError, left_error
from gpu_pipelines.step_environment import RUN
from gpu_pipelines.tracking.train_job_status import SERVER as TRAIN_JOB_STATUS
from gpu_pipelines.tuning.folder import LOG
from gpu_pipelines.tuning.halving import Part
from gpu_pipelines.tuning.shares import Share

_JOB, _ERROR = "job.json", "error.json"
#: Set by a platform for one training; several would write to it.
_OF_ONE_TRAINING = ("AIP_TENSORBOARD_LOG_DIR", TRAIN_JOB_STATUS)
_SECONDS_TO_STOP = Timing().stop + 2


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    folder: Path
    slot: int
    began: float


def environment_of(share: Share, run: str, error: Path) -> dict[str, str]:
    """The environment of a trial's process: that of this one, with the trial's own variables.

    Args:
        share: the trial's share of the machine.
        run: the run of the training, if the platform has not set it.
        error: the file that gets its error.
    """
    variables = {**os.environ, RUN: os.environ.get(RUN) or run, ERROR_FILE: str(error)}
    variables |= {**dict.fromkeys(_OF_ONE_TRAINING, ""), **share.variables}
    return {name: value for name, value in variables.items() if value}


class Processes:
    """Starts processes, at most one for each share of the machine, and ends all that it has started.

    Args:
        shares: the shares of the machine.
        run: the run of the trainings: after a restart each waits until its predecessor is gone.
        study: the place of the study, for people; empty for the folders of the trials.
    """

    def __init__(self, shares: list[Share], run: str, study: str = "") -> None:
        self._shares, self._run, self._study = shares, run, study
        self._running: dict[Part, _Running] = {}

    def start(self, part: Part, folder: Path, job: dict[str, Any]) -> None:
        """Starts to train a part.

        Args:
            part: the part.
            folder: the folder of the trial; gets the job and the log.
            job: see `gpu_pipelines/tuning/trial.py`.
        """
        taken = {each.slot for each in self._running.values()}
        slot = next(slot for slot in range(len(self._shares)) if slot not in taken)
        write_document(folder / _JOB, job)
        (folder / _ERROR).unlink(missing_ok=True)
        environment = environment_of(self._shares[slot], self._run, folder / _ERROR)
        command = [sys.executable, "-m", "gpu_pipelines.tuning.trial", str(folder / _JOB), str(os.getpid())]
        with (folder / LOG).open("ab") as log:
            # In a session of its own it does not get a Ctrl-C: the study tells it to stop.
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._running[part] = _Running(process, folder, slot, time.monotonic())

    def ended(self) -> list[tuple[Part, Path]]:
        """The parts that have ended and were not taken yet, each with its folder."""
        return [(part, each.folder) for part, each in self._running.items() if each.process.poll() is not None]

    def take(self, part: Part) -> tuple[float, UserError | None]:
        """The seconds of an ended process, and its error if it failed.

        Raises:
            Interrupted: it was interrupted.
            ProcessFailedError: it ended without an error that says why.
        """
        ended = self._running.pop(part)
        seconds, status = time.monotonic() - ended.began, ended.process.wait()
        if status == 0:
            return seconds, None
        error = left_error(ended.folder / _ERROR)
        if isinstance(error, Interrupted):
            raise Interrupted(f"trial {part.trial} was interrupted: {error.message}")
        if status == -signal.SIGKILL:
            return seconds, ProcessKilledError("Its process was killed, most probably because the memory was full.")
        if error is None:
            log = f"{LOG} of trial {part.trial} in {self._study}" if self._study else ended.folder / LOG
            raise ProcessFailedError(
                f"The process of trial {part.trial} has ended with status {status}.",
                f"Its log is {log}. Tune again to continue.",
            )
        return seconds, error

    def stop(self) -> None:
        """Asks all processes to save their state and end."""
        for each in self._running.values():
            with suppress(ProcessLookupError):
                each.process.send_signal(signal.SIGTERM)

    @property
    def are_running(self) -> bool:
        return any(each.process.poll() is None for each in self._running.values())

    def stop_and_wait(self) -> None:
        """Asks all processes to save their state and end, waits, and kills those that do not."""
        self.stop()
        deadline = time.monotonic() + _SECONDS_TO_STOP
        while self.are_running and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """Kills all that are left, with their child processes."""
        for each in self._running.values():
            if each.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()
        self._running.clear()
