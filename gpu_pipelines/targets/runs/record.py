"""The record of a run on this machine: `run.json`, and the outcome of the last run of a pipeline."""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint_lock import ticks_at_start
from gpu_pipelines.artifacts.documents import fields_in, read_as, require_types, write_document
from gpu_pipelines.artifacts.evaluation import EVALUATION, OVERTAKEN, Evaluation
from gpu_pipelines.dag.placement import TRAINING_STEPS
from gpu_pipelines.errors import InvalidRequestError, UserError
from gpu_pipelines.numbers import figure_or_count
from gpu_pipelines.targets.steps import StepRecord

RUN = "run.json"
#: A full id, as `new_run_directory` makes it. It names only this run, even if the id of a run that began in the same
#: second begins with it.
WHOLE_ID = re.compile(r".+-\d{8}-\d{6}(-\d+)?")
REPORT = "report.html"
#: Suffix of the file with the outcome of a pipeline's last run.
OUTCOME = "-outcome.json"
RECORDED_PACKAGES = ("gpu-pipelines", "kfp", "torch", "transformers", "pyarrow", "pillow", "numpy")


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter to a result."""
    versions = {"python": platform.python_version()}
    for name in RECORDED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@dataclass
class RunRecord:
    """The content of `run.json`.

    Attributes:
        run_id: name of the run's directory.
        pipeline: name of the pipeline.
        started: ISO 8601, UTC.
        parameters: all parameters.
        accelerator: the requested one; empty for all GPUs of the machine, else two CPU processes.
        dependencies: for each task the tasks it needs.
        directory: the run's directory.
        status: running, succeeded, failed or interrupted; died, if a reader finds that its process is gone.
        process_id: the process that runs it.
        process_ticks: start of that process, in the kernel's ticks since the machine's boot; 0 if that is not known.
        machine: the name of the machine that runs it.
        seconds: duration.
        steps: the steps that began, in order.
        artifacts: paths of the pipeline's outputs.
        model: metadata of the registered version: `model_name`, `version`, `aliases`, and whether it was `added`.
        reason: why there was, or was not, anything to train; empty if the pipeline does not ask. For a run that ended
            early, but not by a step, its error.
        outputs: outputs of the pipeline that are not artifacts.
        pages: pages of the steps for people: `step`, `name` and `path` of each, in order.
        metrics: figures of the steps, by name.
        metric_texts: texts that steps logged as metrics, by name.
        key_metric: name of the most important one; empty if there is none.
        versions: versions of Python and the packages that matter.
        checkpoints: folder of its trainings' checkpoints on this machine; if it continues another run, that run's.
        cost: its cost, in words, or where to find it; empty if it was not recorded.
        resumes: name of the run that it continues; empty for none.
        trainings: places where trainings continue that had begun elsewhere, by the names of the steps.
    """

    run_id: str
    pipeline: str
    started: str
    parameters: dict[str, Any]
    accelerator: str
    dependencies: dict[str, list[str]]
    directory: Path
    status: str = "running"
    process_id: int = field(default_factory=os.getpid)
    process_ticks: int = 0
    machine: str = field(default_factory=platform.node)
    seconds: float = 0.0
    steps: list[StepRecord] = field(default_factory=list)
    artifacts: dict[str, str] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    outputs: dict[str, Any] = field(default_factory=dict)
    pages: list[dict[str, str]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    metric_texts: dict[str, str] = field(default_factory=dict)
    key_metric: str = ""
    versions: dict[str, str] = field(default_factory=installed_versions)
    checkpoints: str = ""
    cost: str = ""
    resumes: str = ""
    trainings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: Path) -> RunRecord:
        """Reads the record of a run.

        Args:
            directory: directory of the run.

        Raises:
            UserError: there is no record, or it is damaged.
        """

        def made(content: dict[str, Any]) -> RunRecord:
            known = {each.name for each in fields(cls)}
            content["steps"] = [StepRecord(**fields_in(StepRecord, step)) for step in content["steps"]]
            given = {name: content[name] for name in content if name in known}
            # A copied folder is another run: all commands find a run by the name of its folder.
            made = cls(**{**given, "run_id": directory.absolute().name, "directory": directory})
            require_types(made)
            datetime.fromisoformat(made.started)
            _ = made.registered  # lists of runs read it from the model's metadata
            return made

        record = read_as(directory / RUN, "run", made)
        if record.status == "running" and not record.is_alive:
            record.end("died")
        return record

    @property
    def is_alive(self) -> bool:
        """Whether the process that runs it is alive; a process on another machine is assumed to be."""
        import psutil

        if self.machine != platform.node():
            return True
        if self.process_ticks:
            return ticks_at_start(self.process_id) == self.process_ticks
        try:
            began = float(psutil.Process(self.process_id).create_time())
        except psutil.NoSuchProcess:
            return False
        # A later process may have the same number.
        return began < datetime.fromisoformat(self.started).timestamp() + 1

    def require_over(self) -> None:
        """Checks that it is no longer running.

        Raises:
            UserError: it is still running.
        """
        if self.status == "running":
            problem = f"{self.run_id} is still running, as process {self.process_id}."
            raise InvalidRequestError(problem, "Stop it first.")

    def end(self, status: str, reason: str = "") -> None:
        """Records how it ended, and how the steps that were running did.

        Args:
            status: as the attribute.
            reason: the error that ended it, if that is not a step's.
        """
        self.status, self.reason = status, reason or self.reason
        for step in self.steps:
            step.status = status if step.status == "running" else step.status

    def note_time(self, started: float) -> None:
        """Records the time that the run and its running steps have taken.

        Args:
            started: start of the run, by the clock of `time.monotonic`.
        """
        now = time.monotonic()
        self.seconds = now - started
        for step in self.steps:
            if step.status == "running":
                step.seconds = now - step.started

    @property
    def key_figure(self) -> str:
        """The most important metric, with its value, for people; empty if there is none."""
        key = self.key_metric
        return f"{key} {figure_or_count(self.metrics[key])}" if key in self.metrics else ""

    @property
    def registered(self) -> str:
        """The model that it registered, as `NAME@VERSION`; empty if there is none."""
        return f"{self.model['model_name']}@{int(self.model['version'])}" if self.model else ""

    @property
    def tensorboard(self) -> Path | None:
        """The folder of the trainings' events for TensorBoard; None if there was no training."""
        folder = self.directory / "artifacts" / "checkpoints"
        # A training that has just begun has none; if it continues another run, that has them.
        begun = any(step.task in TRAINING_STEPS and step.status == "running" for step in self.steps)
        is_here = begun and not self.parameters.get("checkpoint_uri")
        return folder if is_here or any(folder.glob("**/events.out.tfevents.*")) else None

    @property
    def is_champion(self) -> bool:
        """Whether the run's model became the champion."""
        leads = "champion" in self.model.get("aliases", [])
        # Runs of earlier versions did not record it.
        return bool(self.model.get("promoted", leads and not self._was_champion))

    @property
    def added(self) -> bool:
        """Whether the run's model is a new version; False if the registry had the same model already."""
        return bool(self.model.get("added", True))

    @property
    def _was_champion(self) -> bool:
        """Whether the run's model is the version that was already the champion."""
        evaluation = self.evaluation
        before = evaluation.champion_version if evaluation else None
        return not self.added and before == int(self.model["version"])

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation of the model; None if it was not evaluated in this run.

        A user's own pipeline may call anything `best_checkpoint`.
        """
        if "best_checkpoint" not in self.artifacts:
            return None
        place = Path(self.artifacts["best_checkpoint"])
        is_another = place.exists() and not (place / EVALUATION).is_file()
        return None if is_another else Evaluation.load(place)

    @property
    def instead(self) -> str:
        """Which model is the champion if the run's model is not, and where to find the reason, in words."""
        evaluation = self.evaluation
        if evaluation is None:
            return "it was not evaluated in this run"
        if not evaluation.champion and "champion" in self.model.get("aliases", []):
            return "another run has registered it meanwhile, and it is the champion"
        if evaluation.passed and evaluation.model_name != self.model["model_name"]:
            return (
                f"it was evaluated as {evaluation.model_name}, so it was not compared with the champion of "
                f"{self.model['model_name']}; give evaluate_checkpoints the model_name of upload_model"
            )
        if evaluation.passed and not evaluation.champion:
            # A retraining would find nothing new in the data of this version.
            again = "train_evaluate_upload with the same parameters" if self.reason else "again"
            return f"another version was registered meanwhile and is the champion; run {again} to compare with it"
        if evaluation.passed and not self._was_champion:
            return OVERTAKEN
        return f"{'the champion stays' if evaluation.champion else 'there is still no champion'}; the gates say why"

    @property
    def why(self) -> str:
        """Why it trained or not, and why a model that passed its gates is still not the champion."""
        evaluation = self.evaluation if self.outcome == "not promoted" else None
        instead = self.instead if evaluation and evaluation.passed else ""
        return "; ".join(filter(None, (self.reason, instead)))

    @property
    def outcome(self) -> str:
        """The outcome: promoted, not promoted, unchanged, nothing new, too soon, no drift; else its status.

        For a pipeline that uploads nothing it is finished.
        """
        if self.status != "succeeded":
            return self.status
        if self.model and not self.is_champion:
            return "not promoted" if self.added else "unchanged"
        if self.model:
            return "promoted"
        return self.reason.partition(":")[0] or "finished"

    @property
    def failed_step(self) -> StepRecord:
        """The step that failed the run: others may have run after it, such as one that cleans up."""
        return next((step for step in reversed(self.steps) if step.has_failed), self.steps[-1])

    @property
    def ended_by(self) -> StepRecord | None:
        """The step that failed the run; None if it did not fail, or not by a step."""
        return self.failed_step if self.steps and self.status == "failed" and not self.reason else None

    @property
    def report(self) -> Path:
        return self.directory / REPORT

    @property
    def document(self) -> dict[str, Any]:
        """The record as JSON, with its directory."""
        return {**self._content, "directory": str(self.directory), "report": str(self.report)}

    @property
    def _content(self) -> dict[str, Any]:
        # `asdict` also copies everything in them, and a record is written whenever a step begins or ends.
        content = {**vars(self), "seconds": round(self.seconds, 3)}
        content["steps"] = [{**vars(step), "seconds": round(step.seconds, 3)} for step in self.steps]
        del content["directory"]
        for step in content["steps"]:
            del step["started"]
        return content

    def save(self) -> None:
        """Writes it into the run's directory."""
        write_document(self.directory / RUN, self._content)


def write_outcome(runs: Path, record: RunRecord) -> None:
    """Writes `<pipeline>-outcome.json` into the directory of all runs, replacing that of the previous run.

    It is for programs that watch a schedule on this machine: its path is known before the run is.
    """
    failed = record.ended_by
    content = {
        "outcome": record.outcome,
        "reason": failed.message or f"{failed.name} failed" if failed else record.why,
        "model": record.model.get("model_name", ""),
        "version": int(record.model["version"]) if record.model else None,
        "ended": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "run": str(record.directory),
        "report": str(record.report),
    }
    write_document(runs / f"{record.pipeline}{OUTCOME}", content)


def new_run_directory(runs: Path, pipeline: str) -> tuple[str, Path]:
    """Makes the directory of a new run, named after pipeline and time (UTC).

    Returns:
        The run's id and its directory.

    Raises:
        UserError: it cannot be created.
    """
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    for attempt in range(1, 100):
        run_id = f"{pipeline}-{stamp}" + (f"-{attempt}" if attempt > 1 else "")
        try:
            (runs / run_id).mkdir(parents=True)
        except FileExistsError:
            if runs.is_dir():
                continue
            raise UserError(f"{runs} is a file, not a directory for runs.", "Give another with --runs.") from None
        except OSError as error:
            raise UserError(f"{runs} cannot be written: {error.strerror}.", "Give another with --runs.") from None
        return run_id, runs / run_id
    raise UserError(f"{runs} has a hundred runs of this second.", "Wait a second, then run again.")
