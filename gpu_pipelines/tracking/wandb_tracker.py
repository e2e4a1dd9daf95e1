"""Weights & Biases: the service, a private server (WANDB_BASE_URL), or files to sync later (WANDB_MODE=offline)."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_pipelines.step_environment import TRACKED_RUN
from gpu_pipelines.tracking.tracker import Point, TrackedRun, Tracker, with_types
from gpu_pipelines.tracking.wandb_files import rows_in

_PROJECT = "gpu-pipelines"
_FORM = re.compile(r"[\w.-]+(/[\w.-]+)?")
#: The axis of all curves. W&B's own step refuses points earlier than the last one, such as those of another curve.
_STEP = "step"
#: What the client adds to each row; a curve of a training script's may begin with an underscore as well.
_OF_CLIENT = ("_step", "_runtime", "_timestamp", "_wandb")
_MODE, _KEY, _DIRECTORY = "WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR"


class WandbTracker(Tracker):
    """A run of Weights & Biases; its id is made from the run's key."""

    title, package, extra = "Weights & Biases", "wandb", "wandb"

    @classmethod
    def problems(cls, address: str, place: str, *, is_here: bool) -> list[str]:
        """Problems with an address, or a missing login."""
        if address and not _FORM.fullmatch(address):
            return [f"tracking is wandb:{address[:100]}. Give wandb:ENTITY/PROJECT, wandb:PROJECT, or wandb."]
        if is_here and not (_is_offline() or os.environ.get(_KEY) or _has_login()):
            return [
                f"tracking is wandb, but there is no login. Run wandb login, set {_KEY} in the steps, or set "
                f"{_MODE}=offline and run wandb sync later."
            ]
        return []

    def begin(self, run: TrackedRun) -> None:
        """Continues the run, or creates it."""
        import wandb

        entity, _, project = self.address.rpartition("/")
        self._folder = _folder()
        self._id = hashlib.sha256(run.key.encode()).hexdigest()[:16]
        # Rows of an earlier try of this process are not in the file until its client has ended.
        wandb.teardown()
        self._steps = self._steps_in_files() if _is_offline() else {}
        self._run: Any = wandb.init(
            entity=entity or None,
            project=project or _PROJECT,
            id=self._id,
            name=run.name,
            resume=None if _is_offline() else "allow",
            dir=str(self._folder),
            settings=wandb.Settings(console="off", silent=True, init_timeout=30, save_code=False),
        )
        self._run.define_metric("*", step_metric=_STEP)

    def last_steps(self) -> dict[str, int]:
        """The last step of each curve: offline from the files of all attempts, else from the service."""
        if _is_offline():
            return self._steps
        import wandb

        if not self._run.resumed:
            return {}
        held = wandb.Api(timeout=20).run(self._run.path)
        steps: dict[str, int] = {}
        for row in held.scan_history():
            _take(steps, row)
        return steps

    def _steps_in_files(self) -> dict[str, int]:
        steps: dict[str, int] = {}
        for file in sorted(self._folder.glob(f"wandb/*-{self._id}/run-{self._id}.wandb")):
            for row in rows_in(file):
                _take(steps, row)
        return steps

    def log_points(self, points: Sequence[Point]) -> None:
        """Adds a row for each step."""
        rows: dict[int, dict[str, float]] = defaultdict(dict)
        for point in points:
            rows[point.step][point.name] = point.value
        for step in sorted(rows):
            self._run.log({_STEP: step, **rows[step]})

    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Sets the configuration of the run."""
        self._run.config.update(with_types(values), allow_val_change=True)

    def log_figures(self, values: Mapping[str, float]) -> None:
        """Sets the summary of the run."""
        self._run.summary.update(dict(values))

    def log_file(self, name: str, file: Path) -> None:
        """Adds the file to the files of the run."""
        kept = shutil.copy(file, Path(self._run.dir) / name)
        self._run.save(str(kept), base_path=str(self._run.dir), policy="now")

    def end(self, succeeded: bool) -> None:
        """Sends what is left, and ends this part of the run."""
        import wandb

        self._run.finish(exit_code=0 if succeeded else 1)
        # Finished data may not be in a file yet, and the client's own process is stopped when this one ends.
        wandb.teardown()


def _take(steps: dict[str, int], row: Mapping[str, Any]) -> None:
    if isinstance(row.get(_STEP), (int, float)):
        for name, value in row.items():
            if name not in (_STEP, *_OF_CLIENT) and value is not None:
                steps[name] = max(steps.get(name, -1), int(row[_STEP]))


def _is_offline() -> bool:
    return os.environ.get(_MODE, "") == "offline"


def _has_login() -> bool:
    """Whether `wandb login` has left a key, in the file that curl and others read too."""
    file = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    return file.is_file() and "wandb" in file.read_text(encoding="utf-8", errors="replace")


def _folder() -> Path:
    """The folder of the client's files: beside the runs on this machine, unless it is set."""
    told, run = os.environ.get(_DIRECTORY), os.environ.get(TRACKED_RUN)
    folder = Path(told) if told else Path(run).parent.parent if run else Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
