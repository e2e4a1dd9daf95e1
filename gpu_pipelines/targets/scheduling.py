"""The port of schedules: runs of an uploaded version that start by the clock, for the targets that have that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.cron import Cron
from gpu_pipelines.targets.messages import Compiled, Done, Submission, Values

if TYPE_CHECKING:
    from gpu_pipelines.terminal import Table

#: The remedy if options that are compiled into an uploaded version are given for it.
UPLOADED_REMEDY = "Upload it with them, gpu-pipelines upload, or give FILE.py here."


@dataclass(frozen=True)
class Timing:
    """When runs start. None: not given, and in a change left as it is.

    Attributes:
        when: the cron expression.
        start: no run before.
        end: no run after.
        max_concurrent: runs at the same time.
    """

    when: Cron | None = None
    start: datetime | None = None
    end: datetime | None = None
    max_concurrent: int | None = None


@dataclass(frozen=True)
class Wanted:
    """A schedule to create, or the changes of one.

    Attributes:
        name: its name; None to keep it.
        timing: when runs start.
        compiled: the version that it runs; None to keep it, with its parameters.
        values: the parameters of its runs.
        cache: whether steps may take results of earlier runs; None leaves each step its own setting.
        found: the schedule to change; None for a new one.

    Raises:
        UserError: the name is empty.
    """

    name: str | None
    timing: Timing
    compiled: Compiled | None = None
    values: Values | None = None
    cache: bool | None = None
    found: Any = None

    def __post_init__(self) -> None:
        if self.name is not None and not self.name.strip():
            raise UserError("The name of the schedule is empty.", "Give another --name.")


class Schedules(ABC):
    """The schedules of a service. `found` is the client's own object for a schedule.

    A service whose schedules can be changed has three more methods: `cron_of(found) -> Cron`;
    `contents(found) -> (compiled, parameters)`, the version that a schedule runs and the values of its parameters; and
    `another(pipeline) -> compiled`, the version that it is to run.
    """

    @abstractmethod
    def version(self, pipeline: str) -> Compiled:
        """An uploaded version; raises UserError if there is none."""

    @abstractmethod
    def submission(self, wanted: Wanted) -> Submission:
        """A new schedule, or the change of one, as it will be sent."""

    @abstractmethod
    def send(self, submission: Submission) -> Any:
        """Creates or changes a schedule, and returns it."""

    @abstractmethod
    def find(self, schedule: str) -> Any:
        """The schedule with a name or id; raises UserError if there is none."""

    @abstractmethod
    def all(self) -> Sequence[Any]:
        """All schedules."""

    @abstractmethod
    def table(self, found: Sequence[Any]) -> Table | str:
        """Schedules for people."""

    @abstractmethod
    def shown(self, found: Any, done: str = "") -> list[str]:
        """A schedule for people, line by line; `done` says what was done to it."""

    @abstractmethod
    def named(self, found: Any) -> tuple[str, str]:
        """The unique id of a schedule, which `find` takes, and its name."""

    @abstractmethod
    def document(self, found: Any) -> Mapping[str, Any]:
        """A schedule for programs."""

    @abstractmethod
    def pause(self, schedule: str) -> Done:
        """Stops it from starting runs."""

    @abstractmethod
    def resume(self, schedule: str) -> Done:
        """Lets it start runs again."""

    @abstractmethod
    def delete(self, schedule: str) -> Done:
        """Deletes it."""
