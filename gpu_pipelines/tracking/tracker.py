"""The port of trackers: what one has to do so that runs of this project stand in it."""

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
    """What a tracker's run stands for: a run of a pipeline, or one that continues it.

    Attributes:
        key: where it is, the same in each of its steps, on each machine and at each attempt.
        name: what people call it.
    """

    key: str
    name: str

    def to_json(self) -> str:
        """As text, which steps hand on with an artifact."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrackedRun:
        """The run of such a text."""
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
    """Parameters for a tracker that sorts, filters and draws numbers otherwise than texts.

    Args:
        values: by name, as `Tracker.log_parameters` gets them.
    """
    return {name: _with_type(text) for name, text in values.items()}


def _with_type(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (int, float)) and math.isfinite(value) else text


class Tracker(ABC):
    """One kind of tracker. It is made in a process of its own, which may be killed at any time.

    After a failure it is made anew. Every method but `problems` may raise what it likes: what was not sent is sent
    again. So each may be called again with what the tracker has already.

    Args:
        address: what stands behind the name of the tracker; empty for none.

    Attributes:
        title: what it is called.
        package: what it imports, looked for before a run begins; empty where that comes with gpu-pipelines.
        extra: the extra of gpu-pipelines that brings this.
    """

    title: str
    package: str = ""
    extra: str = ""

    def __init__(self, address: str) -> None:
        self.address = address

    @classmethod
    def problems(cls, address: str, place: str, *, is_here: bool) -> list[str]:
        """What is wrong with an address, each with what to do; reads nothing but the environment.

        Args:
            address: what stands behind the name of the tracker; empty for none.
            place: the target of the run, such as local or vertex.
            is_here: whether this is asked where the steps run.
        """
        return []

    @abstractmethod
    def begin(self, run: TrackedRun) -> None:
        """Finds the run, or makes it. Everything else is about this run."""

    @abstractmethod
    def last_steps(self) -> dict[str, int]:
        """The last step that the tracker has of each curve: later ones alone are sent."""

    @abstractmethod
    def log_points(self, points: Sequence[Point]) -> None:
        """Adds points to curves, by step."""

    @abstractmethod
    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Notes what the run was told and what it is; of one that is there already the value stays."""

    @abstractmethod
    def log_figures(self, values: Mapping[str, float]) -> None:
        """Notes figures without a step, such as scores on test; a later value takes the place of an earlier one."""

    def log_file(self, name: str, file: Path) -> None:
        """Keeps a file, such as a report, under a name; a tracker that keeps none does nothing."""
        return

    @abstractmethod
    def end(self, succeeded: bool) -> None:
        """Says how the step that was followed has ended; another may follow."""
