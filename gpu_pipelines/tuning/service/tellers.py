"""Reports the loss on val of a running trial to its service."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from gpu_pipelines.tuning.service.study import METRIC

#: Set by Vertex AI in the replicas of a trial.
VERTEX_TRIAL, _METRIC_FILE = "CLOUD_ML_TRIAL_ID", "CLOUD_ML_HP_METRIC_FILE"
#: As in the package cloudml-hypertune, whose file the service reads; also the form of a line and the number of lines.
_DEFAULT_FILE, _MOST_LINES = "/var/hypertune/output.metric", 100

Curve = Sequence[tuple[int, float]]


class Teller(Protocol):
    """Reports the losses of a trial to a service."""

    def tell(self, curve: Curve) -> None:
        """Reports the losses.

        Args:
            curve: the whole curve of the trial so far: steps, and losses on val after them.
        """
        ...


class HypertuneFile:
    """Writes the file that Vertex AI reads from a replica of a trial, as cloudml-hypertune does."""

    def __init__(self) -> None:
        self._file = Path(os.environ.get(_METRIC_FILE) or _DEFAULT_FILE)
        self._trial = os.environ.get(VERTEX_TRIAL, "")
        self._times: dict[int, float] = {}

    def tell(self, curve: Curve) -> None:
        """See `Teller`; a trial that continues reports again what it reported before it was cut off."""
        lines = []
        for step, loss in curve[-_MOST_LINES:]:
            moment = self._times.setdefault(step, time.time())
            said = {METRIC: str(loss), "global_step": str(step), "checkpoint_path": "", "trial": self._trial}
            lines.append(json.dumps({**said, "timestamp": moment}, sort_keys=True) + "\n")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("".join(lines), encoding="utf-8")


class Lines:
    """Prints lines for Katib's metrics collector, which reads the log of a trial: a time, and name=value."""

    def __init__(self) -> None:
        self._told = 0

    def tell(self, curve: Curve) -> None:
        """See `Teller`; a process prints each loss once."""
        for step, loss in curve:
            if step > self._told:
                now = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
                print(f"{now} {METRIC}={loss}", flush=True)
                self._told = step


class NobodyListens:
    """For a training that is not a trial of a service."""

    def tell(self, curve: Curve) -> None:
        """See `Teller`."""


def teller_here() -> Teller:
    """The teller for the service that has started this process."""
    return HypertuneFile() if os.environ.get(VERTEX_TRIAL) else Lines()
