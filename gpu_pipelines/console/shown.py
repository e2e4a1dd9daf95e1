"""What the pages show of a run, wherever it is: on this machine or on the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_pipelines.reports.training_progress import TrainingProgress

#: The places of runs, as they stand in addresses.
LOCAL, EMULATOR = "local", "emulator"
PLACES = {LOCAL: "this machine", EMULATOR: "emulator"}
#: How each status looks: well, badly, with care, or none of these.
KINDS = {
    "succeeded": "good",
    "failed": "bad",
    "died": "bad",
    "damaged": "bad",
    "interrupted": "warn",
    "cancelled": "warn",
}
#: A run or a task in one of these may still change.
GOING_ON = ("running", "waiting")


@dataclass(frozen=True)
class Row:
    """A run in the list of runs.

    Attributes:
        place: local or emulator.
        id: of the run, there.
        pipeline: name of the pipeline.
        status: running, succeeded and so on; damaged, where its record cannot be read.
        started: ISO 8601, UTC; empty if that is not known.
        seconds: how long it took; None if that is not known.
        model: what it has registered.
        metric: what says most about it.
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
        """How its status looks."""
        return KINDS.get(self.status, "")

    @property
    def is_going_on(self) -> bool:
        """Whether it may still change."""
        return self.status in GOING_ON


@dataclass(frozen=True)
class Task:
    """A task of a run.

    Attributes:
        name: of the task.
        label: its name for people.
        status: waiting, running, succeeded, reused, failed and so on.
        seconds: its duration so far; None if there is none.
        message: the error that it ended with.
        has_log: whether there is a log of it.
        made_by: id of the run whose results it took.
        machine: what it would run on in the cloud, as far as the run says it.
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
        """How its status looks."""
        return KINDS.get(self.status, "")


@dataclass(frozen=True)
class Page:
    """A page that a task has written.

    Attributes:
        task: that wrote it.
        name: of the output.
        key: by which the run finds it.
    """

    task: str
    name: str
    key: str


@dataclass(frozen=True)
class Run:
    """A run on its page.

    Attributes:
        row: what stands in the list.
        dependencies: for each task those that it comes after.
        tasks: those that have begun, in their order.
        parameters: what it was given.
        outputs: values and places of what came of it.
        pages: what people look at.
        metrics: figures, by name.
        headline: what there is to say about its state, in a sentence.
        error: the text of what went wrong.
        about: further facts, by name.
        can_stop: whether it can be stopped from here.
        progress: how far trainings are that run, by the names of their tasks.
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
        """The task whose log says most now: one that runs, else one that failed, else the last with a log."""
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
        next: where the following part begins.
        is_whole: whether nothing follows any more.
    """

    text: str
    next: int
    is_whole: bool


@dataclass(frozen=True)
class Measured:
    """A figure of a model, with its interval where one is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Curve:
    """How a figure went over the steps of a training.

    Attributes:
        training: which of the trainings of the run, where there are several; else empty.
        points: values by step.
    """

    training: str
    points: Mapping[str, Sequence[tuple[float, float]]]
