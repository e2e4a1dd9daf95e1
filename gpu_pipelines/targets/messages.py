"""What commands and targets tell each other: what is to be run, what will be sent, what was done, how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gpu_pipelines.dag import require_pipeline
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import how_to_give
from gpu_pipelines.targets.options import no_accelerator

if TYPE_CHECKING:
    from gpu_pipelines.targets.steps import Observer
    from gpu_pipelines.terminal import Table

#: How the names of compiled files end.
FILE_SUFFIXES = (".yaml", ".yml", ".json")
PYTHON = ".py"


def is_python(pipeline: str) -> bool:
    """Whether it is `FILE.py` or `FILE.py:function`."""
    path, _, function = pipeline.rpartition(":")
    return pipeline.endswith(PYTHON) or (path.endswith(PYTHON) and function.isidentifier())


def is_own(pipeline: str) -> bool:
    """Whether it is a pipeline in a file, of Python or compiled, and no name of one of this project."""
    return is_python(pipeline) or pipeline.endswith(FILE_SUFFIXES)


class Watch(Protocol):
    """Shows how something goes while it is waited for."""

    def steps(self) -> AbstractContextManager[Observer]:
        """Shows the steps of a run and their lines, as long as the context lasts."""
        ...

    def tell(self, text: str) -> None:
        """Says what has happened, with the time."""
        ...

    def say(self, line: str) -> None:
        """Says a line of a log."""
        ...

    def warn(self, text: str) -> None:
        """Warns."""
        ...


@dataclass(frozen=True)
class Request:
    """What is to be run, in the words of the command line.

    Attributes:
        pipeline: name of a pipeline, a compiled file, or an address that the target knows.
        given: the values of parameters that were given, as they were written.
        cache: whether steps may take results of earlier runs; None leaves each step its own setting.
        to_publish: whether it is to be uploaded and not run.
        resume: on this machine, the run that it continues, by name, or `latest`; empty for none.
    """

    pipeline: str
    given: Mapping[str, Any] = field(default_factory=dict)
    cache: bool | None = None
    to_publish: bool = False
    resume: str = ""

    @property
    def is_name(self) -> bool:
        """Whether it is the name of a pipeline, which is compiled."""
        return not self.is_own and "/" not in self.pipeline

    @property
    def is_own(self) -> bool:
        """Whether it is a pipeline in a file, of Python or compiled."""
        return is_own(self.pipeline)

    def require(self, target: Any, *names: str) -> None:
        """Checks that all is given that a command needs, so that nobody is sent from one missing setting to the next.

        Args:
            target: a target with its options and settings; what is compiled for it needs image and accelerator.
            names: of the settings that the command itself needs.

        Raises:
            UserError: lists all that is missing; or there is no pipeline of that name.
        """
        if self.is_name:
            require_pipeline(self.pipeline)
        needed = [*names, "image"] if self.is_name else names
        missing = [how_to_give(name) for name in needed if not getattr(target.settings, name)]
        if self.is_name and not (target.options.accelerator or target.settings.fallback.get("accelerator")):
            missing.append(no_accelerator(target.title))
        if missing:
            raise UserError.of_all(missing)


@dataclass(frozen=True)
class Compiled:
    """A pipeline that is ready for a target.

    Attributes:
        name: its name, as KFP has it.
        text: the compiled file; empty where a target runs the pipeline as it was built.
        spec: the pipeline in the file.
        written: a pipeline of one's own before its steps were placed; empty where that has not changed it.
        built: the KFP pipeline, where it was built here.
        known: what is fixed besides its parameters: `processes` that train, `data_nodes`, `task`.
        origin: what the target has found it by, an uploaded version say.
        told: what to say of its machines, what they cost and what to beware of, line by line.
        item_types: what lists among the parameters are to hold, as far as a Python file says it.
    """

    name: str
    text: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    built: Any = None
    known: Mapping[str, Any] = field(default_factory=dict)
    origin: Any = None
    told: Sequence[str] = ()
    item_types: Mapping[str, type] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """A file of the directory `compiled`.

    Attributes:
        pipeline: name of the pipeline.
        task: the one that it is for; empty where that is a parameter.
        path: where it is below the folder of the pipeline and the target.
        options: those of the target that it is compiled with.
    """

    pipeline: str
    task: str
    path: str
    options: Any


@dataclass(frozen=True)
class Values:
    """The parameters of a run.

    Attributes:
        arguments: the values of all, by their own names.
        taken: the same as the pipeline takes them: what is in its parameter `advanced` is in that one.
    """

    arguments: Mapping[str, Any]
    taken: Mapping[str, Any]


@dataclass(frozen=True)
class Submission:
    """A run, or a schedule, that is ready to be sent.

    Attributes:
        content: what the target sends.
        shown: gives what a dry run prints, line by line.
        document: gives the same for programs; None where it is JSON already.
    """

    content: Any
    shown: Callable[[], Sequence[str | Table]]
    document: Callable[[], Mapping[str, Any]] | None = None


def shown_request(method: str, url: str, body: object) -> str:
    """A request to a service, as a dry run prints it."""
    return json.dumps({"method": method, "url": url, "body": body}, indent=2, ensure_ascii=False)


@dataclass(frozen=True)
class Done:
    """What a service has done.

    Attributes:
        name: of what it was done to, for the next command.
        document: the same for programs.
        lines: the same for people.
    """

    name: str
    document: Mapping[str, Any]
    lines: Sequence[str]


@dataclass(frozen=True)
class Outcome:
    """How a run has ended.

    Attributes:
        state: succeeded, failed, cancelled, interrupted and the like.
        lines: what is told of it where it succeeded, on stdout, and where it did not, on stderr.
        document: the same for programs.
    """

    state: str
    lines: Sequence[str | Table] = ()
    document: Mapping[str, Any] = field(default_factory=dict)
