"""What the pages show of a run, on this machine or on the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_pipelines.reports.training_progress import TrainingProgress

#: The places of runs, as in addresses.
LOCAL, EMULATOR = "local", "emulator"
PLACES = {LOCAL: "this machine", EMULATOR: "emulator"}
#: The look of each status: good, bad, a warning, or none of these.
KINDS = {
    "succeeded": "good",
    "failed": "bad",
    "died": "bad",
    "damaged": "bad",
    "interrupted": "warn",
    "cancelled": "warn",
}
#: The statuses of a run or a task that may still change.
GOING_ON = ("running", "waiting")


@dataclass(frozen=True)
class Row:
    """A run in the list of runs.

    Attributes:
        place: local or emulator.
        id: its id at that place.
        pipeline: name of the pipeline.
        status: running, succeeded and so on; damaged if its record cannot be read.
        started: ISO 8601, UTC; empty if it is not known.
        seconds: its duration; None if it is not known.
        model: the model that it registered.
        metric: its most important metric.
        message: why its record cannot be read.
    """

    place: str
    id: str
    pipeline: str
    status: str
    started: str = ""
    seconds: float | None = None
    model: str = ""
    metric: str = ""
    message: str = ""

    @property
    def kind(self) -> str:
        """The look of its status."""
        return KINDS.get(self.status, "")

    @property
    def is_going_on(self) -> bool:
        """Whether it may still change."""
        return self.status in GOING_ON


@dataclass(frozen=True)
class Task:
    """A task of a run.

    Attributes:
        name: the name of the task.
        label: its name for people.
        status: waiting, running, succeeded, reused, failed and so on.
        seconds: its duration so far; None if there is none.
        message: its error.
        has_log: whether there is a log of it.
        made_by: id of the run whose results it reused.
        machine: its machine in the cloud, as far as the run names it.
    """

    name: str
    label: str
    status: str
    seconds: float | None = None
    message: str = ""
    has_log: bool = False
    made_by: str = ""
    machine: str = ""

    @property
    def kind(self) -> str:
        """The look of its status."""
        return KINDS.get(self.status, "")


@dataclass(frozen=True)
class Page:
    """A page that a task has written.

    Attributes:
        task: the task that wrote it.
        name: the name of the output.
        key: its key in the run.
    """

    task: str
    name: str
    key: str


@dataclass(frozen=True)
class Run:
    """A run with the content of its page.

    Attributes:
        row: its entry in the list.
        dependencies: for each task the tasks that it depends on.
        tasks: the tasks that have begun, in order.
        parameters: the values that it was given.
        outputs: the values and places of its outputs.
        pages: the pages that its tasks wrote.
        metrics: figures, by name.
        headline: its state, in a sentence.
        error: the text of its error.
        about: further facts, by name.
        can_stop: whether the console can stop it.
        progress: the progress of running trainings, by the names of their tasks.
    """

    row: Row
    dependencies: Mapping[str, Sequence[str]]
    tasks: Sequence[Task]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    pages: Sequence[Page] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    headline: str = ""
    error: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    can_stop: bool = False
    progress: Mapping[str, TrainingProgress] = field(default_factory=dict)

    @property
    def current(self) -> str:
        """The task whose log is the most useful now: a running one, else a failed one, else the last with a log."""
        logged = [task for task in self.tasks if task.has_log]
        for status in ("running", "failed"):
            if found := [task.name for task in logged if task.status == status]:
                return found[-1]
        return logged[-1].name if logged else ""


@dataclass(frozen=True)
class LogPart:
    """A part of a log.

    Attributes:
        text: its lines.
        next: the start of the next part.
        is_whole: whether this is the last part.
    """

    text: str
    next: int
    is_whole: bool


@dataclass(frozen=True)
class Measured:
    """A figure of a model, with its interval if one is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Curve:
    """The figures of a training over its steps.

    Attributes:
        training: the training if the run has several; else empty.
        points: values by step.
    """

    training: str
    points: Mapping[str, Sequence[tuple[float, float]]]
