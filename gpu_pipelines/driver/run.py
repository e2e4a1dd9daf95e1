"""A run as a program gets it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import RunFailedError, UserError

if TYPE_CHECKING:
    from gpu_pipelines.targets.messages import Outcome
    from gpu_pipelines.targets.runs.record import RunRecord
    from gpu_pipelines.targets.steps import StepRecord
    from gpu_pipelines.targets.target import Target

#: The file that KFP's executor writes for each step.
_WRITTEN = "executor_output.json"
#: Most values of a run to show, and most characters of each.
_MOST_SHOWN, _MOST_CHARACTERS = 8, 100


@dataclass(frozen=True, repr=False)
class Run:
    """A run of a pipeline.

    Attributes:
        id: its name.
        target: where it is.
        status: submitted, running, succeeded, failed, interrupted, died, or another status of the target.
        pipeline: name of the pipeline.
        parameters: all parameters.
        outputs: outputs of the pipeline that are not artifacts, by name.
        artifacts: places of the others, by name.
        metrics: figures of the steps, by name.
        model: `model_name`, `version` and `aliases` of the registered version; empty if there is none.
        report: the page about it; None if there is none.
        steps: those that began, in order: `name`, `status`, `seconds`, `log`, `message`.
        started: when it began, ISO 8601 in UTC; empty if that is not known.
        seconds: its duration.
        directory: the directory of the run; None for one that is elsewhere.
        document: what else the target reports.
    """

    id: str
    target: str
    status: str
    pipeline: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    report: Path | None = None
    steps: tuple[StepRecord, ...] = ()
    started: str = ""
    seconds: float = 0.0
    directory: Path | None = None
    document: Mapping[str, Any] = field(default_factory=dict)
    _opened: Target | None = field(default=None, compare=False)

    @classmethod
    def of_record(cls, record: RunRecord) -> Run:
        """The run of a record on this machine.

        Args:
            record: the record of the run.
        """
        own = ("pipeline", "status", "parameters", "outputs", "artifacts", "metrics", "started", "seconds", "directory")
        return cls(
            id=record.run_id,
            target="local",
            model={**record.model, "version": int(record.model["version"])} if record.model else {},
            report=record.report if record.report.is_file() else None,
            steps=tuple(record.steps),
            document=record.document,
            **{name: getattr(record, name) for name in own},
        )

    def follow(self, every: float = 10.0, *, progress: bool = True) -> Run:
        """Waits for the end of a run that was submitted.

        Args:
            every: seconds between two looks.
            progress: show the run on stderr.

        Raises:
            RunFailedError: it did not succeed.
            UserError: it cannot be followed, or the service cannot be reached.
        """
        opened: Any = self._able("follow")
        return ended(self, opened.follow(self.id, watch_of(progress), every))

    def cancel(self) -> None:
        """Requests the end of a run that was submitted.

        Raises:
            UserError: it cannot be cancelled, or the service cannot be reached.
        """
        opened: Any = self._able("cancel")
        opened.cancel(self.id)

    def _able(self, what: str) -> Target:
        if self._opened is None or not hasattr(self._opened, what):
            raise UserError(f"A run on {self.target} cannot {what}.", "It ran to its end before it was returned.")
        return self._opened

    def artifact(self, name: str, step: str = "") -> str:
        """The place of an output of a step of a run on this machine, also if the pipeline does not return it.

        Args:
            name: of the step's output: `dataset`, `checkpoints`.
            step: the step; may be left out if only one has such an output.

        Raises:
            UserError: there is none, or there are several.
        """
        left = {
            each.name: place for each in self.steps if step in ("", each.name) and (place := _left_by(each).get(name))
        }
        if len(left) == 1:
            return next(iter(left.values()))
        if left:
            raise UserError(f"{', '.join(left)} of {self.id} have an output {name}.", "Name the step.")
        known = sorted({output for each in self.steps for output in _left_by(each)})
        raise UserError(f"No step of {self.id} has left {name!r}.", f"There is {', '.join(known) or 'nothing'}.")

    def _repr_html_(self) -> str:
        """For a notebook: the steps and how long they took, the figures, the model and the report."""
        from gpu_pipelines.notebook_html import bar, link, table, text
        from gpu_pipelines.numbers import figure_or_count
        from gpu_pipelines.reports.durations import format_seconds

        longest = max((step.seconds for step in self.steps), default=0.0) or 1.0
        steps = [
            [step.name, step.status, format_seconds(step.seconds), bar(step.seconds / longest)] for step in self.steps
        ]
        outputs = [[name, value] for name, value in self.outputs.items()]
        figures = [[name, figure_or_count(value)] for name, value in self.metrics.items()]
        return "".join(
            [
                text(f"{self.id} on {self.target}: {self.status}", "h4"),
                text(f"model: {self.model['model_name']} version {self.model['version']}") if self.model else "",
                table(("step", "status", "took", ""), steps) if steps else "",
                table((), outputs, "outputs") if outputs else "",
                table((), figures, "metrics") if figures else "",
                link(self.report.resolve().as_uri(), "report") if self.report else "",
            ]
        )

    def __repr__(self) -> str:
        from gpu_pipelines.reports.durations import format_seconds

        took = f", {format_seconds(self.seconds)}" if self.seconds else ""
        lines = [f"Run {self.id} on {self.target}: {self.status}{took}"]
        if self.model:
            lines.append(f"model: {self.model['model_name']} version {self.model['version']}")
        lines += [f"{step.name}: {step.status}" for step in self.steps if step.status not in ("succeeded", "reused")]
        for heading, values in (("outputs", self.outputs), ("artifacts", self.artifacts)):
            lines += [f"{heading}: {_shown(values)}"] if values else []
        lines += [f"report: {self.report}"] if self.report else []
        return "\n  ".join(lines)


def _left_by(step: StepRecord) -> dict[str, str]:
    """The places of the artifacts of a step, by the names of its outputs; of a reused one, where they were made."""
    file = Path(step.place) / _WRITTEN
    if not step.place or not file.is_file():
        return {}
    found = json.loads(file.read_text(encoding="utf-8")).get("artifacts", {})
    return {name: str(each["artifacts"][0]["uri"]) for name, each in found.items() if each.get("artifacts")}


def _shown(values: Mapping[str, Any]) -> str:
    """Names, with short values, on a line."""
    parts = [
        name if isinstance(value, str) and "/" in value else f"{name}={value!r}"[:_MOST_CHARACTERS]
        for name, value in list(values.items())[:_MOST_SHOWN]
    ]
    more = len(values) - len(parts)
    return ", ".join(parts) + (f" and {more} more" if more else "")


def watch_of(progress: bool) -> Any:
    """A watch that shows progress on stderr, or only warnings."""
    import sys

    from gpu_pipelines.driver.watch import SilentWatch, StreamWatch

    return StreamWatch(sys.stderr) if progress else SilentWatch()


def teller(progress: bool) -> Callable[[str], None]:
    """A function that prints to stderr, or does nothing."""
    import sys

    return (lambda text: print(text, file=sys.stderr, flush=True)) if progress else lambda text: None


def ended(run: Run, outcome: Outcome) -> Run:
    """A run with its outcome.

    Args:
        run: as far as it is known.
        outcome: as its target reports it.

    Raises:
        RunFailedError: it did not succeed.
        KeyboardInterrupt: it ran here and was interrupted, and so is the program.
    """
    from dataclasses import replace

    from gpu_pipelines.targets.local.telling import last_line
    from gpu_pipelines.targets.runs.record import RunRecord

    if "directory" in outcome.document:
        run = Run.of_record(RunRecord.load(Path(outcome.document["directory"])))
        if outcome.state == "interrupted":
            raise KeyboardInterrupt
    else:
        run = replace(run, status=outcome.state, document=outcome.document)
    if outcome.state != "succeeded":
        failed = next((step for step in reversed(run.steps) if step.has_failed), None)
        if failed is None:
            raise RunFailedError("\n".join(map(str, outcome.lines)) or f"{run.id}: {outcome.state}", run=run)
        directory = run.directory or Path()
        said = failed.message or last_line(directory, failed)
        raise RunFailedError(f"{failed.name} failed: {said}", f"Its log: {directory / (failed.log or '')}", run)
    return run
