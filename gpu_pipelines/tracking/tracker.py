"""The port of trackers: what a tracker has to do to show the runs of this project."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker shows: a run of a pipeline together with the runs that continue it.

    Attributes:
        key: its key, the same in each step, on each machine and at each attempt.
        name: its name for people.
    """

    key: str
    name: str

    def to_json(self) -> str:
        """The run as JSON text, which steps hand on with an artifact."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrackedRun:
        """The run from the text of `to_json`."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Point:
    """A point of a curve.

    Attributes:
        name: of the curve.
        step: optimizer step.
        value: a finite number.
        seconds: when it was measured, seconds since 1970.
    """

    name: str
    step: int
    value: float
    seconds: float


def with_types(values: Mapping[str, str]) -> dict[str, Any]:
    """Parameters with their types, for a tracker that sorts, filters and draws numbers differently from texts.

    Args:
        values: by name, from `Tracker.log_parameters`.
    """
    return {name: _with_type(text) for name, text in values.items()}


def _with_type(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (int, float)) and math.isfinite(value) else text


class Tracker(ABC):
    """One kind of tracker. It is created in a process of its own, which may be killed at any time.

    After a failure it is created again. Every method but `problems` may raise any exception: whatever was not sent is
    sent again. So each method may be called with values that the tracker already has.

    Args:
        address: what follows the name of the tracker; empty for nothing.

    Attributes:
        title: its name for people.
        package: the package that it imports, checked before a run begins; empty if gpu-pipelines brings it.
        extra: the extra of gpu-pipelines that installs this package.
    """

    title: str
    package: str = ""
    extra: str = ""

    def __init__(self, address: str) -> None:
        self.address = address

    @classmethod
    def problems(cls, address: str, place: str, *, is_here: bool) -> list[str]:
        """Problems with an address, each with what to do; reads only the environment.

        Args:
            address: what follows the name of the tracker; empty for nothing.
            place: the target of the run, such as local or vertex.
            is_here: whether this code runs where the steps run.
        """
        return []

    @abstractmethod
    def begin(self, run: TrackedRun) -> None:
        """Finds the run, or creates it. All other methods are about this run."""

    @abstractmethod
    def last_steps(self) -> dict[str, int]:
        """The last step that the tracker has of each curve; only later ones are sent."""

    @abstractmethod
    def log_points(self, points: Sequence[Point]) -> None:
        """Adds points to curves, by step."""

    @abstractmethod
    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Records parameters and properties of the run; one that is already there keeps its value."""

    @abstractmethod
    def log_figures(self, values: Mapping[str, float]) -> None:
        """Records figures without a step, such as scores on test; a later value replaces an earlier one."""

    def log_file(self, name: str, file: Path) -> None:
        """Keeps a file, such as a report, under a name; a tracker that keeps no files does nothing."""
        return

    @abstractmethod
    def end(self, succeeded: bool) -> None:
        """Records how the step ended; another step of the run may follow."""
